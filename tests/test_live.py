"""The live view's data: what the canvas is sent, at what cost, and what stands in for it."""

import io
import json
import sys
from unittest.mock import Mock

import numpy as np
import pytest

from labkit import Run
from labkit.view.display import OVER, in_notebook
from labkit.view.live import LiveView, RunDisplay
from labkit.view.style import PARTS

MS = 1_000_000


class Bench:
    """Writes the log that a bench would: `steps(i)` waits 5 ms and is busy for 1 ms."""

    def __init__(self, folder, **knobs):
        self.file = open(folder / "events.jsonl", "a", buffering=1)
        self.now = 10**9
        self.write("spec", version=1, run="test", pipeline=knobs)
        self.run = Run(folder, process=Mock())  # which is alive

    def write(self, event, **values):
        self.file.write(json.dumps({"event": event, "t_ns": self.now, **values}) + "\n")

    def machine(self):
        self.write("machine", device="cpu", kind="cpu", name="Test CPU", versions={})
        self.write("begin", warmup=3)

    def steps(self, *numbers, wait=5 * MS, busy=1 * MS):
        for i in numbers:
            ready = self.now + wait
            stamps = [self.now, ready, ready, ready + busy]
            self.write("step", i=i, t=stamps, n=16, loss=1.0)
            self.now = stamps[-1]


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path, steps=40, io_ms=2.5)
    yield bench
    bench.file.close()


@pytest.fixture
def trained(bench):
    bench.machine()
    bench.steps(*range(34))
    return bench


# -- the picture ---------------------------------------------------------------------------------


def test_a_frame_holds_the_true_busy_intervals(trained):
    view = LiveView()
    view.update(trained.run)
    frame = view.frame
    rows = np.frombuffer(frame["rows"], np.float32).reshape(34, -1)
    curve = np.frombuffer(frame["curve"], np.float32).reshape(-1, 2)
    assert (frame["steps"], frame["length"]) == (34, pytest.approx(0.204))
    assert (frame["start"], frame["end"]) == (0, 2)
    np.testing.assert_allclose(rows[:, :6], trained.run.stamps, atol=1e-6)
    np.testing.assert_allclose(rows[1:, 6:], [[5, 0, 1, 0]] * 33, atol=1e-4)
    assert np.isnan(rows[0, 6:]).all()  # what was before the first step, nobody knows
    assert frame["means"] == pytest.approx({"wait": 5, "copy": 0, "compute": 1, "other": 0})
    assert curve[:, 1].mean() == pytest.approx(100 / 6, abs=3)


def test_the_canvas_has_the_colours_of_the_figures():
    for part, (name, colour) in PARTS.items():
        assert f'{part}: ["{name}", "{colour}"]' in LiveView._esm


# -- the line ------------------------------------------------------------------------------------


def test_the_line_says_the_stage_and_then_the_numbers_of_the_run_so_far(bench):
    view = LiveView()
    run = bench.run
    view.update(run)
    assert view.status == "starting"
    bench.write("stage", name="making images", done=128, total=512)
    view.update(run)
    assert view.status == "making images 128/512"
    bench.write("stage", name="waiting: device cpu is in use by run x")
    view.update(run)
    assert view.status == "waiting: device cpu is in use by run x" and not view.frame
    bench.machine()
    bench.steps(*range(34))
    view.update(run)
    assert view.status.split(" · ")[:5] == [
        "step 34",
        f"CPU busy {run.utilization:.0%}",
        f"{run.throughput:.0f} samples/s",
        "waiting for data 5.0 of 6.0 ms a step",
        "simulated delay: io_ms=2.5 per item",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_outside_a_notebook_the_progress_is_a_line_on_stderr(trained, monkeypatch, terminal):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    assert not in_notebook()
    shown = RunDisplay()
    shown.update(trained.run)
    going = f"{OVER}step 34" if terminal else ""  # rewritten in place
    assert stderr.getvalue().startswith(going) and "\n" not in stderr.getvalue()
    trained.write("done")
    shown.finish(trained.run)
    assert stderr.getvalue().count("\n") == 1
    assert "finished: " in stderr.getvalue()
