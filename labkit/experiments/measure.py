"""`lk.measure`: run an experiment in its own process, show how far it is, leave its figure.

Here is also what the figures of experiments share: the header, and a bar for each point.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.results.launch import launch
from labkit.results.measurements import Measurement, Measurements
from labkit.spec import EXPERIMENTS, Experiment
from labkit.wiring import Later

if TYPE_CHECKING:
    from matplotlib.figure import Figure

display = Later("labkit.show.display")
primitives, style = Later("labkit.show.primitives"), Later("labkit.show.style")
run_header = Later("labkit.show.run_header")

BARS_LEFT_IN = 3.2  # for the names of the points

# What a point is measured by, best first: (of a point of these seconds, unit)
METRICS: dict[str, Callable[[Measurement, float], float | None]] = {
    "GFLOP/s": lambda p, s: p.flops / s / 1e9 if p.flops else None,
    "GB/s": lambda p, s: p.bytes / s / 1e9 if p.bytes else None,
    "ms": lambda _p, s: s * 1e3,
}


def measure(
    name: str, *, device: str = "auto", wait: bool = True, plot: bool = True, **params: Any
) -> Measurements:
    """Measure one thing in a process of its own and return its Measurements.

    Args:
        name: Which experiment; the files of `labkit.experiments` are they.
        device: As the knob of a Pipeline.
        wait: Block with a line of progress until it has ended; False returns at once.
        plot: Leave the figure in the cell when it is over (in a notebook).
        **params: The experiment's knobs.

    Raises:
        ValueError: An unknown experiment or knob, or a bad value, before anything starts.
        KeyboardInterrupt: While waiting; the experiment has been stopped first.
    """
    started = measure.last = launch(Experiment(name, params, device))
    if wait:
        shown = display.Display()
        try:
            started.wait(each=lambda running: shown.line(progress_line(running)))
        finally:
            if not display.in_notebook():
                shown.final(repr(started))
            elif plot and EXPERIMENTS[name].draw and started.points and not started.error:
                shown.final(rich=display.StaticFigure.drawn(started.plot()))
            else:
                shown.final(started.error or "measured")
    return started


def progress_line(running: Measurements) -> str:
    """Return the experiment's stage and how many points it has."""
    return f"{display.stage_line(running)} · {len(running)} points"


def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw what an experiment measured with the function that its file has for it.

    `before` is the run before, drawn in grey by the figures that have room for it.
    """
    registered = EXPERIMENTS.get(measured.name)
    if registered is None or registered.draw is None:
        raise ValueError(f"{measured.name} has no figure; read .points.")
    has_room = "before" in inspect.signature(registered.draw).parameters
    overlay = {"before": before} if before is not None and has_room else {}
    return style.our_style(registered.draw)(measured, **overlay)


def header(
    measured: Measurements, before: Measurements | None = None, *texts: str, title: str = ""
) -> list[tuple[str, dict[str, Any]]]:
    """Return a figure's header: the title (or the help), knobs, `texts`, machines, warnings."""
    listed = EXPERIMENTS.get(measured.name)
    title = title or (listed.help if listed else measured.name)
    knobs = case_of({n: v for n, v in measured.params.items() if v is not None})
    runs = [run for run in (measured, before) if run is not None]
    lines = run_header.several_header(title, ["; ".join(filter(None, [knobs, *texts]))], runs)
    loud, grey = run_header.LOUD, {"color": style.BEFORE}
    if before is not None:
        now = measured.params
        differs = {name: old for name, old in before.params.items() if now.get(name) != old}
        mark = f"{before.mark}, " if before.recorded else ""
        lines.append((f"before (grey): {mark}{case_of(differs) or 'the same values'}", grey))
    if noisy := sum(point.noisy for point in measured):
        lines.append((f"NOISY: {noisy} of {len(measured)} points varied by over 10%", loud))
    if measured.outcome != "finished":
        lines.append((f"{measured.outcome}: {measured.error or 'not complete'}", loud))
    return lines + [(f"not measured: {what}: {why}", {}) for what, why in measured.skipped.items()]


def case_of(values: dict[str, Any]) -> str:
    """Write parameters as text: n=64, count=1000."""
    words = {True: "yes", False: "no"}
    return ", ".join(
        f"{name}={words[v] if isinstance(v, bool) else f'{v:g}' if isinstance(v, float) else v}"
        for name, v in values.items()
    )


def faster(measured: Measurements, slow: str, fast: str) -> str:
    """Return as a title how many times as fast one operation is as another; "" without both."""
    points = [next(iter(measured.where(of)), None) for of in (slow, fast)]
    if not all(point and point.median_s for point in points):
        return ""
    ratio = measured.ratio(*points)
    return f"{fast}: {primitives.number(ratio)}x as fast as {slow}"


def bars(measured: Measurements, before: Measurements | None = None, title: str = "") -> Figure:
    """Draw a bar per timed point: its rate where FLOPs or bytes are counted, else its time.

    Points that do not have what the first one is measured by are left out. The line through a
    bar's end is the interquartile range of its times; a grey mark is the same point of `before`.
    """
    timed = [point for point in measured if point.median_s]
    unit, value = next(m for m in METRICS.items() if not timed or m[1](timed[0], 1.0) is not None)
    points = [point for point in timed if value(point, 1.0) is not None]
    better = "shorter is better" if unit == "ms" else "longer is better"
    panels = [(0.1, primitives.rows_in(len(points)))] if points else []
    lines = header(measured, before, better, title=title)
    figure, axes = style.page(lines, panels, left_in=BARS_LEFT_IN, bottom_in=0.5)
    kinds = list(dict.fromkeys(point.of for point in points))
    rows = []
    for point in points:
        middle = value(point, point.median_s)
        launches = (point.values.get("launch_share") or 0) > 0.5  # on a GPU
        doubts = " (launches)" * launches + " (noisy)" * point.noisy
        low, high = sorted(value(point, s) for s in np.percentile(point.seconds, [25, 75]))
        old = measured.partner(point, before) if before is not None else None
        rows.append(primitives.Bar(
            ", ".join(filter(None, [point.of, case_of(point.case)])), middle,
            f"{primitives.number(middle)} {unit}{doubts}",
            style.LINES[kinds.index(point.of) % len(style.LINES)], spread=(low, high),
            before=value(old, old.median_s) if old and old.median_s else None,
        ))  # fmt: skip
    if points:
        primitives.hbars(axes[0], rows, unit)
    return figure
