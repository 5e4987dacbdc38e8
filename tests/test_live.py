"""The live view's data: what the canvas is sent, at what cost, and what stands in for it."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

from labkit.results.run import Run
from labkit.show import live
from labkit.show.display import FIGURE_TEXT, StaticFigure, in_notebook
from labkit.show.follow import TEETH, BusyShare, Follower, unpack
from labkit.spec import Pipeline

MS = 1_000_000


class Alive:
    """Stands in for the supervisor of a run that goes on."""

    def alive(self):
        return True

    def join(self):
        pass


class Bench:
    """Writes the log that a bench would: `step(i)` waits 5 ms and is busy for 1 ms."""

    def __init__(self, folder, now_ns=10**9, **knobs):
        self.file = open(folder / "events.jsonl", "a")
        self.now = now_ns
        pipeline = Pipeline(**knobs).to_dict()
        self.write("spec", version=1, run="test", pipeline=pipeline)
        self.run = Run(folder, process=Alive())

    def write(self, event, **values):
        self.file.write(json.dumps({"event": event, "t_ns": self.now, **values}) + "\n")
        self.file.flush()

    def machine(self, name="Test CPU"):
        self.write("machine", device="cpu", kind="cpu", name=name, versions={})
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


def test_a_frame_holds_the_true_busy_intervals(bench):
    bench.machine()
    bench.steps(*range(40))
    view = live.LiveView()
    view.update(bench.run)
    teeth, curve, window, span = unpack(view.frame)
    assert window == pytest.approx((0, 2))
    assert span == pytest.approx(0.24)
    np.testing.assert_allclose(teeth, bench.run.busy, atol=1e-6)
    np.testing.assert_allclose(np.diff(teeth), 0.001, atol=1e-6)
    assert curve[:, 1].mean() == pytest.approx(100 / 6, abs=3)


def test_steps_missing_from_the_record_are_a_gap_and_not_idle_time(bench):
    bench.machine()
    bench.steps(*range(50))
    bench.steps(80, wait=200 * MS)  # thirty steps were lost on the way
    bench.steps(*range(81, 140))
    follower = Follower()
    follower.read(bench.run)
    teeth, curve = follower.teeth(), follower.curve()
    gap = np.flatnonzero(np.isnan(teeth[:, 0]))
    assert list(gap) == [50]
    assert np.isnan(teeth[50]).all()
    lost = (curve[:, 0] > 0.3) & (curve[:, 0] < 0.5)
    assert np.isnan(curve[lost, 1]).all()
    known = curve[~np.isnan(curve[:, 1]), 1]
    assert len(known) > 10
    np.testing.assert_allclose(known, 100 / 6, atol=10)


def test_the_view_keeps_up_without_reading_a_step_twice(bench, monkeypatch):
    bench.machine()
    view, added = live.LiveView(), []
    add = Follower._add
    monkeypatch.setattr(Follower, "_add", lambda self, e: (added.append(e["i"]), add(self, e)))
    for start in range(0, 400, 20):
        bench.steps(*range(start, start + 20))
        view.update(bench.run)
    view.update(bench.run)
    assert added == list(range(400))
    assert view.tick == 20  # nothing new: nothing sent


def test_a_frame_stays_small_however_long_the_run():
    share, follower = BusyShare(), Follower()
    for i in range(50_000):
        share.add(i * 0.01 + 0.008, i * 0.01 + 0.01)
    assert len(share.busy) <= BusyShare.BINS
    assert len(share.curve(0.5)) <= BusyShare.BINS
    follower.share = share
    follower.starts.extend(i * 0.01 + 0.008 for i in range(50_000))
    follower.ends.extend(i * 0.01 + 0.01 for i in range(50_000))
    follower.done = follower.ends
    assert len(follower.teeth()) <= TEETH
    np.testing.assert_allclose(share.curve(5)[:, 1], 20, atol=0.1)


def test_hours_between_two_steps_cost_no_more_than_seconds():
    share = BusyShare()
    share.add(1e9, 1e9 + 1)
    assert len(share.busy) <= BusyShare.BINS


@pytest.mark.parametrize(("step_s", "width"), [(0.06, 2), (0.0014, 0.5), (1.2, 5)])
def test_the_window_shows_teeth_whatever_the_step(step_s, width):
    follower = Follower()
    follower.done.extend([step_s * (i + 1) for i in range(100)])
    follower.share.add(100 * step_s - 1e-4, 100 * step_s)
    start, end = follower.window()
    assert end - start == pytest.approx(width)


def test_the_line_says_the_stage_until_something_is_measured(bench):
    view = live.LiveView()
    view.update(bench.run)
    assert view.status == "starting"
    bench.write("stage", name="making images", done=128, total=512)
    view.update(bench.run)
    assert view.status == "making images 128/512"
    bench.write("stage", name="device cpu is in use by run x", done=None, total=None)
    view.update(bench.run)
    assert view.status == "waiting: device cpu is in use by run x"
    assert view.frame == b""


def test_the_line_tells_the_numbers_of_the_run_so_far(bench):
    bench.machine()
    bench.steps(*range(34))
    view = live.LiveView()
    view.update(bench.run)
    step, busy, rate, wait, stated, *_ = view.status.split(" · ")
    assert step == "step 34 of 40"
    assert busy == f"CPU busy {bench.run.utilization:.0%}"
    assert rate == f"{bench.run.throughput:.0f} samples/s"
    assert wait == f"waiting for data {bench.run.wait_ms:.1f} ms a step"
    assert stated == "simulated delay: io_ms=2.5 per item"


def test_a_replay_is_marked_with_the_hardware_it_is_from(bench, tmp_path):
    bench.machine(name="NVIDIA <b>H200</b>")
    bench.steps(*range(30))
    bench.write("done")
    record = Run(bench.run.save(tmp_path / "kept" / "r.jsonl"), recorded=True)
    view = live.LiveView(before=record)
    assert view.overlay_name == "RECORDED · NVIDIA <b>H200</b>"  # shown as text, never as HTML
    assert view.badge == ""
    view.finish(record)
    assert view.badge == "RECORDED · NVIDIA <b>H200</b>"
    assert view.status.startswith("finished: 30 steps")


def test_another_run_starts_a_new_picture(bench, tmp_path):
    bench.machine()
    bench.steps(*range(30))
    view = live.LiveView()
    view.update(bench.run)
    (tmp_path / "next").mkdir()
    view.update(Bench(tmp_path / "next").run)
    assert view.frame == b""
    assert view.status == "starting"


def test_outside_a_notebook_the_progress_is_text_on_stderr(bench, capsys):
    assert not in_notebook()
    viewer = live.RunDisplay()
    bench.machine()
    bench.steps(*range(30))
    viewer.update(bench.run)
    bench.write("done")
    viewer.finish(bench.run)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("finished: 30 steps")


def test_on_a_terminal_the_line_is_rewritten_in_place(bench, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    viewer = live.RunDisplay()
    viewer.next("run 1 of 2 (num_workers=0): ")
    bench.machine()
    bench.steps(*range(30))
    viewer.update(bench.run)
    shown = sys.stderr.getvalue()
    assert shown.startswith("\rrun 1 of 2 (num_workers=0): step 30 of 40")
    assert "\n" not in shown
    bench.write("done")
    viewer.finish(bench.run)
    assert sys.stderr.getvalue().count("\n") == 1


def test_a_run_without_numbers_leaves_a_text_and_no_figure(bench):
    bench.write("error", kind="ValueError", message="bad luck")
    figure = StaticFigure.of(bench.run)
    assert figure._repr_mimebundle_() == {"text/plain": "failed: ValueError: bad luck."}


def test_the_final_figure_is_a_png_with_a_text_that_no_run_changes(bench):
    bench.machine()
    bench.steps(*range(30))
    bench.write("done")
    data, metadata = StaticFigure.of(bench.run)._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert data["text/plain"] == FIGURE_TEXT
    assert metadata["image/png"]["width"] <= 900


def test_the_canvas_and_the_figure_that_replaces_it_have_one_text():
    bundle = live.LiveView()._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == FIGURE_TEXT


def test_the_live_view_needs_no_torch():
    code = "import labkit.show.live, labkit.show.panel, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
