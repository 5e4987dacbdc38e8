"""The live view's data: what the canvas is sent, at what cost, and what stands in for it."""

import html
import io
import json
import linecache
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Waiting

import labkit
from labkit.results.library import recorded
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.view import display, style
from labkit.view.display import in_notebook
from labkit.view.live import LiveView, RunDisplay
from labkit.view.live_frame import FrameHeader, StepRow
from labkit.view.watch_shown import marked_cells

MS = 1_000_000


class Alive:
    """Stands in for the supervisor of a run that goes on."""

    def alive(self):
        return True

    def join(self):
        pass


class Bench:
    """Writes the log that a bench would: `steps(i)` waits 5 ms and is busy for 1 ms."""

    def __init__(self, folder, now_ns=10**9, **knobs):
        self.file = open(folder / "events.jsonl", "a")
        self.now = now_ns
        self.write("spec", version=1, run="test", pipeline=Pipeline(**knobs).to_dict())
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


@pytest.fixture
def trained(bench):
    bench.machine()
    bench.steps(*range(34))
    return bench


def unpack(frame):
    """Return what a frame holds: its header, rows of steps and curve."""
    numbers = np.frombuffer(frame, np.float32)
    begin = len(FrameHeader._fields)
    header = FrameHeader(*numbers[:begin])
    end = begin + len(StepRow._fields) * int(header.rows)
    rows = StepRow(*numbers[begin:end].reshape(-1, len(StepRow._fields)).T)
    assert len(numbers) == end + 2 * header.curve_points
    return header, rows, numbers[end:].reshape(-1, 2)


# -- the picture ---------------------------------------------------------------------------------


def test_a_frame_holds_the_true_busy_intervals(trained):
    view = LiveView()
    view.update(trained.run)
    header, rows, curve = unpack(view.frame)
    run = trained.run
    start = header.start_s + header.start_rest_s
    assert (start, header.window_s, header.length_s) == pytest.approx((0, 2, 0.204))
    assert (header.steps, header.rows) == (34, 34)
    np.testing.assert_allclose(np.column_stack(rows[:2]), run.busy, atol=1e-6)
    np.testing.assert_allclose(np.column_stack(rows[2:6]), run.stamps[:, :4], atol=1e-6)
    np.testing.assert_allclose(np.column_stack(rows[6:])[1:], [[5, 0, 0]] * 33, atol=1e-4)
    means = (header.wait_ms, header.copy_ms, header.compute_ms, header.other_ms)
    assert means == pytest.approx((5, 0, 1, 0), abs=1e-4)
    assert np.isnan(rows.wait_ms[0])  # what was before the first step, nobody knows
    assert curve[:, 1].mean() == pytest.approx(100 / 6, abs=3)


def names_in(script, constant):
    """Return the texts in an array of JavaScript."""
    [array] = re.findall(rf"{constant} = \[(.*?)\]", script, re.DOTALL)
    return tuple(re.findall(r'"(\w+)"', array))


def test_the_page_reads_a_frame_by_the_names_that_the_kernel_packs_it_by():
    script = LiveView._esm
    assert names_in(script, "FRAME_HEADER") == FrameHeader._fields
    assert names_in(script, "STEP_ROW") == StepRow._fields
    for part, (name, colour) in style.PARTS.items():
        assert f'{part}: ["{name}", "{colour}"]' in script


# -- the line ------------------------------------------------------------------------------------


def test_the_line_says_the_stage_and_then_the_numbers_of_the_run_so_far(bench):
    view = LiveView()
    run = bench.run
    view.update(run)
    assert view.status == "starting"
    for line, stage in {
        "making images 128/512": {"name": "making images", "done": 128, "total": 512},
        "waiting: device cpu is in use by run x": {
            "name": "device cpu is in use by run x",
            "waiting": True,
        },
    }.items():
        bench.write("stage", **stage)
        view.update(run)
        assert view.status == line and view.frame == b""
    bench.machine()
    bench.steps(*range(34))
    view.update(run)
    assert view.status.split(" · ")[:5] == [
        "step 34 of 40",
        f"CPU busy {run.utilization:.0%}",
        f"{run.throughput:.0f} samples/s",
        f"waiting for data {run.wait_ms:.1f} of {run.step_ms:.1f} ms a step",
        "simulated delay: io_ms=2.5 per item",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_outside_a_notebook_the_progress_is_a_line_on_stderr(trained, monkeypatch, terminal):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    assert not in_notebook()
    shown = RunDisplay()
    shown.next("run 1 of 2: ")
    shown.update(trained.run)
    going = "\rrun 1 of 2: step 34 of 40" if terminal else ""  # rewritten in place
    assert stderr.getvalue().startswith(going) and "\n" not in stderr.getvalue()
    trained.write("done")
    shown.finish(trained.run)
    assert stderr.getvalue().count("\n") == 1
    assert "run 1 of 2: finished: 34 steps" in stderr.getvalue()


def test_a_listing_of_the_watched_cell_marks_its_for_line():
    cell = "<ipython-input-7-ab>"
    lines = ["seen = 0\n", "for batch in lk.watch(loader, live=False):\n", "    seen += 1\n"]
    linecache.cache[cell] = (0, None, lines, cell)
    loader = torch.utils.data.DataLoader(Waiting(0.01, 50), batch_size=1)
    exec(compile("".join(lines), cell, "exec"), {"lk": labkit, "loader": loader})
    labkit.watch.last.close()
    [shown] = marked_cells(labkit.watch.last.run.lines)
    assert re.search(r"\d%  for batch in", shown) and not re.search(r"%  seen = 0", shown)


# -- what is left of it --------------------------------------------------------------------------


def test_the_live_view_needs_no_torch():
    code = "import labkit.view.live, labkit.view.panels, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- where no widgets show: an old ipywidgets, a front end without their manager -----------------


@pytest.fixture
def colab(monkeypatch):
    """Stand in for a notebook on Colab, with this ipywidgets; its manager may not start."""

    def manager(error):
        if error:
            raise error

    def set_up(version, error=None):
        shown = []
        output = SimpleNamespace(enable_custom_widget_manager=lambda: manager(error))
        monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace(output=output))
        monkeypatch.setattr("ipywidgets.__version__", version)
        monkeypatch.setattr(display, "in_notebook", lambda: True)

        class Handle:
            update = shown.append

        def show(what, display_id=None, raw=False):
            shown.append(what)
            return Handle if display_id else None

        monkeypatch.setattr("IPython.display.display", show)
        monkeypatch.setattr("labkit.view.widget_or_text.display", show)
        return shown

    return set_up


@pytest.mark.parametrize(
    "version, error, why",
    [
        ("7.7.1", None, "ipywidgets 7.7.1 is loaded, labkit needs 8: restart the session"),
        ("8.1.5", RuntimeError("no bridge"), "manager of widgets does not start (no bridge)"),
    ],
)
def test_without_widgets_a_sentence_says_why_and_the_picture_comes_all_the_same(
    version, error, why, colab
):
    shown = colab(version, error)
    run = recorded("workers-6")
    follows = RunDisplay()
    follows.update(run)
    follows.finish(run)
    sentence, empty, *_, picture = shown
    assert why in html.unescape(sentence.data) and empty.data == ""
    assert picture.png.startswith(b"\x89PNG") and not follows.shown.live


def test_without_widgets_a_panel_is_a_text_that_says_why_and_what_does_the_same(colab):
    shown = colab("7.7.1")
    panel = labkit.panel()
    panel._ipython_display_()
    [text] = [each["text/plain"] for each in shown]
    assert "No widgets here: ipywidgets 7.7.1" in text and "labkit.run() leaves a picture" in text
