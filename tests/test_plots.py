"""The figures of runs, sweeps and ladders: what they show, and that they show it in a notebook."""

import base64
import io
import itertools
import json
import math
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox
from PIL import Image

from labkit.process.events import FILE_NAME
from labkit.results.library import load
from labkit.results.record import RecordError
from labkit.results.run import Run
from labkit.show import style
from labkit.show.analysis_figures import curves
from labkit.show.ladder import NO_GAIN, Ladder
from labkit.show.run_figure import draw, step_parts, teeth_window
from labkit.show.sweep_figure import draw_sweep
from labkit.spec import Pipeline

MS = 1_000_000
CPU = {"device": "cpu", "kind": "cpu", "name": "Some CPU", "cpu_cores": 2, "threads": 1}
GPU = {"device": "cuda:0", "kind": "gpu", "name": "NVIDIA H200", "cpu_cores": 16}
count = itertools.count()


@pytest.fixture
def record(tmp_path):
    """Write a synthetic record (times in ms) and load it; it counts as measured here."""

    def make(steps=60, wait=50.0, copy=0.1, compute=10.0, *, machine=CPU, recorded=False,
             end=({"event": "done"},), telemetry=(), **knobs):  # fmt: skip
        knobs = {"io_ms": 2.5} | knobs
        events = [
            {"event": "spec", "version": 1, "run": "a-run", "pipeline": knobs},
            {"event": "machine", "versions": {"torch": "2.13.0"}, **machine},
            {"event": "job", "pipeline": knobs, "not_applied": {}},
            {"event": "begin", "warmup": 3},
            *(gpu_steps if machine is GPU else cpu_steps)(steps, wait, copy, compute),
            *({"event": "telemetry", **sample} for sample in telemetry),
            *end,
        ]
        file = tmp_path / f"{next(count)}.jsonl"
        file.write_text("".join(json.dumps({"t_ns": 0, **e}) + "\n" for e in events))
        run = load(file)
        run.recorded = recorded
        return run

    return make


def cpu_steps(steps, wait, copy, compute):
    now = 10**12
    for i in range(steps):
        t = list(itertools.accumulate([now, *(int(x * MS) for x in (wait, copy, compute))]))
        now = t[-1]
        yield {"event": "step", "i": i, "t": t, "n": 16, "loss": None if i > 30 else 1.0}


def gpu_steps(steps, wait, copy, compute):
    """The host runs ahead: it waits for the next batch while the device still computes."""
    host = device = 10**12
    for i in range(steps):
        t = [host, host + int(wait * MS)]
        t += [t[1] + MS // 10, t[1] + MS // 5]
        start = max(device, t[1])
        end = start + int(copy * MS)
        host, device = t[3], end + int(compute * MS)
        stamps = {"copy": [start, end], "busy": [end, device]}
        yield {"event": "step", "i": i, "t": t, "n": 16, "loss": 1.0, **stamps}


def failed(record, **more):
    error = {"event": "error", "kind": "RuntimeError", "message": "no $device$ <here>"}
    return record(steps=0, end=[error, {"event": "end", "code": 1}], **more)


def texts(figure):
    return "\n".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


def png(figure):
    return Image.open(io.BytesIO(figure._repr_png_()))


def swept(pipeline=None, runs=(), **knobs):
    return SimpleNamespace(knobs=knobs, runs=list(runs), pipeline=pipeline or Pipeline())


# -- one run -------------------------------------------------------------------------------------


def test_the_figure_says_what_was_run_what_was_stated_and_where(record):
    run = record(num_workers=2, prefetch_factor=2)
    shown = texts(run.plot())
    assert "num_workers=2" in shown
    assert "simulated delay: io_ms=2.5 per item" in shown
    assert run.machine.line in shown
    assert "CPU busy 17%" in shown
    assert "mean 17%" in shown
    assert "RECORDED" not in shown


def test_a_recorded_run_is_marked_with_its_hardware(record):
    shown = texts(record(machine=GPU, recorded=True).plot())
    assert "RECORDED on NVIDIA H200" in shown


def test_a_recorded_run_before_is_marked_too(record):
    shown = texts(record().plot(before=record(machine=GPU, recorded=True)))
    assert "before (grey): RECORDED on NVIDIA H200" in shown


def test_the_teeth_are_the_true_intervals_of_a_few_steps(record):
    run = record()
    steps, start, end = teeth_window(run)
    assert steps == 10
    teeth = draw(run).axes[0].collections[-1]  # the last lane is the device's
    drawn = [path.get_extents().intervalx for path in teeth.get_paths()]
    true = run.busy[(run.busy[:, 1] > start) & (run.busy[:, 0] < end)]
    assert np.allclose(drawn, np.clip(true, start, end))


def test_both_axes_have_one_clock_and_the_window_is_marked_below(record):
    run = record()
    teeth, whole, _ = draw(run).axes
    start, end = teeth.get_xlim()
    marks = [p.get_extents().intervalx for p in whole.patches]
    assert any(np.allclose(mark, whole.transData.transform([(start, 0), (end, 0)])[:, 0])
               for mark in marks)  # fmt: skip
    assert whole.get_xlim() == (0, run.busy[-1, 1])


def test_a_gpu_has_a_lane_for_copies_and_a_cpu_has_none(record):
    gpu = draw(record(machine=GPU)).axes[0]
    assert [t.get_text() for t in gpu.get_yticklabels()] == [
        "loop waits for data",
        "copy",
        "GPU busy",
    ]
    cpu = draw(record()).axes[0]
    assert "copy" not in [t.get_text() for t in cpu.get_yticklabels()]


def test_a_hundred_thousand_steps_draw_as_few_things_as_a_hundred(record):
    def artists(run):
        figure = draw(run)
        return sum(len(c.get_paths()) for a in figure.axes for c in a.collections)

    many = record(steps=100_000, wait=0.1, compute=0.2, machine=GPU)
    assert artists(many) <= artists(record(steps=100, wait=0.1, compute=0.2, machine=GPU)) + 4


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_too_short_for_numbers_gets_a_figure_that_says_why(record, steps):
    assert "Nothing to draw" in texts(record(steps=steps).plot())


def test_a_failed_run_shows_its_error_as_it_is(record):
    assert "failed after 0 steps: RuntimeError: no $device$ <here>." in texts(failed(record).plot())
    late = record(end=[{"event": "end", "code": -9}])
    shown = texts(late.plot())
    assert "failed after 60 steps" in shown
    assert "SIGKILL" in shown
    assert "mean 17%" in shown


def test_a_run_before_without_numbers_is_named_and_not_drawn(record):
    figure = record().plot(before=failed(record))
    assert "failed, without numbers to draw" in texts(figure)
    assert [t.get_text() for t in figure.axes[2].get_yticklabels()] == ["this run"]


def test_stamps_that_make_no_sense_do_no_harm(record):
    stuck = record(steps=20, wait=0, copy=0, compute=0)
    assert "Nothing to draw" in texts(stuck.plot())
    backwards = record(steps=20, wait=-5.0, copy=3.0)
    png(backwards.plot())


def test_text_the_font_cannot_show_or_that_looks_like_a_formula_is_drawn_literally(record):
    error = {"event": "error", "kind": "E", "message": "$\\frac{ 数据\x07 " + "long " * 400}
    run = record(steps=0, end=[error, {"event": "end"}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(run.plot()).width == 900


# -- the instruments -----------------------------------------------------------------------------


def test_missing_samples_are_gaps_never_zero(record):
    samples = [
        {"t_ns": 10**12 + 100 * MS * i, "gpu_now": None if i == 3 else 0.2,
         "gpu": None if i == 4 else [[10**12 + 100 * MS * i, 0.3]]}
        for i in range(8)
    ]  # fmt: skip
    nvml, smi = curves(record(machine=GPU, telemetry=samples))
    assert math.isnan(nvml[2][4])
    assert math.isnan(smi[2][3])
    assert 0 not in nvml[2]
    assert 0 not in smi[2]


def test_telemetry_that_is_no_telemetry_is_refused(record):
    for odd in ({"t_ns": "now"}, {"t_ns": 1, "gpu": [3, None]}, {"t_ns": 1, "gpu_now": "x"}):
        with pytest.raises(RecordError, match="not an event"):
            record(machine=GPU, telemetry=[odd])


def test_an_instrument_that_said_nothing_is_not_in_the_legend(record):
    samples = [{"t_ns": 10**12 + MS * i, "gpu_now": None, "cpu": 0.5} for i in range(20)]
    assert curves(record(machine=GPU, telemetry=samples)) == []
    assert "all CPU cores (psutil)" in texts(record(telemetry=samples).plot())


# -- the mean step -------------------------------------------------------------------------------


def test_the_parts_of_the_mean_step_add_up_to_it(record):
    parts = step_parts(record(wait=50, copy=0.1, compute=10))
    assert parts == pytest.approx({"wait": 50, "copy": 0.1, "compute": 10, "other": 0})


def test_waiting_that_the_device_hides_under_its_work_is_not_counted(record):
    parts = step_parts(record(wait=5, copy=1, compute=9, machine=GPU))
    assert parts == pytest.approx({"wait": 0, "copy": 1, "compute": 9, "other": 0}, abs=1e-6)
    parts = step_parts(record(wait=20, copy=1, compute=9, machine=GPU))
    assert sum(parts.values()) == pytest.approx(20.2, abs=0.01)
    assert parts["wait"] == pytest.approx(20.2 - 10 - parts["other"], abs=0.01)


def test_two_bars_where_there_is_a_run_before(record):
    figure = record(wait=1, num_workers=4).plot(before=record())
    assert [t.get_text() for t in figure.axes[2].get_yticklabels()] == ["this run", "before"]
    shown = texts(figure)
    assert "waiting for data 50.0 → 1.0 ms" in shown
    assert "before (grey): num_workers=0" in shown


# -- on the page ---------------------------------------------------------------------------------


def overflow(figure):
    """Texts that stick out of the page."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    # matplotlib keeps labels of ticks beyond the axis' end, and does not draw them
    ticks = {label for axes in figure.axes for label in axes.get_xticklabels()}
    page = Bbox([[-1, -1], [figure.bbox.width + 1, figure.bbox.height + 1]])
    return [
        text.get_text()
        for text in figure.findobj(lambda a: hasattr(a, "get_text") and a.get_visible())
        if text.get_text().strip()
        and text not in ticks
        and not _within(text.get_window_extent(renderer), page)
    ]


def _within(box, page):
    return page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1


def test_no_figure_is_too_wide_too_heavy_or_cut_off(record):
    samples = [{"t_ns": 10**12 + 100 * MS * i, "gpu_now": 0.2, "gpu": [[10**12, 0.3]], "cpu": 0.1}
               for i in range(20)]  # fmt: skip
    knobs = {"num_workers": 6, "prefetch_factor": 4, "pin_memory": True, "precision": "bf16"}
    gpu = record(machine=GPU, recorded=True, telemetry=samples, **knobs)
    runs = [record(wait=w, num_workers=n) for n, w in enumerate((50.0, 20.0, 1000.0))]
    ladder = Ladder().add("a name that is far too long for the left margin of it", runs[0])
    ladder.add("other", runs[1]).add("none", record(wait=20.0)).add("no", failed(record))
    grid = swept(runs=[*runs, *runs], num_workers=[0, 1, 2], precision=["fp32", "bf16"])
    for figure in (
        gpu.plot(),
        gpu.plot(before=runs[0]),
        runs[2].plot(before=gpu),
        failed(record).plot(),
        draw_sweep(grid),
        ladder.plot(),
    ):
        assert overflow(figure) == []
        assert png(figure).width <= 900
        assert len(figure._repr_png_()) < 120_000


def test_drawing_leaves_the_readers_style_alone_and_does_not_take_it_over(record):
    import matplotlib

    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "white"}):
        figure = record().plot()
        assert matplotlib.rcParams["text.color"] == "white"
    assert figure.texts[0].get_color() == "black"


# -- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_of_one_knob_is_one_line_of_throughput_and_one_of_utilization(record):
    runs = [record(wait=w, num_workers=n) for n, w in ((0, 50.0), (2, 20.0))]
    rates, busy = draw_sweep(swept(runs=runs, num_workers=[0, 2])).axes
    assert list(rates.lines[0].get_ydata()) == [run.throughput for run in runs]
    assert list(busy.lines[0].get_ydata()) == [run.utilization for run in runs]
    assert [t.get_text() for t in busy.get_xticklabels()] == ["0", "2"]


def test_a_sweep_says_what_was_stated_and_where_also_when_the_wait_itself_is_swept(record):
    runs = [record(io_ms=io) for io in (0.0, 5.0)]
    shown = texts(draw_sweep(swept(runs=runs, io_ms=[0, 5])))
    assert "simulated delay: io_ms, as shown" in shown
    assert runs[0].machine.line in shown
    shown = texts(draw_sweep(swept(runs=[record(recorded=True)], steps=[60])))
    assert "RECORDED on Some CPU" in shown
    assert "io_ms=2.5 per item" in shown


def test_runs_that_failed_or_were_not_run_are_gaps(record):
    runs = [record(), failed(record, num_workers=2)]
    figure = draw_sweep(swept(runs=runs, num_workers=[0, 2, 4]))
    values = figure.axes[0].lines[0].get_ydata()
    assert np.isnan(np.array(values, dtype=float)).tolist() == [False, True, True]
    shown = texts(figure)
    assert "1 not run" in shown
    assert "× no numbers: num_workers=2: RuntimeError" in shown
    png(draw_sweep(swept(num_workers=[0, 2])))


def test_several_knobs_are_grouped_into_lines_of_the_first(record):
    runs = [record(batch_size=b, num_workers=n, wait=10.0 * b + n) for n in (0, 2) for b in (8, 16)]
    figure = draw_sweep(swept(runs=runs, num_workers=[0, 2], batch_size=[8, 16]))
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    rates = [run.throughput for run in runs]
    drawn = [list(line.get_ydata()) for line in lines if line.get_linestyle() == "-"]
    assert [rates[0], rates[2]] in drawn
    assert [rates[1], rates[3]] in drawn
    assert "batch_size=16" in texts(figure)


# -- the ladder ----------------------------------------------------------------------------------


def test_each_rung_is_compared_with_the_one_before_and_with_the_first(record):
    ladder = Ladder().add("start", record(wait=30)).add("two", record(wait=10))
    ladder.add("three", record(wait=0))
    assert [round(rung.gain, 1) for rung in ladder.rungs[1:]] == [2.0, 2.0]
    assert round(ladder.rungs[2].total, 1) == 4.0
    assert ladder.rungs[0].gain is None
    assert "3.97x" in repr(ladder)
    assert "io_ms=2.5 per item" in repr(ladder)


def test_a_step_that_gained_nothing_is_kept_and_says_so(record):
    ladder = Ladder().add("start", record()).add("pin", record(pin_memory=True))
    assert NO_GAIN in ladder.table().rows[1][-1]
    assert NO_GAIN in ladder._repr_html_()


def test_a_failed_run_is_a_row_with_its_error_and_breaks_no_chain(record):
    ladder = Ladder().add("start", record(wait=30)).add("broken", failed(record))
    ladder.add("after", record(wait=10))
    rows = ladder.table().rows
    assert rows[1][-1] == "failed: RuntimeError: no $device$ <here>."
    assert rows[1][2:7] == [None] * 5
    assert round(ladder.rungs[2].gain, 1) == 2.0
    assert "&lt;here&gt;" in ladder._repr_html_()
    assert "<here>" not in ladder._repr_html_()


def test_the_hardwares_gain_is_not_the_changes_gain(record):
    ladder = Ladder().add("here", record()).add("there", record(machine=GPU, recorded=True))
    assert ladder.rungs[1].gain is None
    assert "RECORDED on NVIDIA H200" in ladder.table().rows[1][-1]
    assert "RECORDED on NVIDIA H200" in texts(ladder.plot())


def test_steps_with_different_stated_waits_each_say_theirs(record):
    ladder = Ladder().add("drive", record()).add("local", record(io_ms=0.0, wait=1))
    assert ladder.table().rows[0][-1] == "simulated delay: io_ms=2.5 per item"
    assert "delay" not in ladder.table().rows[1][-1]


def test_running_a_cell_again_replaces_its_step(record):
    ladder = Ladder().add("start", record()).add("next", record(wait=9)).add("start", record())
    assert [rung.name for rung in ladder.rungs] == ["start", "next"]


def test_what_is_no_ended_run_is_refused_by_name(record, tmp_path):
    with pytest.raises(ValueError, match="'more workers': str is not a Run"):
        Ladder().add("more workers", "run")
    with pytest.raises(ValueError, match="name=''"):
        Ladder().add("", record())
    (tmp_path / FILE_NAME).write_bytes(record(end=()).path.read_bytes())
    going = Run(tmp_path, process=SimpleNamespace(alive=lambda: True))
    with pytest.raises(ValueError, match="'more workers' is still running"):
        Ladder().add("more workers", going)


def test_an_empty_ladder_shows_that_it_is_empty():
    assert "no steps yet" in repr(Ladder())
    assert "no steps yet" in Ladder()._repr_html_()
    assert "no steps yet" in texts(Ladder().plot())


# -- in a notebook -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["", "import matplotlib.pyplot", "%matplotlib inline"])
def test_a_plot_that_ends_a_cell_is_shown_once_as_a_png(record, first):
    manager = pytest.importorskip("jupyter_client.manager")
    code = f"{first}\nfrom labkit.results.library import load\nload({str(record().path)!r}).plot()"
    shown = []
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        client.execute_interactive(code, timeout=120, output_hook=shown.append)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert [m["content"] for m in shown if m["msg_type"] == "error"] == []
    images = [m["content"]["data"]["image/png"] for m in shown
              if "image/png" in m["content"].get("data", {})]  # fmt: skip
    assert len(images) == 1
    assert Image.open(io.BytesIO(base64.b64decode(images[0]))).width <= 900


def test_plotting_does_not_import_pyplot():
    code = "import sys, labkit.show.run_figure; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_part_has_a_colour_of_its_own():
    colours = [colour for _, colour in style.PARTS.values()]
    assert len(set(colours)) == len(colours)
