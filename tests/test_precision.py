"""Number formats and their lesson: range, rounding, vanishing gradients, losses that agree."""

import math

import numpy as np
import pytest
import torch

import labkit as lk
from labkit.analysis.losses import applied
from labkit.experiments import Experiment
from labkit.experiments.number_formats import BF16, FORMATS, FP16, FP32, TF32, formats_table
from labkit.results.launch import launch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("name", DTYPES)
def test_a_format_follows_from_its_bits_as_torch_states_it(name):
    form, info = FORMATS[name], torch.finfo(DTYPES[name])
    assert form.max == info.max and form.eps == info.eps
    assert form.smallest_normal == info.smallest_normal
    assert form.bytes * 8 == info.bits


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_by_hand_is_what_a_tensor_does(name):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000) * np.exp2(rng.uniform(-30, 20, 5000))
    values = np.concatenate([values, [0.0, 1e-8, 3e-8, 65_504, 65_519, 65_520, 70_000, 2049]])
    values = values.astype(np.float32).astype(np.float64)
    tensor = torch.from_numpy(values).float().to(DTYPES[name]).double().numpy()
    np.testing.assert_array_equal(FORMATS[name].rounded(values), tensor)


def test_tf32_has_the_range_of_fp32_and_the_digits_of_fp16():
    assert TF32.lowest == FP32.lowest == BF16.lowest < FP16.lowest
    assert TF32.eps == FP16.eps < BF16.eps
    assert TF32.rounded(np.array([1 + 2**-10, 1 + 2**-12])).tolist() == [1 + 2**-10, 1.0]
    assert "tf32" in str(formats_table())


@pytest.fixture(scope="module")
def vanished():
    done = launch(Experiment("underflow", {"px": 256, "steps": 20})).wait()
    assert done.outcome == "finished", done.error
    return done


def case(vanished, name):
    return vanished.one("training", case=name).values


def test_gradients_vanish_in_fp16_and_the_scaler_brings_them_back(vanished):
    assert case(vanished, "fp16, no scaler")["dtype"] == "float16"
    assert case(vanished, "fp32")["zeros"] < 0.01
    alone, scaled = case(vanished, "fp16, no scaler"), case(vanished, "fp16, scaler")
    assert alone["zeros"] > 2 * scaled["zeros"] + 0.2
    assert scaled["loss"][-1] < alone["loss"][-1]


def test_a_scaler_that_starts_too_high_skips_steps_and_a_fixed_factor_ends_in_nan(vanished):
    high = case(vanished, "fp16, scaler too high")
    assert high["skipped"][0] and not all(high["skipped"])
    assert high["scale"][1] == high["scale"][0] / 2
    assert case(vanished, "fp16, fixed factor")["loss"][-1] is None  # NaN, a gap in the record


def test_the_figure_of_vanishing_gradients_is_drawn(vanished):
    assert len(vanished.plot().axes) == 3


def test_every_format_is_found_on_real_tensors_or_skipped_with_a_reason():
    found = launch(Experiment("number_formats", {"count": 10_000})).wait()
    assert found.outcome == "finished", found.error
    for name in DTYPES:
        assert found.one("limits", format=name).values["smallest"] == FORMATS[name].smallest
        assert found.one("rounding", format=name).values["worst"] <= FORMATS[name].eps / 2
    assert found.one("example", format="fp16", number=70_000.0).values["became"] == "inf"
    assert found.where("rounding", format="tf32") or "Tensor Cores" in found.skipped["tf32"]
    assert len(found.plot().axes) == 2


def test_autocast_is_asked_for_the_dtype_of_every_output():
    found = launch(Experiment("autocast_types")).wait()
    assert found.outcome == "finished", found.error
    out = {point.case["op"]: point.values for point in found.where("output")}
    assert out["matmul"]["from fp32"] == "bf16" and out["add"]["from fp32"] == "fp32"
    full, half = (found.one("kept", precision=name).values["mib"] for name in ("fp32", "bf16"))
    assert 0 < half < full


def test_a_format_is_timed_with_its_error_or_skipped_with_a_reason():
    found = launch(Experiment("precision_matmul", {"n": 128})).wait()
    assert found.outcome == "finished", found.error
    for name in FORMATS:
        if name in found.skipped:
            assert found.skipped[name]
            continue
        assert found.one("matmul", precision=name).tflop_per_s > 0
        error = found.one("error", precision=name).values["relative"]
        assert error < 4 * FORMATS[name].eps
    assert "fp32" not in found.skipped


class Fake:
    """As much of a Run as a comparison of losses reads."""

    def __init__(self, precision, loss, **knobs):
        self.asked = lk.Pipeline(precision=precision, **knobs)
        self.pipeline, self.loss, self.steps = self.asked, loss, len(loss)
        self.recorded, self.not_applied = False, {}


def test_losses_are_held_against_a_tolerance():
    base, near = Fake("fp32", [2.0, 1.0, 1.0, 1.0]), Fake("bf16", [2.0, 1.0, 1.0, 1.2])
    assert lk.losses(base, near).survived
    off = lk.losses(base, Fake("fp16", [2.0, 2.0, 2.0, 2.0]))
    assert not off.survived and "OUTSIDE" in repr(off)
    assert not lk.losses(base, Fake("fp16", [2.0, 1.0, 1.0, math.nan])).survived


def test_runs_on_other_batches_are_not_compared():
    with pytest.raises(ValueError, match="seed=1"):
        lk.losses(Fake("fp32", [1.0]), Fake("bf16", [1.0], seed=1))


def test_a_format_that_could_not_act_is_not_in_the_comparison():
    run = Fake("tf32", [1.0])
    run.not_applied = {"precision": "no Tensor Cores"}
    acting, lacking = applied([Fake("fp32", [1.0]), run])
    assert len(acting) == 1 and lacking == {"tf32": "no Tensor Cores"}
