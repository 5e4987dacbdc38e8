"""The labelled fault set: its shape, and a few of its faults for real."""

import faultset
import pytest
import slow_faults
from faultset import BASES, EVERYTHING, Case, Here, run_set

from labkit.diagnosis.findings import BOTTLENECKS
from labkit.results.hardware import Machine

CPU = Here(BASES["cpu"] | {"precision": "fp32", "depth": 1}, Machine(kind="cpu"))
GPU = Here(BASES["gpu"] | {"precision": "bf16", "depth": 11}, Machine(kind="gpu"))


def test_the_set_has_every_bottleneck_that_can_be_planted_and_each_name_once():
    assert len({fault.name for fault in EVERYTHING}) == len(EVERYTHING)
    not_planted = {"host", "communication", "straggler", "unsure"}
    assert {fault.expected for fault in EVERYTHING} == set(BOTTLENECKS) - not_planted


@pytest.mark.parametrize("here", [CPU, GPU], ids=["CPU", "GPU"])
def test_every_case_is_a_pipeline_that_is_allowed_and_a_plant_that_exists(here):
    for fault in EVERYTHING:
        for severity in (1, 2):
            case = Case(fault.on(here.machine.kind), severity, 7, here.base | {"precision": "bf16"})
            assert case.pipeline.seed == 7
            for planted in filter(None, (case.planted or "").split("+")):
                name, _, amount = planted.partition("@")
                assert name in slow_faults.PLANTS and float(amount) > 0


@pytest.mark.slow
def test_a_fault_is_named_for_real_and_an_interrupted_set_goes_on(tmp_path, monkeypatch):
    keep = tmp_path / "kept.jsonl"
    monkeypatch.setattr(faultset, "base_here", lambda: CPU)
    score = run_set(seeds=1, only=["object building"], keep=keep)
    # On a machine with neighbours a run may get no verdict, but not a wrong one
    assert score.rows and all(wrong["named"] == "unsure" for wrong in score.wrong), score
    lines = keep.read_text()
    assert run_set(seeds=1, only=["object building"], keep=keep).rows == score.rows  # not run again
    assert keep.read_text() == lines
