"""The figure of `lk.published(name)`: hollow diamonds are published, filled marks the reader's own.

An entry's `figure` says what it shows: "dots", a row per name (`over`: divided by another column;
`limit`: a tick), or "lines", `panels` of y against x (`share`: of a line's own best).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from labkit.analysis.cost import power
from labkit.analysis.datasheets import card
from labkit.analysis.published import Published
from labkit.results.measurements import Measurements
from labkit.results.run import Run
from labkit.results.sweep import Sweep
from labkit.show import primitives
from labkit.show.ladder import Ladder, Scaling
from labkit.show.primitives import HOLLOW, Series
from labkit.show.run_header import BOLD, GREY, LOUD, said
from labkit.show.style import ALARM, LEGEND_ROW_IN, LINES, drawable, legend_columns, our_style, page

OWN = {"marker": "o", "markersize": 7, "color": LINES[1]}
RECORDED = OWN | {"marker": "s", "color": ALARM}  # by labkit, on another machine
DASHED = {"color": "#777777", "linestyle": "--", "linewidth": 1}

# One of the reader's points: (its run, name or x, value or {column: y}, the limit or None)
Point = tuple[Any, Any, Any, Any]


@our_style
def draw(published: Published, beside: Any = None, **case: Any) -> Figure:
    """Draw published points, and `beside` them what was measured here; never as one series.

    `case` picks other rows, as in card="RTX 4090". Raises ValueError where `beside` is nothing
    that these numbers can stand beside, or has no numbers.
    """
    figure, rows = published.figure, published.where(**(case or published.shown))
    own = [] if beside is None else own_points(published, beside)
    chosen = ", ".join(map(str, case.values()))
    header = [
        (f"PUBLISHED: {published.hardware}, measured by others", LOUD | {"fontsize": 10}),
        (f"{published.title}: {chosen}" if case else published.message, BOLD),
        ("; ".join(filter(None, [published.measured, published.note])), {}),
        (f"{published.repository} @ {published.commit[:7]}, {published.licence}", GREY),
    ]
    mine = dict(mark_of(run) for run, *_ in own)
    return (dots if figure["kind"] == "dots" else curves)(published, rows, own, header, mine)


def dots(published: Published, rows: Any, own: list[Point], header: Any, mine: Any) -> Figure:
    """Draw a row per name, the published ones first."""
    spec, blue, drawn = published.figure, HOLLOW | {"color": LINES[0], "ls": ""}, []
    for row in rows:
        first = spec.get("over") == "the first row"
        base = rows[0][spec["value"]] if first else row.get(spec.get("over"), 1)
        value, limit = row[spec["value"]] / base, row.get(spec.get("limit"))
        text = spec["say"].format(**row, gain=value, share=value / (limit or value))
        drawn.append((blue, spec["name"].format(**row), value, limit, text))
    for run, name, value, limit in own:
        rate = spec["beside"]["kind"] == "rates"
        text = primitives.flops_text(value) if rate else f"{value:.2f}x"
        text += f" ({value / limit:.0%} of {limit:,.3g})" if limit else ""
        drawn.append((mark_of(run)[1], name, value, limit, text))
    looks = {f"published, {published.repository}": blue}
    looks |= {label: look | {"ls": ""} for label, look in mine.items()}
    figure, (axes,) = page(header, [above_it(looks, primitives.rows_in(len(drawn)))], 2.9, 0.5)
    for value in spec.get("band", ()):
        axes.axvline(value, zorder=0, **DASHED)
    ends = [(max(value, limit or 0), text) for _, _, value, limit, text in drawn]
    for y, (look, _, value, limit, text) in enumerate(drawn):
        axes.plot([value], [y], **look)
        if limit:
            axes.plot([limit], [y], "|", color=look["color"], markersize=13, markeredgewidth=2)
        primitives.beside(axes, ends[y][0], y, f" {text}")
    primitives.name_rows(axes, [name for _, name, *_ in drawn])
    primitives.fit(axes, ends)
    if spec.get("log"):
        least, most, wide = min(each[2] for each in drawn), max(ends)[0], axes.get_xlim()[1]
        axes.set(xscale="log", xlim=(least / 1.4, most * (most / least) ** (wide / most - 1)))
        primitives.log_ticks(axes.xaxis)
    axes.set_xlabel(spec["x"])
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    primitives.legend(axes, looks)
    return figure


def curves(published: Published, rows: Any, own: list[Point], header: Any, mine: Any) -> Figure:
    """Draw a panel per number against x: a line per card, and the reader's own points."""
    spec, groups = published.figure, {}
    for row in sorted(rows, key=lambda row: row[spec["x"]]):
        groups.setdefault(spec["by"].format(**row), []).append(row)
    diagonal, inks = spec.get("diagonal"), dict(zip(groups, LINES, strict=False))
    dash = "" if diagonal else ":"
    legend = {f"{n} (published)": HOLLOW | {"color": c, "ls": dash} for n, c in inks.items()} | mine
    legend |= {diagonal: DASHED} if diagonal else {}
    panels = [above_it(legend, 2.0), *[(0.24, 1.8)] * (len(spec["panels"]) - 1)]
    figure, drawn = page(header, panels)
    batches = sorted({each[1] for each in own} | {row[spec["x"]] for row in rows})
    ticks = {x: f"{x:,}" for x in batches} if spec["x"] == "batch" else None
    for axes, panel in zip(drawn, spec["panels"], strict=True):
        of, key, series = panel.get("share"), panel.get("own", panel["y"]), []
        for name, group in groups.items():
            y = np.array([row[panel["y"]] for row in group], float)
            y = share(1 / y if of == "time" else y, of)
            x = [row[spec["x"]] for row in group]
            series.append(Series("", x, y, inks[name], dash, hollow=True))
        for label, look in mine.items():
            found = [(x, y[key]) for run, x, y, _ in own if mark_of(run)[0] == label and y.get(key)]
            x, y = np.array(sorted(found), float).reshape(-1, 2).T
            series.append(Series("", x, share(y, of), look["color"], dash and "-", look["marker"]))
        log, last = "x" * spec.get("xlog", False) + panel.get("log", ""), axes is drawn[-1]
        xlabel = spec["xlabel"] if last else ""
        primitives.lines(axes, series, xlabel, panel["label"], log=log, xticks=ticks)
        if diagonal:
            axes.plot(axes.get_xlim(), axes.get_xlim(), zorder=1, **DASHED)
        axes.tick_params(labelbottom=last)
        axes.set_xlim(drawn[0].get_xlim())
    primitives.legend(drawn[0], legend)
    return figure


def above_it(looks: Any, height: float) -> tuple[float, float]:
    """Return a panel's space above, for its legend, and its height, inches."""
    return 0.14 + LEGEND_ROW_IN * -(-len(looks) // legend_columns(list(looks))), height


def share(values: np.ndarray, of: str | None) -> np.ndarray:
    """Return values as shares of the highest, where the panel asks `of` anything."""
    return values / values.max() if of and len(values) else values


def mark_of(run: Any) -> tuple[str, dict[str, Any]]:
    """Return label and look of the points of a run: one RECORDED was not measured here either."""
    name = drawable(run.machine.name, 40)
    return (f"RECORDED: {name}", RECORDED) if run.recorded else (f"measured here: {name}", OWN)


def own_points(published: Published, thing: Any) -> list[Point]:
    """Return the reader's own points; ValueError says what to give where there are none."""
    if (join := published.figure.get("beside")) is None:
        raise ValueError(f"{published.name}: nothing that is measured here compares with it.")
    runs, found = [thing] if isinstance(thing, Run) else thing, []
    several = isinstance(runs, (Sweep, list, tuple)) and all(isinstance(r, Run) for r in runs)
    runs = [run for run in runs if run.throughput] if several else []
    kind = join["kind"]
    if kind == "rates" and isinstance(thing, Measurements):
        found = rates(thing)
    elif kind == "ladder" and isinstance(thing, Ladder):
        found = [(r.run, r.name, r.total or 1.0, None) for r in thing.rungs if r.run.throughput]
    elif kind == "scaling" and isinstance(thing, Scaling):
        for name, (ranks, one) in thing.rows.items():
            found.append((one, name, ranks.speedup(one), len(ranks)))
    elif kind == "gain":
        found = gains(runs, join["knob"], join["from"])
    for run in runs:
        knobs = run.pipeline
        if kind == "batch":
            numbers = {"rate": run.throughput, "ms": run.compute_ms, "power_w": power(run)[0]}
            found.append((run, knobs.batch_size, numbers, None))
        if kind == "law":  # against the stated waiting for a batch, over the workers that share it
            each = knobs.batch_size * (knobs.io_ms or 0)
            waiting = knobs.prep_ms or 0 if knobs.dataset == "sleep" else each
            x = waiting / max(1, knobs.num_workers)
            found += [(run, x, {"step_ms": run.step_ms}, None)] if x else []
    found = [point for point in found if point[2]]
    if not found:
        what = type(thing).__name__
        raise ValueError(f"beside: {what} has no such numbers; give {join['give']}.")
    return found


def rates(measured: Measurements) -> list[Point]:
    """Return the fastest matrix product of each format, with the data sheet's peak if known."""
    best: dict[str, float] = {}
    for point in measured.where("matmul"):
        name = str(point.case.get("format") or point.case.get("precision"))
        best[name] = max(point.tflop_per_s or 0, best.get(name, 0))
    name, sheet = measured.machine.name, card(measured.machine.name)
    peaks = sheet.tflop_per_s if sheet else {}
    return [(measured, f"{drawable(name, 30)}, {f}", v, peaks.get(f)) for f, v in best.items()]


def gains(runs: list[Run], knob: str, plain: list[Any]) -> list[Point]:
    """Return the throughput of each run over that of the run before the change, else alike."""
    found, before = [], {}
    for run in sorted(runs, key=lambda run: getattr(run.pipeline, knob) not in plain):
        knobs = run.pipeline.to_dict() | {"on": mark_of(run)[0]}
        changed = {knob: knobs.pop(knob)}
        base = before.setdefault(str(knobs), run)
        if changed[knob] not in plain and getattr(base.pipeline, knob) in plain:
            name = f"{run.pipeline.model}: {said(changed)}"
            found.append((run, name, run.throughput / base.throughput, None))
    return found
