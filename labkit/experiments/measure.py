"""`lk.measure`, and what experiments share: slow modules, the page, and a bar for each point."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.results.launch import launch
from labkit.results.measurements import Measurement, Measurements
from labkit.spec import EXPERIMENTS, Experiment
from labkit.wiring import Later

# What the experiments' files need of torch, of the bench and of the figures
torch, nn = Later("torch"), Later("torch.nn")
data, flops, formats, loop, machine = (
    Later(f"labkit.bench.{name}") for name in ("data", "flops", "formats", "loop", "machine")
)
model_size, models, resolve_config, timeline = (
    Later(f"labkit.bench.{name}") for name in ("model_size", "models", "resolve_config", "timeline")
)
display, primitives, run_header, style = (
    Later(f"labkit.show.{name}") for name in ("display", "primitives", "run_header", "style")
)

ALIKE = 1.05  # bars that differ by no more are not compared in the title
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

    `name` is an experiment of `labkit.experiments` and `params` are its knobs; others raise
    ValueError before anything starts. `wait=False` returns at once. An interrupt stops it, and a
    notebook's cell returns what was measured. `plot` leaves the figure there when it is over.
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


def draw(measured: Measurements, before: Measurements | None = None) -> Any:
    """Draw what an experiment measured, as its file says or as bars; in grey the run `before`."""
    registered = EXPERIMENTS.get(measured.name)
    figure = registered.draw if registered and registered.draw and measured.points else bars
    has_room = before is not None and "before" in inspect.signature(figure).parameters
    return style.our_style(figure)(measured, **{"before": before} if has_room else {})


def page(
    measured: Measurements, panels: list[tuple[float, float]], *texts: str,
    before: Measurements | None = None, title: str = "", **room: float,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Return a figure with title (or help), knobs, `texts` and warnings above its axes."""
    known = EXPERIMENTS.get(measured.name)
    title = title or (known.help if known else measured.name)
    knobs = case_of({n: v for n, v in measured.params.items() if v is not None})
    runs = [run for run in (measured, before) if run is not None]
    lines = run_header.several_header(title, ["; ".join(filter(None, [knobs, *texts]))], runs)
    if before is not None:
        differs = {n: old for n, old in before.params.items() if measured.params.get(n) != old}
        mark = f"{before.mark}, " if before.recorded else ""
        said = f"before (grey): {mark}{case_of(differs) or 'the same values'}"
        lines.append((said, {"color": style.BEFORE}))
    if noisy := sum(point.noisy for point in measured):
        said = f"NOISY: {noisy} of {len(measured)} points varied by over 10%"
        lines.append((said, run_header.LOUD))
    if measured.outcome != "finished":
        said = f"{measured.outcome}: {measured.error or 'not complete'}"
        lines.append((said, run_header.LOUD))
    lines += [(f"not measured: {what}: {why}", {}) for what, why in measured.skipped.items()]
    return style.page(lines, panels, **room)


def case_of(values: dict[str, Any]) -> str:
    """Write parameters as text: n=64, count=1000."""
    shown = {n: f"{v:g}" if isinstance(v, float) else v for n, v in values.items()}
    return ", ".join(f"{n}={v}" for n, v in shown.items())


def telling_names(points: list[Any]) -> list[str]:
    """Name each point by what tells it from the others: what it is of, and its parameters."""
    shared = set.intersection(*({*point.case.items()} for point in points)) if points else set()
    cases = [case_of(dict(each for each in p.case.items() if each not in shared)) for p in points]
    one_kind = len({point.of for point in points}) == 1 and all(cases)
    return [", ".join(filter(None, ["" if one_kind else point.of, case]))
            for point, case in zip(points, cases, strict=True)]  # fmt: skip


def bars(measured: Measurements, before: Measurements | None = None) -> Any:
    """Draw a bar per timed point: its rate where FLOPs or bytes are counted, else its time."""
    timed = [point for point in measured if point.median_s]
    unit, value = next(m for m in METRICS.items() if not timed or m[1](timed[0], 1.0) is not None)
    kinds, rows = list(dict.fromkeys(point.of for point in timed)), []
    shown = [point for point in timed if value(point, 1.0) is not None]
    for point, name in zip(shown, telling_names(shown), strict=True):
        middle = value(point, point.median_s)
        launches = (point.values.get("launch_share") or 0) > 0.5  # on a GPU
        doubts = " (launches)" * launches + " (noisy)" * point.noisy
        old = measured.partner(point, before) if before is not None else None
        rows.append(primitives.Bar(
            name, middle, f"{primitives.number(middle)} {unit}{doubts}",
            style.LINES[kinds.index(point.of) % len(style.LINES)],
            spread=sorted(value(point, s) for s in np.percentile(point.seconds, [25, 75])),
            before=value(old, old.median_s) if old and old.median_s else None,
        ))  # fmt: skip
    if not rows:
        return page(measured, [], before=before)[0]
    order = sorted(rows, key=lambda row: row.value)
    (least, most), times = (order[0], order[-1]), unit == "ms"
    fast, slow = (least, most) if times else (most, least)
    ratio = primitives.number(most.value / least.value)
    title = f"{fast.name}: {ratio}x as fast as {slow.name}" if len(rows) > 1 else ""
    if len(rows) > 1 and most.value < ALIKE * least.value:
        apart = max(1, math.ceil(100 * (most.value / least.value - 1)))
        title = f"all within {apart} % of each other"
    better = f"{'shorter' if times else 'longer'} is better"
    left_in = min(3.2, 0.5 + 0.085 * max(len(row.name) for row in rows))
    figure, (axes,) = page(measured, [(0.1, primitives.rows_in(len(rows)))], better,
                           before=before, title=title, left_in=left_in, bottom_in=0.5)  # fmt: skip
    primitives.hbars(axes, rows, unit)
    return figure
