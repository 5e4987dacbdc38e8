"""The figures of runs, sweeps and ladders: what they show, and that they show it in a notebook."""

import io
import math
import warnings

import numpy as np
import played_gpu
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from played_gpu import CPU, GPU, MS

from labkit.results.sweep import Sweep
from labkit.spec import Pipeline
from labkit.view.run_figure import curves, draw_run, teeth_window
from labkit.view.several_figures import draw_sweep

BEGIN = 1000 * MS
ODD = "no $device$ <here>"  # what a font cannot show, or that looks like a formula
ODDER = f"{ODD} $\\frac{{ 数据\x07 " + "long " * 400


@pytest.fixture
def record(tmp_path):
    """Write a synthetic record (times in ms) and load it; it counts as measured here."""

    def make(
        steps=60,
        wait=50.0,
        copy=0.1,
        compute=10.0,
        *,
        machine=CPU,
        recorded=False,
        end=({"event": "done"},),
        telemetry=(),
        **knobs,
    ):
        if machine is GPU:
            times = {"prep": wait, "copy": copy, "compute": compute, "launch": 0.1}
            events, _ = played_gpu.play(steps=steps, waits=False, **times)
        else:
            events = played_gpu.host_steps(wait, compute, steps, copy=copy)
            for event in events[30:]:
                event["loss"] = None
        samples = ({"event": "telemetry", **sample} for sample in telemetry)
        knobs = {"io_ms": 2.5} | knobs
        run = played_gpu.log(tmp_path, machine, knobs, *events, *samples, end=end)
        run.recorded = recorded
        return run

    return make


def failed(record, message=ODD, **more):
    error = {"event": "error", "kind": "RuntimeError", "message": message}
    return record(steps=0, end=[error, {"event": "end", "code": 1}], **more)


def telemetry_of(count):
    """Return samples of a GPU, one in 100 ms."""
    times = [BEGIN + 100 * MS * i for i in range(count)]
    return [{"t_ns": t, "gpu_now": 0.2, "gpu": [[t, 0.3]], "cpu": 0.1} for t in times]


def texts(figure):
    return "\n".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


def png(figure):
    return Image.open(io.BytesIO(figure._repr_png_()))


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def swept(*runs, **knobs):
    sweep = Sweep(Pipeline(), knobs)
    sweep.runs = list(runs)
    return sweep


# -- one run -------------------------------------------------------------------------------------


def test_the_figure_says_what_came_out_what_was_run_what_was_simulated_and_where(record):
    run = record(num_workers=2, prefetch_factor=2)
    shown = texts(run.plot())
    for text in (
        f"{run.throughput:,.0f} samples/s, CPU busy 17%",
        "num_workers=2",
        "mean 17%",
        "simulated delay: io_ms=2.5 per item",
        run.machine.line,
    ):
        assert text in shown
    assert "RECORDED" not in shown


def test_a_run_before_is_named_and_the_title_says_what_the_change_brought(record):
    figure = record(wait=1, num_workers=4).plot(before=record())
    assert labels(figure.axes[2].yaxis) == ["this run", "before"]
    shown = texts(figure)
    assert "num_workers=4: 5.4x the throughput, CPU busy 90%" in shown
    assert "waiting for data 50.0 → 1.0 ms" in shown
    assert "before: num_workers=0" in shown
    there = record(machine=GPU, recorded=True)
    shown = texts(there.plot(before=there))
    assert shown.count("RECORDED on NVIDIA H200") == 2


def test_the_teeth_are_the_true_intervals_of_a_few_steps_marked_below_on_the_same_clock(record):
    run = record()
    first, behind = teeth_window(run)
    assert behind - first == 10
    start, end = (run.stretch(step - 1, step)[0, 5] for step in (first, behind))
    teeth, whole, _ = draw_run(run).axes
    device = teeth.collections[-1]  # the last lane
    assert labels(teeth.yaxis) == ["loop waits for data", "copy", "CPU busy"]
    assert "copy" in labels(draw_run(record(machine=GPU)).axes[0].yaxis)
    drawn = [path.get_extents().intervalx for path in device.get_paths()]
    true = run.busy[(run.busy[:, 1] > start) & (run.busy[:, 0] < end)]
    assert np.allclose(drawn, np.clip(true, start, end))
    assert teeth.get_xlim() == (start, end) and whole.get_xlim() == (0, run.busy[-1, 1])
    window = whole.transData.transform([(start, 0), (end, 0)])[:, 0]
    assert any(np.allclose(p.get_extents().intervalx, window) for p in whole.patches)


def test_runs_without_numbers_say_why_and_show_their_error_as_it_is(record):
    assert "Nothing to draw" in texts(record(steps=1).plot())
    assert "Nothing to draw" in texts(record(steps=20, wait=0, copy=0, compute=0).plot())
    assert "failed after 0 steps: RuntimeError: no $device$ <here>." in texts(failed(record).plot())
    late = texts(record(end=[{"event": "end", "code": -9}]).plot())
    assert all(text in late for text in ("failed after 60 steps", "SIGKILL", "mean 17%"))
    figure = record().plot(before=failed(record))
    assert "failed, without numbers to draw" in texts(figure)
    assert labels(figure.axes[2].yaxis) == ["this run"]


def test_missing_samples_of_an_instrument_are_gaps_never_zero(record):
    samples = [
        {
            "t_ns": BEGIN + 100 * MS * i,
            "gpu_now": None if i == 3 else 0.2,
            "gpu": None if i == 4 else [[BEGIN + 100 * MS * i, 0.3]],
        }
        for i in range(8)
    ]
    (_, nvml), (_, smi) = curves(record(machine=GPU, telemetry=samples)).values()
    assert math.isnan(nvml[4]) and math.isnan(smi[3])
    assert 0 not in nvml and 0 not in smi
    silent = [{"t_ns": BEGIN + MS * i, "gpu_now": None, "cpu": 0.5} for i in range(20)]
    assert curves(record(machine=GPU, telemetry=silent)) == {}


# -- on the page ---------------------------------------------------------------------------------


def overflow(figure):
    """Texts that stick out of the page."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    # matplotlib keeps labels of ticks beyond the axis' end, and does not draw_run them
    ticks = {label for axes in figure.axes for label in axes.get_xticklabels()}
    width = figure.bbox.width + 1
    height = figure.bbox.height + 1
    found = []
    for text in figure.findobj(lambda a: hasattr(a, "get_text") and a.get_visible()):
        box = text.get_window_extent(renderer)
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width and box.y1 <= height
        if text.get_text().strip() and text not in ticks and not inside:
            found.append(text.get_text())
    return found


@pytest.mark.slow
def test_no_figure_is_too_wide_too_heavy_or_cut_off(record):
    samples = telemetry_of(20)
    knobs = {"num_workers": 6, "prefetch_factor": 4, "pin_memory": True, "precision": "bf16"}
    gpu = record(machine=GPU, recorded=True, telemetry=samples, **knobs)
    runs = [record(wait=w, num_workers=n) for n, w in enumerate((50.0, 20.0, 1000.0))]
    grid = swept(*runs, *runs, num_workers=[0, 1, 2], precision=["fp32", "bf16"])
    for figure in (
        gpu.plot(before=runs[0]),
        failed(record, ODDER).plot(),
        draw_sweep(grid),
    ):
        assert overflow(figure) == []
        with warnings.catch_warnings():  # of a glyph that no font has
            warnings.simplefilter("error")
            assert png(figure).width <= 900
        assert len(figure._repr_png_()) < 120_000


# -- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_stands_to_scale_and_names_have_bars(record):
    runs = [record(wait=wait) for wait in (50, 20, 10)]
    figure = draw_sweep(swept(*runs, num_workers=[0, 2, 6]))
    rates, busy = figure.axes
    assert list(rates.lines[0].get_xdata()) == [0, 2, 6] and rates.get_xscale() == "linear"
    assert list(rates.lines[0].get_ydata()) == [run.throughput for run in runs]
    assert list(busy.lines[0].get_ydata()) == [100 * run.utilization for run in runs]
    shown = texts(figure)
    assert "num_workers=6: 3.0x the throughput of the slowest setting" in shown
    assert "io_ms=2.5 per item" in shown
    axes = draw_sweep(swept(*runs, precision=["fp32", "bf16", "fp16"])).axes[0]
    assert labels(axes.yaxis) == ["fp32", "bf16", "fp16"] and len(axes.patches) == 3


def test_a_micro_batch_is_never_compared_with_a_whole_one(record):
    whole = record(wait=0, compute=80)
    micro = record(wait=0, accumulation_steps=8)
    steps = micro.plot(before=whole).axes[2]
    ends = [float(t.get_text().removesuffix(" ms")) for t in steps.texts if "ms" in t.get_text()]
    assert ends == pytest.approx([80.8, 80.1], abs=0.4) and "mean update" in steps.get_xlabel()


def test_a_figure_says_that_other_programs_had_the_cores(record):
    for cpu, shared in ((0.9, True), (0.35, False)):
        sample = {"own_cpu": 0.3, "cpu": cpu, "line_cpu": 0.0, "cpus": 2}
        load = [{"t_ns": BEGIN + i * 10**8, **sample} for i in range(1, 20)]
        shown = texts(record(telemetry=load).plot())
        assert ("SHARED MACHINE: other programs used 1.2 of" in shown) == shared


def test_runs_that_failed_or_were_not_run_are_gaps(record):
    runs = [record(), failed(record, num_workers=2)]
    figure = draw_sweep(swept(*runs, num_workers=[0, 2, 4]))
    lines = [line.get_ydata() for line in figure.axes[0].lines]
    gaps = [np.isnan(np.array(line, dtype=float)).tolist() for line in lines]
    assert [False, True, True] in gaps
    shown = texts(figure)
    assert "1 not run" in shown and "no numbers: num_workers=2: RuntimeError" in shown
    png(draw_sweep(swept(num_workers=[0, 2])))
