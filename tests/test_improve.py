"""The autopilot: what it may try, what it keeps, when it stops, and what it says of the rest."""

import json
import math
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.diagnosis.findings import Finding, Remedy
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.hardware import Machine
from labkit.tuning.improve import Improver
from labkit.tuning.search_result import Ladder
from labkit.tuning.trial import Outcome

# -- the climb, on a made-up machine ---------------------------------------------------------------

START = lk.Pipeline().to_dict()


def loss(name, lost, *changes, price=1):
    """A finding whose remedies make these changes."""
    remedies = tuple(Remedy("", "", price=price, changes=change) for change in changes)
    return worded(Finding(name, name, lost, remedies=remedies))


HEALTHY = worded(Finding("compute", "the_device_is_the_limit"))
FEED = loss("input", 0.6, {"num_workers": 6})
HALF = loss("precision", 0.3, {"precision": "bf16"}, price=2)
FUSED = loss("launch", 0.2, {"fused_optimizer": True})
TINY = loss("launch", 0.04, {"compile": "default"})


def workers(knobs):
    return 100 * min(6, max(1, knobs["num_workers"]))


def falling(knobs):
    return [2.0, 1.0, 1.0]


def climbed(rate, found, losses=falling, start=START, **more):
    """Return the ladder of a climb: `rate(knobs)` is measured, and `found(knobs)` is on top."""

    def measure(knobs, _rate, whole=False):
        verdict = Diagnosis(tuple(found(knobs)), 1.0, "fake")
        run = SimpleNamespace(
            throughput=rate(knobs),
            spread=0.02,
            loss=losses(knobs),
            not_applied={},
            machine=Machine("cpu", "cpu"),
            diagnose=lambda: verdict,
            pipeline=SimpleNamespace(simulated_delay="io_ms=4 per item"),
        )
        return Outcome(run.throughput, run=run)

    ladder = Ladder("fake", dict(start), lk.Pipeline(), line="a CPU")
    bench = SimpleNamespace(measure=measure, each=None)
    try:
        return Improver(ladder, bench, **more).run()
    except KeyboardInterrupt:
        return ladder


def feed_then(*then):
    return lambda knobs: [FEED] if knobs["num_workers"] < 6 else then


def always(*findings):
    return lambda knobs: findings


def test_what_gains_is_kept_one_after_the_other_until_the_device_is_the_limit():
    def rate(knobs):
        return workers(knobs) * (1.4 if knobs["precision"] == "bf16" else 1)

    def found(knobs):
        return feed_then(HALF if knobs["precision"] == "fp32" else HEALTHY)(knobs)

    climb = climbed(rate, found, may_change=["precision"])
    assert climb.changes == {"num_workers": 6, "prefetch_factor": 2, "precision": "bf16"}
    assert climb.speedup == pytest.approx(8.4) and len(climb.tried) == 3
    assert climb.stopped == "the device is the limit (compute)" and not climb.interrupted
    assert "num_workers=6" in climb.snippet and "torch.autocast(" in climb.snippet
    assert json.dumps(climb.to_dict())
    assert "measured on a CPU" in repr(climb) and "simulated delay: io_ms=4" in repr(climb)


def test_losses_that_are_not_finite_undo_a_change_and_what_gains_nothing_is_a_null_result():
    climb = climbed(
        lambda knobs: 300 if knobs["precision"] == "bf16" else 100,
        always(HALF, FUSED, TINY),
        lambda knobs: [math.nan if knobs["precision"] == "bf16" else 1.0],
        may_change=["precision"],
    )
    assert climb.tried[1].said == "undone: the losses are not finite"
    assert climb.tried[2].said == "no gain"
    assert len(climb.tried) == 3  # neither is tried again, nor what loses 4 %
    assert climb.changes == {} and "no setting is expected to gain" in climb.stopped


def test_twelve_runs_and_an_interrupt_end_it_with_the_best_so_far():
    endless = always(*(loss("launch", 0.3, {"prefetch_to_device": n + 1}) for n in range(20)))
    climb = climbed(lambda knobs: 100, endless)
    assert climb.stopped == "12 runs are made" and len(climb.tried) == 12

    def stopped(knobs):
        if knobs["fused_optimizer"]:
            raise KeyboardInterrupt
        return workers(knobs)

    climb = climbed(stopped, feed_then(FUSED))
    assert climb.interrupted and climb.speedup == 6 and climb.changes["num_workers"] == 6
    assert "interrupted" in repr(climb)


# -- in earnest ------------------------------------------------------------------------------------


@pytest.mark.measures
@pytest.mark.slow
def test_a_pipeline_is_cured_where_workers_cure_it_and_its_losses_are_the_same(monkeypatch):
    monkeypatch.setattr("labkit.tuning.set_up.IMPROVE_S", 0.8)
    monkeypatch.setattr("labkit.tuning.improve.MOST_RUNS", 3)
    remote = lk.Pipeline(dataset="sleep", prep_ms=50, batch_size=8, depth=1, width=8)
    ladder = lk.improve(remote)
    assert ladder.changes.get("num_workers", 0) >= 2 and ladder.speedup > 1.5, ladder
    first = ladder.tried[0].runs[0]
    best = ladder.winner.runs[-1]
    count = min(first.steps, best.steps)
    assert best.loss[:count] == pytest.approx(first.loss[:count], rel=1e-4)
    assert best.xray_facts, best.no_xray


def test_what_is_trained_is_never_changed():
    climb = climbed(workers, always(HALF, FUSED))
    assert "may_change={'precision'}" in climb.notes[0] and len(climb.notes) == 3
    assert [each.what for each in climb.tried] == ["start", "fused_optimizer=True"]
