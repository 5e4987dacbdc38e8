"""The labelled fault set: its shape, a few of its faults for real, and how they are counted."""

import json
from dataclasses import replace

import pytest

from labkit.bench import slow_faults
from labkit.explain.faultscore import NAMES, Score, Scored, run_set
from labkit.lab import faultset
from labkit.lab.faultset import CALIBRATION, EVERYTHING, FAULTS, HEALTHY, MIXTURES, SCORING, Case
from labkit.show import confusion_figure


def test_the_set_has_two_dozen_faults_healthy_ones_and_mixtures_each_with_a_known_name():
    assert len(FAULTS) >= 24
    assert len(HEALTHY) >= 4
    assert len(MIXTURES) >= 4
    assert len({fault.name for fault in EVERYTHING}) == len(EVERYTHING)
    assert {fault.expected for fault in EVERYTHING} == set(NAMES)
    assert all(fault.expected == "compute" for fault in HEALTHY)


def test_what_sets_the_thresholds_is_not_what_is_scored():
    assert not set(CALIBRATION["severities"]) & set(SCORING["severities"])
    assert not set(CALIBRATION["seeds"]) & set(SCORING["seeds"])
    calibrated = {(c.severity, c.seed) for c in faultset.cases(CALIBRATION)}
    scored = {(c.severity, c.seed) for c in faultset.cases(SCORING)}
    assert not calibrated & scored
    assert len(list(faultset.cases(SCORING))) == 5 * len(EVERYTHING)


@pytest.mark.parametrize("fault", EVERYTHING, ids=lambda fault: fault.name)
def test_every_case_is_a_pipeline_that_is_allowed_and_a_plant_that_exists(fault):
    for severity in (1, 2, 3, 4):
        case = Case(fault, severity, 7)
        assert case.pipeline("fp32").seed == 7
        assert case.cured("fp32") is not None
        for planted in filter(None, (case.planted or "").split("+")):
            name, _, amount = planted.partition("@")
            assert name in slow_faults.NAMES
            assert float(amount) > 0
    if fault in FAULTS:
        assert (
            fault.plant or case.pipeline("bf16") != case.cured("bf16") or fault.devices == ("gpu",)
        )


def test_a_fault_that_cannot_show_says_why():
    assert "GPU" in faultset.cannot_show(faultset.named("pageable copies"), "cpu", "fp32")
    assert "BF16" in faultset.cannot_show(faultset.named("FP32 where BF16 would do"), "cpu", "fp32")
    assert faultset.cannot_show(faultset.named("launch storm"), "cpu", "fp32") is None
    with pytest.raises(ValueError, match="not in the fault set"):
        faultset.named("bad luck")


def test_severe_faults_are_named_for_real_and_an_interrupted_set_goes_on_where_it_was(tmp_path):
    keep, told = tmp_path / "results.jsonl", []
    names = ["object building", "many small copies", "Python-heavy model", "healthy CNN"]
    score = run_set(
        seeds=1, only=names, keep=keep, progress=lambda done, total, case: told.append(case)
    )
    assert score.n == 4
    assert score.false_alarms == 0
    # On a machine with neighbours a run may get no verdict; none may get a wrong one
    assert all(s.right or s.named == "unsure" for s in score.scored), str(score)
    assert any(s.right for s in score.scored), str(score)
    assert len(told) >= 4
    lines = keep.read_text().splitlines()
    assert len(lines) == 4
    keep.write_text("\n".join(lines) + '\n{"torn')
    again = run_set(seeds=1, only=names[:1], keep=keep)
    assert again.scored == score.scored[:1]
    assert len(keep.read_text().splitlines()) == 5  # nothing was run again


def result(expected, named, **more):
    base = Scored("a fault", 2, 0, expected, named, 1.0, 0.3)
    return replace(base, **more)


def test_the_score_counts_what_it_says():
    score = Score(
        (
            result("input", "input"),
            result("launch", "input"),
            result("compute", "compute"),
            result("compute", "precision"),
            result("compute", "unsure"),
        ),
        {"pageable copies": "shows on a GPU only"},
        "a <CPU>",
        "cpu",
        "scoring",
    )
    assert score.n == 5
    assert score.accuracy == pytest.approx(2 / 5)
    assert score.false_alarms == 1
    assert score.unsure == pytest.approx(1 / 5)
    assert score.matrix["launch"]["input"] == 1
    values = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert {"n", "accuracy", "false_alarms", "unsure", "matrix"} <= set(values)
    assert "a <CPU>" in str(score) and "pageable copies" in str(score)
    assert "<CPU>" not in score._repr_html_()
    assert confusion_figure.draw(score).axes


def test_a_half_or_a_fault_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="half='best'"):
        run_set("best")
    with pytest.raises(ValueError, match="not in the fault set"):
        run_set(only=["bad luck"])


def test_a_score_of_nothing_is_no_division_by_zero():
    empty = Score((), {}, "a CPU", "cpu", "scoring")
    assert (empty.accuracy, empty.unsure, empty.false_alarms) == (None, None, 0)
    assert "No run" in str(empty)
    assert confusion_figure.draw(empty).axes
