"""The autopilot: what it may try, what it keeps, and when it stops."""

import json
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.diagnosis.findings import Diagnosis, Finding, Remedy
from labkit.diagnosis.wording import with_advice
from labkit.results.hardware import Machine
from labkit.tuning.search import Improver
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import Outcome

START = lk.Pipeline().to_dict()


def loss(name, lost, *changes):
    """A finding whose remedies make these changes."""
    remedies = tuple(Remedy("", "", changes=change) for change in changes)
    return with_advice(Finding(name, "", lost_share=lost, remedies=remedies))


HEALTHY = with_advice(Finding("compute", ""))
FEED = loss("input", 0.6, {"num_workers": 6})
HALF = loss("precision", 0.3, {"precision": "bf16"})
FUSED = loss("launch", 0.2, {"fused_optimizer": True})


def climbed(rate, found):
    """Return the ladder of a climb: `rate(knobs)` is measured, and `found(knobs)` is on top."""

    def measure(knobs, _rate, whole=False):
        verdict = Diagnosis(findings=tuple(found(knobs)), source="fake")
        run = SimpleNamespace(
            throughput=rate(knobs),
            machine=Machine("cpu", "cpu"),
            diagnose=lambda: verdict,
            pipeline=SimpleNamespace(simulated_delay="io_ms=4 per item"),
        )
        return Outcome(run.throughput, run=run)

    ladder = Tuning("fake", dict(START), lk.Pipeline())
    try:
        return Improver(
            ladder, SimpleNamespace(measure=measure), Machine("cpu", "cpu", "a CPU")
        ).run()
    except KeyboardInterrupt:
        return ladder


def rate(knobs):
    return 100 * min(6, max(1, knobs["num_workers"])) * (1.4 if knobs["fused_optimizer"] else 1)


def test_what_gains_is_kept_one_after_the_other_until_nothing_is_left():
    def found(knobs):
        return [FEED] if knobs["num_workers"] < 6 else [FUSED, HALF, HEALTHY]

    climb = climbed(rate, found)
    assert climb.changes == {"num_workers": 6, "prefetch_factor": 2, "fused_optimizer": True}
    assert climb.speedup == pytest.approx(8.4) and len(climb.tried) == 3  # never the training
    assert "nothing is left to try" in climb.stopped and not climb.interrupted
    assert "num_workers=6" in climb.snippet and "fused=True" in climb.snippet
    assert json.dumps(climb.to_dict())
    assert "measured on a CPU" in repr(climb) and "simulated delay: io_ms=4" in repr(climb)


def test_what_gains_nothing_is_a_null_result_and_an_interrupt_keeps_the_best_so_far():
    climb = climbed(lambda knobs: 100, lambda knobs: [FEED, FUSED])
    assert climb.changes == {} and len(climb.tried) == 3

    def stopped(knobs):
        if knobs["fused_optimizer"]:
            raise KeyboardInterrupt
        return rate(knobs)

    climb = climbed(stopped, lambda knobs: [FEED, FUSED])
    assert climb.interrupted and climb.speedup == 6 and climb.changes["num_workers"] == 6
    assert "interrupted" in repr(climb)


@pytest.mark.measures
@pytest.mark.slow
def test_a_pipeline_is_cured_where_workers_cure_it(monkeypatch):
    monkeypatch.setattr("labkit.tuning.set_up.IMPROVE_S", 0.8)
    monkeypatch.setattr("labkit.tuning.search.MOST_TRIALS", 2)
    remote = lk.Pipeline(dataset="sleep", prep_ms=50, batch_size=8, depth=1, width=8)
    ladder = lk.improve(remote)
    assert ladder.changes.get("num_workers", 0) >= 2 and ladder.speedup > 1.5, ladder
