"""The labelled fault set: its shape, and one of its faults for real."""

import faultset
import pytest
from faultset import BASES, FAULTS, Here, run_set

from labkit.diagnosis.findings import BOTTLENECKS
from labkit.results.hardware import Machine

CPU = Here(BASES["cpu"] | {"precision": "fp32", "depth": 1}, Machine(kind="cpu"))


def test_the_set_has_every_bottleneck_that_can_be_planted_in_pipelines_that_are_allowed():
    not_planted = {"host", "communication", "straggler", "unsure"}
    assert {fault.expected for fault in FAULTS} == set(BOTTLENECKS) - not_planted
    for kind, fault in ((kind, fault) for kind in BASES for fault in FAULTS):
        here = fault.on(kind)
        assert here.pipeline(1, BASES[kind]).seed == 1
        assert here.plant is None or here.plant in faultset.PLANTS


@pytest.mark.slow
def test_a_fault_is_named_for_real_and_an_interrupted_set_goes_on(tmp_path, monkeypatch):
    keep = tmp_path / "kept.jsonl"
    monkeypatch.setattr(faultset, "base_here", lambda: CPU)
    score = run_set(seeds=1, only=["object building"], keep=keep)
    # On a machine with neighbours a run may get no verdict, but not a wrong one
    assert score.rows and all(wrong["named"] == "unsure" for wrong in score.wrong), score
    assert run_set(seeds=1, only=["object building"], keep=keep).rows == score.rows  # not run again
