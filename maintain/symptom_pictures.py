"""Draw the pictures of notebooks/symptoms from shipped records and excerpts of public traces.

`python maintain/symptom_pictures.py` writes notebooks/symptoms/img/*.png.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from trace_lanes import FILE

import labkit as lk
from labkit.results.shipped import entries
from labkit.view import style

FOLDER = Path(__file__).parents[1] / "notebooks" / "symptoms" / "img"
WIDTH_IN = 7.2
ROW_IN = 0.42
# Pages with lanes of runs: {record: label}, and how long a stretch is drawn, s
LANES = {
    "too-few-workers": ({"workers-0": "no workers", "workers-6": "6 workers"}, 0.8),
    "slow-items": ({"stall-2": "prefetch_factor=2", "stall-8": "prefetch_factor=8"}, 2.4),
    "copies": ({"capstone-2": "line by line", "capstone-3": "one block"}, 0.9),
}
BARS = {  # pages with bars of throughput: {record: label}
    "costly-items": {f"decode-{count}": f"{count} workers" for count in (0, 2, 8)},
    "slow-storage": {f"workers-{count}": f"{count} workers" for count in (0, 1, 2, 4, 6, 8, 16)},
}
TRACES = {"launches": "rtx2080ti-launch-bound"}  # pages with an excerpt of a public trace
COLOURS = {"kernels": style.COMPUTE, "copies": style.COPY}
PARTS = {"wait": (0, 1), "copy": (2, 3), "compute": (4, 5)}  # columns of a run's stamps


def draw_lane(axes: Axes, row: int, spans: np.ndarray, colour: str) -> None:
    """Draw stretches (n, 2) of time as one lane."""
    widths = spans[:, 1] - spans[:, 0]
    axes.broken_barh(list(zip(spans[:, 0], widths, strict=True)), (row - 0.35, 0.7), color=colour)


def canvas(labels: list[str], below: str) -> tuple[Figure, Axes]:
    """Return a figure with a named row for each label, and what its axis shows."""
    figure = Figure((WIDTH_IN, ROW_IN * len(labels) + 0.55), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(below)
    return figure, axes


def recorded_canvas(labels: dict[str, str], unit: str) -> tuple[Figure, Axes, list[lk.Run]]:
    """Return a canvas that says on what the records were made, and their runs."""
    runs = [lk.recorded(name) for name in labels]
    machine = runs[0].machine
    below = f"{unit}; RECORDED on {machine.name}, {machine.cpu_cores} cores"
    return *canvas(list(labels.values()), below), runs


def lanes(labels: dict[str, str], seconds: float) -> Figure:
    """Draw what runs did over the same stretch of time."""
    figure, axes, runs = recorded_canvas(labels, "s")
    for row, run in enumerate(runs):
        stamps = run.stamps[run.warmup :]
        stamps = stamps[stamps[:, 5] < stamps[0, 0] + seconds] - stamps[0, 0]
        for part, columns in PARTS.items():
            draw_lane(axes, row, stamps[:, columns], style.PARTS[part][1])
    for part in PARTS:
        name, colour = style.PARTS[part]
        axes.plot([], [], color=colour, linewidth=5, label=name)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    axes.set_xlim(0, seconds)
    return figure


def bars(labels: dict[str, str]) -> Figure:
    """Draw the throughput of runs."""
    figure, axes, runs = recorded_canvas(labels, "samples/s")
    drawn = axes.barh(range(len(runs)), [run.throughput for run in runs], color=style.COMPUTE)
    axes.bar_label(drawn, fmt="{:,.0f}", padding=3)
    axes.margins(x=0.1)
    return figure


def trace(name: str) -> Figure:
    """Draw the lanes of a public trace's excerpt."""
    spans = {lane: each for lane, each in entries(FILE.name)[name].items() if lane != "steps"}
    figure, axes = canvas(list(spans), f"ms; PUBLISHED: {lk.public_trace(name).hardware}")
    for row, (lane, each) in enumerate(spans.items()):
        draw_lane(axes, row, np.array(each), COLOURS.get(lane, style.INSTRUMENT))
    return figure


@style.our_style
def main() -> None:
    """Write every picture."""
    figures = {page: lanes(*arguments) for page, arguments in LANES.items()}
    figures |= {page: bars(labels) for page, labels in BARS.items()}
    figures |= {page: trace(name) for page, name in TRACES.items()}
    for page, figure in figures.items():
        path = FOLDER / f"{page}.png"
        path.write_bytes(style.png_of(figure, sharpness=1.5))
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
