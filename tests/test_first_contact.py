"""What a first real GPU meets, told by functions, cells and logs: nothing here needs a card."""

from pathlib import Path

import numpy as np
import pytest
import torch
from played_gpu import host_steps
from played_gpu import log as logged

import labkit as lk
from labkit import course
from labkit.stamps import timeline
from labkit.stamps.step_ring import FinishedStep

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def test_no_notebook_or_challenge_takes_a_card_that_torch_sees_for_one_that_it_can_use():
    """Nor asks torch, which hears of cards for which it may have no kernels."""
    for path in [*Path(course.__file__).parent.rglob("*.py"), *NOTEBOOKS.glob("*.ipynb")]:
        text = path.read_text(encoding="utf-8")
        assert "is_available(" not in text and "current_accelerator(" not in text, path


# -- an Apple GPU, whose own times a watched loop does not have ------------------------------------

MAC = {"device": "mps:0", "kind": "gpu", "name": "Apple GPU (M2)", "cpu_cores": 8, "versions": {}}
WATCHED = {"watched": {"loader": "DataLoader", "length": None}}


@pytest.fixture
def on_a_mac(tmp_path):
    def run(*events, wait_ms=2.0):
        steps = host_steps(wait_ms, 8.0)
        return logged(tmp_path, MAC, {"num_workers": 0}, *events, *steps, spec=WATCHED)

    return run


def test_a_loop_watched_on_a_mac_has_a_rate_and_a_busy_share_only_where_it_waits_for_the_device(
    on_a_mac,
):
    run = on_a_mac()
    assert run.utilization is None
    assert "1600 samples/s, GPU busy unknown, step 10.0 ms" in run.numbers
    assert "too few" not in run.numbers
    assert lk.cost(run, usd_per_hour=1.0).usd_per_epoch > 0
    waits = on_a_mac({"event": "clock", "why": "events say -3 ms of what took 1 ms at most"})
    assert waits.utilization == pytest.approx(0.8)


@pytest.mark.parametrize("wait_ms, named", [(0.1, "unsure"), (9.0, "input")])
def test_the_verdict_on_such_a_loop_is_of_the_host_and_says_so(wait_ms, named, on_a_mac):
    found = on_a_mac(wait_ms=wait_ms).diagnose()
    assert found.bottleneck == named and found.confidence <= 0.5
    assert "the device was not timed" in str(found.table()).lower()
    for claim in ("upper bound", "first kernel", "the device computes"):
        assert claim not in str(found.table())
    assert named == "input" or "lk.headroom" in found.advice


# -- cards of other kinds --------------------------------------------------------------------------


class PlayedEvent:
    """An event that passes when it is told, on a device's clock that may run fast."""

    def __init__(self, passes_ns, fast):
        self.device_ns = passes_ns * (1 + fast)

    def query(self):
        return True

    def elapsed_time(self, later):
        return float(np.float32((later.device_ns - self.device_ns) / 1e6))  # as CUDA's


@pytest.mark.parametrize(
    "queue_ns, fast, most_off_us",
    [
        (1_000_000_000, 0.0, 1.0),  # a queue that is never empty
        (0, 1e-5, 10.0),
        (0, -1e-5, 10.0),
    ],
)
def test_a_devices_clock_stays_tied_to_the_hosts(queue_ns, fast, most_off_us, monkeypatch):
    step_ns = 200_000_000
    off_us = []

    def write(step):
        off_us.append((step.device[2] - step.stamps[3]) / 1e3)

    clock = timeline.DeviceClock(torch.device("cpu"), write)
    for number in range(6_000):  # 20 minutes
        passes = step_ns * (number + 1)
        issued = passes - (queue_ns if number else 0)
        start = timeline.Mark(PlayedEvent(passes, fast), issued)
        end = timeline.Mark(PlayedEvent(passes + step_ns // 2, fast), issued)
        clock.in_flight.append((FinishedStep(number, (passes,) * 4, 1, 0.0), (start, end)))
        monkeypatch.setattr(timeline, "now_ns", lambda now=passes + step_ns: now)
        clock.collect()
    assert len(off_us) == 6_000 and max(map(abs, off_us)) < most_off_us
