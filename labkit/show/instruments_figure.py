"""Small multiples: each instrument's line over the same true intervals."""

from __future__ import annotations

from typing import Any

from labkit.analysis.instruments import Instruments
from labkit.show.run_header import run_header
from labkit.show.style import COMPUTE, our_style, page

ROW_IN = 0.62


@our_style
def draw(instruments: Instruments) -> Any:
    """Return a Picture: a row per instrument, its readings as a line over the device's teeth."""
    run = instruments.run
    shown = [reading for reading in instruments if len(reading.shares)]
    picture, axes = page(run_header(run), [(0.34, ROW_IN)] * len(shown))
    end = run.busy[-1, 1]
    for axis, reading in zip(axes, shown, strict=True):
        first = reading is shown[0]
        axis.fill_between(
            *_teeth(run), step="post", color=COMPUTE, alpha=0.9 if first else 0.25, lw=0
        )
        if not first:
            axis.step(
                [*reading.times_s, end], [*reading.shares, reading.shares[-1]], where="post",
                color="black", lw=1.2, marker="." if len(reading.shares) < 40 else None,
            )  # fmt: skip
        off = (
            "" if reading.distance_pp is None or first else f": off by {reading.distance_pp:.0f} pp"
        )
        axis.set_title(f"{reading.name}{off}  ({reading.source})", loc="left", pad=3)
        axis.set(xlim=(0, end), ylim=(0, 1.05), yticks=[0, 1], yticklabels=["0 %", "100 %"])
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("seconds since the first batch was asked for")
    return picture


def _teeth(run: Any) -> tuple[list[float], list[float]]:
    times, shares = [], []
    for start, end in run.busy.tolist():
        times += [start, end]
        shares += [1.0, 0.0]
    return times, shares
