"""The autopilot: what it may try, what it keeps, when it stops, and what it says of the rest."""

import json
import math
import time
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.hardware import Machine
from labkit.tuning.improve import Improver, lacking
from labkit.tuning.search_result import Ladder
from labkit.tuning.set_up import improver
from labkit.tuning.trial import Outcome
from labkit.view.running import rung_line

# -- the climb, on a made-up machine ---------------------------------------------------------------

torch = pytest.importorskip("torch")
START = {
    "num_workers": 0,
    "prefetch_factor": None,
    "pin_memory": False,
    "batch_size": 16,
    "persistent_workers": False,
    "precision": "fp32",
    "fused_optimizer": False,
    "compile": None,
}


def loss(name, lost, *changes, price=1):
    """A finding whose remedies make these changes."""
    remedies = tuple(Remedy("", "", price=price, changes=change) for change in changes)
    return worded(Finding(name, name, lost, remedies=remedies))


HEALTHY = worded(Finding("compute", "the_device_is_the_limit"))
FEED = loss("input", 0.6, {"num_workers": 6})
HALF = loss("precision", 0.3, {"precision": "bf16"}, price=2)
FUSE = loss("launch", 0.2, {"fused_optimizer": True}, {"compile": "default"})


class World:
    """A bench on which `rate(knobs)` is measured, and `found(knobs)` is on top."""

    def __init__(self, rate, found, losses=lambda knobs: [2.0, 1.0, 1.0], spread=0.02):
        self.rate = rate
        self.found = found
        self.losses = losses
        self.spread = spread
        self.count = 0
        self.asked = []

    def measure(self, knobs, _expected):
        self.count += 1
        self.asked.append(dict(knobs))
        rate = self.rate(knobs)
        if isinstance(rate, str):
            return Outcome(None, rate, None)
        found = Diagnosis(tuple(self.found(knobs)), 1.0, "fake")
        run = SimpleNamespace(
            throughput=rate,
            spread=self.spread,
            loss=self.losses(knobs),
            not_applied={},
            machine=Machine("cpu", "cpu"),
            diagnose=lambda: found,
            telemetry=[],
            alias=None,
            pipeline=SimpleNamespace(simulated_delay="io_ms=4 per item"),
        )
        return Outcome(rate, None, run)


def workers(knobs):
    return 100 * min(6, max(1, knobs["num_workers"]))


def climbed(world, start=START, hopes=None, lacks=lambda *_: None, **more):
    """Return the ladder; `hopes` are {knob: times the throughput} that prediction knows of."""

    def forecast(run, here, changes):
        if "num_workers" in changes:
            value = workers(changes) * run.throughput / workers(here.to_dict())
            return Estimate(value, value / 1.3, value * 1.3)
        hope = (hopes or {}).get(next(iter(changes)))
        return hope and Estimate(1, 0.9, 1.1).times(run.throughput * hope)

    ladder = Ladder("fake", dict(start), line="a CPU")
    return Improver(ladder, world, forecast, lacks=lacks, **more).run()


def feed_then(*then):
    return lambda knobs: [FEED] if knobs["num_workers"] < 6 else then


def no_compiler(changes, *_):
    return "no compiler" if "compile" in changes else None


def said(climb):
    return {rung.what: rung.said for rung in climb.tried}


def test_what_gains_is_kept_one_after_the_other_until_the_device_is_the_limit():
    def found(knobs):
        return [HALF] if knobs["precision"] == "fp32" else [HEALTHY]

    world = World(
        lambda k: workers(k) * (1.4 if k["precision"] == "bf16" else 1),
        lambda k: [FEED] if k["num_workers"] < 6 else found(k),
    )
    climb = climbed(world, hopes={"precision": 1.3}, may_change=["precision"])
    assert climb.changes == {"num_workers": 6, "prefetch_factor": 2, "precision": "bf16"}
    assert climb.speedup == pytest.approx(8.4) and world.count == 3
    assert climb.stopped == "the device is the limit (compute)" and not climb.interrupted
    assert "(dataset, batch_size=16, num_workers=6)" in climb.snippet
    assert "\nmodel.forward = autocast(model.forward)" in climb.snippet
    assert climb.script() == f"{climb.snippet}\n"
    assert "8.40x the start" in repr(climb) and json.dumps(climb.to_dict())
    assert "measured on a CPU" in repr(climb) and "simulated delay: io_ms=4" in repr(climb)


def test_what_is_advised_beside_the_search_is_tried_with_the_settings_own_expectation():
    crowded = START | {"num_workers": 12, "prefetch_factor": 2}
    six = loss("input", 0.6, {"num_workers": 6})
    world = World(
        lambda k: 180 if k["num_workers"] == 6 else 100,
        lambda k: [six] if k["num_workers"] > 6 else [HEALTHY],
    )
    climb = climbed(world, crowded)
    assert climb.changes == {"num_workers": 6} and world.count == 2
    assert climb.tried[1].expected == pytest.approx((100, 100 / 1.3, 130))  # not the finding's 2.5


def test_what_no_run_has_measured_is_promised_nothing_and_tried_all_the_same():
    world = World(lambda k: 65 if k["fused_optimizer"] else 100, lambda k: [FUSE])
    climb = climbed(world, lacks=no_compiler)
    assert climb.tried[1].expected is None and climb.changes == {}
    assert "not predicted" in repr(climb) and climb.to_dict()["trials"][1]["predicted"] is None
    assert "nothing predicts it, measured 0.65x" in rung_line(climb.tried[1])


def test_losses_that_augmentation_parts_undo_no_change_of_the_loader_and_judge_the_others():
    def augmented():
        drawn = iter([0.0, 0.1, 0.2, 0.1])
        return lambda knobs: (1.0 + next(drawn) + torch.tensor([1.0, 0.0, 0.0])).tolist()

    climb = climbed(World(workers, feed_then(HEALTHY), augmented()))
    assert climb.changes["num_workers"] == 6 and abs(climb.tried[1].loss_change) > 0.02

    world = World(lambda k: 130 if k["fused_optimizer"] else 100, lambda k: [FUSE], augmented())
    climb = climbed(world, lacks=no_compiler)
    assert climb.changes == {"fused_optimizer": True}  # no further apart than two unchanged runs
    assert len(climb.tried[0].runs) == 2

    def broken(knobs):
        return [3.0, 2.0, 2.0] if knobs["fused_optimizer"] else [2.0, 1.0, 1.0]

    climb = climbed(World(world.rate, lambda k: [FUSE], broken), lacks=no_compiler)
    assert said(climb)["fused_optimizer=True"].startswith("undone: the losses differ by +75")


def test_losses_that_are_not_finite_undo_a_change_and_what_gains_nothing_is_a_null_result():
    def losses(knobs):
        return [math.nan if knobs["precision"] == "bf16" else 1.0]

    def rate(knobs):
        return 300 if knobs["precision"] == "bf16" else 100

    world = World(rate, lambda knobs: [HALF, FUSE], losses)
    climb = climbed(world, hopes={"precision": 3, "compile": 1.02}, may_change=["precision"])
    assert said(climb)["precision='bf16'"] == "undone: the losses are not finite"
    assert said(climb)["fused_optimizer=True"] == "no gain"  # expected by what is lost: 1.11x
    assert not any(knobs["compile"] for knobs in world.asked)  # expected to gain 2 %
    assert climb.changes == {} and "no setting is expected to gain" in climb.stopped
    assert "nothing was changed" in repr(climb)
    assert len(climb.tried) == 3  # neither is tried again


def test_a_small_gain_is_measured_again_and_one_lucky_run_is_none():
    lucky = iter([100, 106, 101, 99])
    world = World(lambda knobs: next(lucky), lambda knobs: [FUSE])
    climb = climbed(world, hopes={"compile": 1.0, "fused_optimizer": 1.06})
    assert said(climb)["fused_optimizer=True"] == "no gain" and world.count == 4
    world = World(lambda k: 106 if k["fused_optimizer"] else 100, lambda k: [FUSE])
    climb = climbed(world, hopes={"compile": 1.0, "fused_optimizer": 1.06})
    assert climb.changes == {"fused_optimizer": True} and world.count == 4


def test_what_is_trained_and_what_the_device_cannot_do_is_never_changed():
    world = World(workers, lambda knobs: [HALF, FUSE])
    no = "no compiler"
    climb = climbed(world, lacks=lambda changes, *_: no if "compile" in changes else None)
    assert "may_change={'precision'}" in climb.reasons["precision='bf16'"]
    assert no in climb.reasons["compile='default'"]
    assert {(k["precision"], k["compile"], k["batch_size"]) for k in world.asked} == {
        ("fp32", None, 16)
    }
    old = Machine("cuda:0", "gpu", compute_capability="7.0")
    assert "CUDA" in lacking({"pin_memory": True}, Machine("cpu"), {})
    assert "8.0" in lacking({"precision": "bf16"}, old, {})
    for bad, text in (
        ({"may_change": ["depth"]}, "may_change=.'depth'.: allow any of batch_size"),
        ({"pipeline_or_dataset": [1, 2], "model": torch.nn.Linear}, "model= goes with step="),
        ({"step": print}, "goes with a dataset of your own"),
        ({"pipeline_or_dataset": 42}, "not a dataset"),
    ):
        with pytest.raises(ValueError, match=text):
            lk.improve(**bad)


def test_twelve_runs_the_time_and_stop_end_it_with_the_best_so_far(monkeypatch):
    pairs = [loss("launch", 0.3, {"prefetch_to_device": n + 1}) for n in range(20)]
    world = World(lambda knobs: 100, lambda knobs: pairs)
    assert climbed(world).stopped == "12 runs are made" and world.count == 12

    now = iter(range(0, 10_000, 8))
    monkeypatch.setattr("labkit.tuning.improve.time.monotonic", lambda: next(now))
    climb = climbed(World(lambda knobs: 100, lambda knobs: pairs), seconds=50)
    assert climb.stopped == "the 50 s are used up" and 1 < len(climb.tried) < 12
    assert climb.seconds < 60
    monkeypatch.undo()

    def stopped(knobs):
        if knobs["fused_optimizer"]:
            raise KeyboardInterrupt
        return workers(knobs)

    climb = climbed(World(stopped, feed_then(FUSE)), hopes={"compile": 1.0})
    assert climb.interrupted and climb.speedup == 6 and len(climb.tried) == 2
    assert "interrupted" in repr(climb)


def test_a_start_that_was_only_cold_is_found_out():
    rates = iter([100, 200, 198])
    world = World(lambda knobs: next(rates), lambda k: [HEALTHY] if k["num_workers"] else [FEED])
    climb = climbed(world, check_start=True)
    assert climb.changes == {} and "measured again" in climb.tried[1].said


# -- in earnest ------------------------------------------------------------------------------------


class Remote:
    """Items that wait 3 ms each, as from a slow drive."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((8,), index / 4000), index % 2


def step(model, optimizer, batch):
    inputs, labels = batch
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def forgets(batch):
    return batch[0].sum()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.measures
@pytest.mark.slow
def test_a_loop_of_ones_own_is_cured_where_workers_cure_it_and_its_losses_are_the_same(
    monkeypatch,
):
    monkeypatch.setattr("labkit.tuning.set_up.IMPROVE_S", 0.8)
    monkeypatch.setattr("labkit.tuning.improve.MOST_RUNS", 3)
    parts = {"model": torch.nn.Linear(8, 2), "optimizer": sgd}
    ladder = lk.improve(Remote(), step=step, batch_size=8, seconds=120, **parts)
    assert ladder.changes.get("num_workers", 0) >= 2 and ladder.speedup > 1.5, ladder
    assert isinstance(ladder, Ladder) and len(ladder.kept) >= 2
    first = ladder.tried[0].runs[0]
    best = ladder.winner.runs[-1]
    count = min(first.steps, best.steps)
    assert best.loss[:count] == pytest.approx(first.loss[:count], rel=1e-4)
    with pytest.raises(RuntimeError, match="did not call the model"):
        lk.improve(Remote(), step=forgets, **parts)


def telling_step(model, optimizer, batch):
    """Train, and tell as the loss how many bytes an output has, and 10 more where Adam is fused."""
    step(model, optimizer, batch)
    return model(batch[0]).element_size() + 10 * bool(optimizer.param_groups[0]["fused"])


@pytest.mark.slow
def test_settings_of_the_step_reach_the_readers_own_model_and_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    parts = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    made = improver(Remote(), (), None, 4, step=telling_step, **parts)
    knobs = made.found.start | {"num_workers": 4, "prefetch_factor": 2}
    changed = {"fused_optimizer": True, "channels_last": True, "precision": "bf16"}
    rate, error, run = made.bench.measure(knobs | changed, 300)
    for knob in run.not_applied:  # a machine that stands still finds BF16 hopelessly slow
        assert knob == "precision" and changed.pop(knob)
    assert rate and not error and {k: getattr(run.pipeline, k) for k in changed} == changed
    assert set(run.loss) == {12 if "precision" in changed else 14}
    assert run.xray_facts and run.xray_facts["fixed_share"] is not None, run.no_xray
