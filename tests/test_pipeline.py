"""A Pipeline refuses what cannot be, and says what can."""

import re

import numpy as np
import pytest

import labkit as lk
from labkit.__main__ import parse_settings
from labkit.spec import KNOBS


def test_every_knob_is_declared_once_with_a_default_it_allows_and_a_line_of_help():
    for knob in KNOBS.values():
        assert knob.check(knob.default) == knob.default and knob.allowed
        assert knob.help and "\n" not in knob.help


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"num_workers": -1}, r"num_workers=-1 .*a whole number from 0 to 128"),
        ({"io_ms": float("nan")}, r"io_ms=nan .*from 0 to 1000 ms"),
        ({"precision": "fp8"}, r"precision='fp8' .*'fp32', 'ieee', 'tf32', 'fp16', 'bf16'"),
        ({"pin_memory": 2}, r"pin_memory=2 .*True or False"),
        ({"prefetch_factor": 4}, r"prefetch_factor=4 needs loader workers.*num_workers=0"),
        ({"num_wokers": 4}, r"Unknown knob num_wokers=4; did you mean 'num_workers'"),
    ],
)
def test_a_bad_value_names_knob_value_and_what_is_allowed(knobs, message):
    for made in (lk.Pipeline, lk.Pipeline().but):
        with pytest.raises(ValueError, match=message):
            made(**knobs)


def test_a_pipeline_is_frozen_plain_and_evaluates_to_itself_and_but_changes_a_copy():
    pipeline = lk.Pipeline(num_workers=np.int64(2), io_ms=np.float32(1), augment=True, steps=5.0)
    faster = pipeline.but(num_workers=4)
    assert (pipeline.num_workers, faster.num_workers) == (2, 4) and hash(faster)
    with pytest.raises(AttributeError):
        pipeline.num_workers = 4
    assert eval(repr(faster), {"Pipeline": lk.Pipeline}) == faster
    assert repr(faster) == "Pipeline(io_ms=1.0, num_workers=4, steps=5)"


def test_settings_from_a_terminal_are_read_by_the_knob():
    on = parse_settings(["num_workers=4", "io_ms=0", "pin_memory=true"])
    assert on == {"num_workers": 4, "io_ms": 0.0, "pin_memory": True}
    off = parse_settings(["prep_ms=auto", "seconds=none", "compile=none"])
    assert off == {"prep_ms": None, "seconds": None, "compile": None}
    for bad in ("num_workers", "num_workers=four", "pin_memory=perhaps", "speed=11"):
        with pytest.raises(ValueError, match=re.escape(bad.split("=")[0])):
            parse_settings([bad])
