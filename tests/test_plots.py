"""The figures of runs, sweeps and ladders: what they show, and that they show it in a notebook."""

import io
import math
import warnings

import numpy as np
import played_gpu
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image
from played_gpu import CPU, END, GPU, MS

from labkit import Pipeline
from labkit.api import Sweep

ODD = "no $device$ <here>"  # what a font cannot show, or that looks like a formula
ODDER = f"{ODD} $\\frac{{ 数据\x07 " + "long " * 400


@pytest.fixture
def record(tmp_path):
    """Write a synthetic record (times in ms) and load it; it counts as measured here."""

    def make(
        wait=50, compute=10, copy=0.1, *, steps=60, machine=CPU, end=END, telemetry=(), **knobs
    ):
        events = played_gpu.host_steps(wait, compute, steps, copy=copy)
        if machine is GPU:
            events, _ = played_gpu.play(prep=wait, compute=compute)
        samples = ({"event": "telemetry", **sample} for sample in telemetry)
        knobs = {"io_ms": 2.5} | knobs
        run = played_gpu.log(tmp_path, machine, knobs, *events, *samples, end=end)
        run.data.recorded = False
        return run

    return make


def failed(record, message=ODD, **more):
    error = {"event": "error", "kind": "RuntimeError", "message": message}
    return record(steps=0, end=[error, {"event": "end", "code": 1}], **more)


def telemetry_of(**values):
    """Return 20 samples of a GPU, one in 100 ms, of which one is not complete."""
    samples = []
    for t in range(1000 * MS, 3000 * MS, 100 * MS):
        samples.append({"t_ns": t, "gpu_now": 0.2, "cpu": 0.1})
    samples[3]["gpu_now"] = None
    return [sample | values for sample in samples]


def texts(figure):
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def swept(*runs, **knobs):
    sweep = Sweep(Pipeline(), knobs)
    sweep.runs = list(runs)
    return sweep.plot()


# -- one run -------------------------------------------------------------------------------------


def test_the_figure_says_what_came_out_what_was_run_what_was_simulated_and_where(record):
    run = record(num_workers=2, prefetch_factor=2)
    shown = texts(run.plot())
    came = f"{run.throughput:,.0f} samples/s, CPU busy 17%"
    for text in (came, "num_workers=2", "mean: 17%", "delay: io_ms=2.5 per item", run.machine.line):
        assert text in shown
    assert "RECORDED" not in shown


def test_a_run_before_is_named_and_the_title_says_what_the_change_brought(record):
    figure = record(1, num_workers=4).plot(before=record())
    assert labels(figure.axes[-1].yaxis) == ["before: 60.1 ms", "this run: 11.1 ms"]
    shown = texts(figure)
    assert "num_workers 0 → 4: 5.4x the throughput; " in shown and "CPU busy 90%" in shown
    there = record(machine=GPU)
    there.data.recorded = True
    assert "this run: RECORDED on NVIDIA H200" in texts(there.plot(before=there))


def test_the_teeth_are_the_true_intervals_of_ten_steps_marked_below_on_the_same_clock(record):
    run = record()
    teeth, whole, _ = run.plot().axes
    assert labels(teeth.yaxis) == ["loop waits for data", "copy", "device busy"]
    start, end = teeth.get_xlim()
    assert end - start == pytest.approx(run.step_ms / 100) and whole.get_xlim()[0] == 0
    device = teeth.collections[-1]  # the last lane
    drawn = [path.get_extents().intervalx for path in device.get_paths()]
    true = run.busy[(run.busy[:, 1] > start) & (run.busy[:, 0] < end)]
    assert np.allclose(drawn, true)
    window = whole.transData.transform([(start, 0), (end, 0)])[:, 0]
    assert any(np.allclose(p.get_extents().intervalx, window) for p in whole.patches)


def test_runs_without_numbers_say_why_and_show_their_error_as_it_is(record):
    assert "Nothing to draw" in texts(record(steps=1).plot())
    assert "Nothing to draw" in texts(record(0, 0, 0).plot())
    assert f"failed: RuntimeError: {ODD}." in texts(failed(record).plot())
    late = texts(record(end=[{"event": "end", "code": -9}]).plot())
    assert all(text in late for text in ("failed: ", "SIGKILL", "mean: 17%"))
    figure = record().plot(before=failed(record))
    assert labels(figure.axes[-1].yaxis) == ["this run: 60.1 ms"]


def test_missing_samples_of_an_instrument_are_gaps_never_zero(record):
    def curve(**telemetry):
        lines = record(machine=GPU, telemetry=telemetry_of(**telemetry)).plot().axes[1].lines
        drawn = {line.get_label(): line.get_ydata() for line in lines}
        return drawn.get("nvidia-smi (NVML)")

    smi = curve()
    assert math.isnan(smi[3]) and 0 not in smi
    assert curve(gpu_now=None) is None


# -- on the page ---------------------------------------------------------------------------------


def overflow(figure):
    """Texts that stick out of the page."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    # matplotlib keeps labels of ticks beyond the axis' end, and does not draw them
    ticks = {label for axes in figure.axes for label in axes.get_xticklabels()}
    page = figure.bbox.padded(1)
    found = []
    for text in set(figure.findobj(Text)) - ticks:
        if text.get_visible() and text.get_text().strip():
            both = Bbox.union([page, text.get_window_extent(renderer)])
            if both.extents.tolist() != page.extents.tolist():
                found.append(text.get_text())
    return found


@pytest.mark.slow
def test_no_figure_is_too_wide_too_heavy_or_cut_off(record):
    knobs = {"num_workers": 6, "prefetch_factor": 4, "pin_memory": True, "precision": "bf16"}
    gpu = record(machine=GPU, telemetry=telemetry_of(), **knobs)
    runs = [record(wait, num_workers=n) for n, wait in enumerate((50.0, 20.0, 1000.0))]
    for figure in (
        gpu.plot(before=runs[0]),
        failed(record, ODDER).plot(),
        swept(*runs, *runs, num_workers=[0, 1, 2], precision=["fp32", "bf16"]),
    ):
        assert overflow(figure) == []
        with warnings.catch_warnings():  # of a glyph that no font has
            warnings.simplefilter("error")
            png = figure._repr_mimebundle_()[0]["image/png"]
        assert Image.open(io.BytesIO(png)).width <= 1350 and len(png) < 120_000


# -- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_stands_to_scale_and_names_have_bars(record):
    runs = [record(wait) for wait in (50, 20, 10)]
    figure = swept(*runs, num_workers=[0, 2, 6])
    rates = figure.axes[0].lines[0]
    assert list(rates.get_xdata()) == [0, 2, 6]
    assert list(rates.get_ydata()) == [run.throughput for run in runs]
    assert "num_workers: 3.0x from slowest to fastest" in texts(figure)
    axes = swept(*runs, precision=["fp32", "bf16", "fp16"]).axes[0]
    assert labels(axes.yaxis) == ["fp32", "bf16", "fp16"] and len(axes.patches) == 3
