"""A sweep over several devices: one run at a time on each, taken when it is free."""

import pytest

from labkit.results.sweep import Sweep
from labkit.spec import Pipeline


class StandIn:
    """A run that takes so many looks to end, and counts who is on a device."""

    on: dict = {}
    most: dict = {}

    def __init__(self, pipeline, looks):
        self.asked, self.left, self.outcome = pipeline, looks, "running"
        device = pipeline.device
        self.on[device] = self.on.get(device, 0) + 1
        self.most[device] = max(self.most.get(device, 0), self.on[device])

    @property
    def running(self):
        self.left -= 1
        return self.left > 0

    def wait(self):
        self.outcome = "finished"
        self.on[self.asked.device] -= 1

    def stop(self):
        self.outcome = "stopped"
        self.on[self.asked.device] -= 1


@pytest.fixture
def stand_ins():
    StandIn.on, StandIn.most = {}, {}
    looks = iter([9, 2, 2, 2, 2])
    return lambda pipeline: StandIn(pipeline, next(looks))


def swept(**more):
    return Sweep(Pipeline(), {"batch_size": [1, 2, 3, 4, 5]}, **more)


def test_a_free_device_takes_the_next_setting(stand_ins):
    sweep = swept(devices=["cuda:0", "cuda:1"]).measure(stand_ins, period_s=0)
    assert [run.asked.batch_size for run in sweep] == [1, 2, 3, 4, 5]
    # the first run is long: meanwhile the other device does all the rest
    assert [run.asked.device for run in sweep] == ["cuda:0"] + ["cuda:1"] * 4
    assert StandIn.most == {"cuda:0": 1, "cuda:1": 1}
    assert all(run.outcome == "finished" for run in sweep)


def test_without_devices_runs_follow_each_other_where_the_pipeline_says(stand_ins):
    sweep = swept().measure(stand_ins, period_s=0)
    assert {run.asked.device for run in sweep} == {"auto"} and StandIn.most == {"auto": 1}


def test_an_interrupt_stops_what_runs_and_keeps_what_has_ended(stand_ins):
    sweep, seen = swept(devices=["cuda:0", "cuda:1"]), []

    def interrupts(run):
        seen.append(run)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.measure(stand_ins, interrupts, period_s=0)
    assert not any(StandIn.on.values())
    assert all(run.outcome in ("finished", "stopped") for run in sweep)
    assert len(sweep) == 0 or sweep[-1].outcome == "finished"


@pytest.mark.parametrize(
    "devices", ["cuda:0", [], ["cuda:0", "cuda:0"], ["cuda", "cuda:0"], ["tpu"]]
)
def test_bad_devices_are_refused_before_anything_runs(devices):
    with pytest.raises(ValueError, match="device"):
        swept(devices=devices)


def test_devices_and_the_device_knob_exclude_each_other():
    with pytest.raises(ValueError, match="swept already"):
        Sweep(Pipeline(), {"device": ["cpu"]}, devices=["cpu"])
