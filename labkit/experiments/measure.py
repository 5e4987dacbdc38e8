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
            elif plot and started.has_figure:
                shown.final(rich=display.StaticFigure.drawn(started.plot()))
            else:
                shown.final(started.error or "measured")
    return started


def progress_line(running: Measurements) -> str:
    """Return the experiment's stage and how many points it has."""
    return f"{display.stage_line(running)} · {len(running)} points"


def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw what an experiment measured: as its file says, or its times as bars.

    `before` is the run before, drawn in grey by the figures that have room for it.
    """
    registered = EXPERIMENTS.get(measured.name)
    figure = registered.draw if registered and registered.draw and measured.points else bars
    has_room = before is not None and "before" in inspect.signature(figure).parameters
    return style.our_style(figure)(measured, **{"before": before} if has_room else {})


def page(
    measured: Measurements,
    panels: list[tuple[float, float]],
    *texts: str,
    before: Measurements | None = None,
    title: str = "",
    **room: float,
) -> tuple[Figure, list[Any]]:
    """Return a figure with its header, and its axes; see `header` and `labkit.show.style.page`."""
    return style.page(header(measured, before, *texts, title=title), panels, **room)


def header(
    measured: Measurements, before: Measurements | None = None, *texts: str, title: str = ""
) -> list[tuple[str, dict[str, Any]]]:
    """Return a figure's header: the title (or the help), knobs, `texts`, machines, warnings."""
    if not title:
        title = EXPERIMENTS[measured.name].help if measured.name in EXPERIMENTS else measured.name
    knobs = case_of({n: v for n, v in measured.params.items() if v is not None})
    runs = [run for run in (measured, before) if run is not None]
    lines = run_header.several_header(title, ["; ".join(filter(None, [knobs, *texts]))], runs)
    if before is not None:
        differs = {n: old for n, old in before.params.items() if measured.params.get(n) != old}
        mark = f"{before.mark}, " if before.recorded else ""
        said = f"before (grey): {mark}{case_of(differs) or 'the same values'}"
        lines.append((said, {"color": style.BEFORE}))
    if noisy := sum(point.noisy for point in measured):
        lines.append((f"NOISY: {noisy} of {len(measured)} points varied by over 10%",
                      run_header.LOUD))  # fmt: skip
    if measured.outcome != "finished":
        said = f"{measured.outcome}: {measured.error or 'not complete'}"
        lines.append((said, run_header.LOUD))
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
    kinds, rows = list(dict.fromkeys(point.of for point in timed)), []
    for point in (point for point in timed if value(point, 1.0) is not None):
        middle = value(point, point.median_s)
        launches = (point.values.get("launch_share") or 0) > 0.5  # on a GPU
        doubts = " (launches)" * launches + " (noisy)" * point.noisy
        old = measured.partner(point, before) if before is not None else None
        rows.append(primitives.Bar(
            ", ".join(filter(None, [point.of, case_of(point.case)])), middle,
            f"{primitives.number(middle)} {unit}{doubts}",
            style.LINES[kinds.index(point.of) % len(style.LINES)],
            spread=sorted(value(point, s) for s in np.percentile(point.seconds, [25, 75])),
            before=value(old, old.median_s) if old and old.median_s else None,
        ))  # fmt: skip
    better = "shorter is better" if unit == "ms" else "longer is better"
    return bar_page(measured, rows, unit, better, before=before, title=title)


def bar_page(measured: Measurements, rows: list, label: str, *texts: str, **about: Any) -> Figure:
    """Return a page with one panel of bars, or with none where there are no `rows`."""
    panels = [(0.1, primitives.rows_in(len(rows)))] if rows else []
    room = {"left_in": BARS_LEFT_IN, "bottom_in": 0.5}
    figure, axes = page(measured, panels, *texts, **room | about)
    for each in axes:
        primitives.hbars(each, rows, label)
    return figure
