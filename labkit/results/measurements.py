"""What an experiment measured: like a Run, with points in place of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.results.event_log import EventLogResult, derived, fact
from labkit.results.result import noise
from labkit.spec import EXPERIMENTS, NOISY

UNITS = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))


@dataclass(frozen=True)
class Measurement:
    """One point: what was done, in which case, and the raw times of one call each (s)."""

    of: str
    case: dict[str, Any]
    seconds: np.ndarray  # (repeats,), sorted
    flops: float | None = None  # of one call, counted
    bytes: float | None = None  # of one call, counted
    values: dict[str, Any] = field(default_factory=dict)

    # fmt: off
    median_s = property(lambda p: float(np.median(p.seconds)) if len(p.seconds) else None,
                        doc="Median time of a call, s; None where nothing was timed.")
    spread = property(lambda p: None if len(p.seconds) < 4 else
                      float(np.diff(np.percentile(p.seconds, [25, 75]))[0] / p.median_s),
                      doc="IQR over median of the times; None for fewer than four.")
    noisy = property(lambda p: (p.spread or 0.0) > NOISY, doc="Whether small differences mean "
                     "nothing: `spread` is too large.")
    gb_per_s = property(lambda p: p.bytes / p.median_s / 1e9 if p.bytes and p.median_s else None,
                        doc="Counted bytes over the median time, 10^9 byte/s.")
    tflop_per_s = property(lambda p: p.flops / p.median_s / 1e12 if p.flops and p.median_s
                           else None, doc="Counted FLOPs over the median time, 10^12 FLOP/s.")
    # fmt: on

    def to_dict(self) -> dict[str, Any]:
        """The point and what follows from it, as JSON types."""
        names = "of case flops bytes median_s spread noisy gb_per_s tflop_per_s values"
        return {name: getattr(self, name) for name in names.split()}

    def __repr__(self) -> str:
        case = ", ".join(f"{name}={value}" for name, value in self.case.items())
        time = self.median_s or 0.0
        unit, scale = next((each for each in UNITS if time * each[1] >= 1), UNITS[-1])
        parts = [
            f"{self.of}({case})",
            time and f"{time * scale:.3g} {unit}",
            self.gb_per_s and f"{self.gb_per_s:.1f} GB/s",
            self.tflop_per_s and f"{self.tflop_per_s * 1e3:.1f} GFLOP/s",
            *(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={str(value)[:40]}"
              for name, value in self.values.items()),
            self.noisy and noise(self.spread, "times"),
        ]  # fmt: skip
        return " ".join(filter(None, parts))


class Measurements(EventLogResult):
    """What an experiment measured: its points, in order. Live or recorded, like a Run."""

    def __init__(self, path: Path, process: Any = None, recorded: bool = False):
        """Read the log at `path`; the arguments are those of an `EventLogResult`."""
        self._points: list[Measurement] = []
        self._skipped: dict[str, str] = {}
        super().__init__(path, process, recorded)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "measurement":
            times = np.array([time for time in event["seconds"] if _positive(time)], float)
            flops, bytes = (_positive(event.get(name)) for name in ("flops", "bytes"))
            values = event["values"] if isinstance(event.get("values"), dict) else {}
            point = Measurement(event["of"], event["case"], times, flops, bytes, values)
            self._points.append(point)
        elif event["event"] == "skipped":
            self._skipped[event["what"]] = event["why"]
        else:
            super()._take(event)

    points = derived(lambda log: log._points, "What was measured, in order.")
    skipped = derived(lambda log: log._skipped, "{what was not measured: why}.")
    name = fact("spec", "experiment", "The experiment's name.")
    params = fact("spec", "params", "The experiment's parameters.", {})

    @property
    def has_figure(self) -> bool:
        """Whether there is something to draw: a figure of its own, or times for bars."""
        own = self.name in EXPERIMENTS and EXPERIMENTS[self.name].draw is not None
        return not self.error and any(own or point.median_s for point in self.points)

    def where(self, of: str | None = None, **case: Any) -> list[Measurement]:
        """Return the points of the operation `of` whose case has these values."""
        found = [point for point in self.points if of in (None, point.of)]
        return [p for p in found if all(p.case.get(name) == case[name] for name in case)]

    def one(self, of: str | None = None, **case: Any) -> Measurement:
        """Return the one such point; raises LookupError, with the reason, where it is not there."""
        found = self.where(of, **case)
        if len(found) != 1:
            wanted = f"{of or 'point'} {case or ''}".strip()
            why = self.skipped.get(of or "") or self.error or f"there are {len(found)} of them"
            raise LookupError(f"{self.name}: no single {wanted}: {why}")
        return found[0]

    def ratio(self, slow: Measurement, fast: Measurement) -> float:
        """How many times as long `slow` took as `fast`, by their medians."""
        return slow.median_s / fast.median_s

    def partner(self, point: Measurement, before: Measurements) -> Measurement | None:
        """Return the point of `before` of the same case, else of the same place among its kind."""
        now, then = self.where(point.of), before.where(point.of)
        same = [old for old in then if old.case == point.case]
        if not same and len(now) == len(then):
            same = [then[now.index(point)]]
        return same[0] if same else None

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, as JSON types."""
        names = ("id", "utc", "recorded", "outcome", "error", "mark", "params", "skipped")
        return {
            **{name: getattr(self, name) for name in names},
            "experiment": self.name,
            "machine": self.machine.to_dict(),
            "points": [point.to_dict() for point in self.points],
        }

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def _what(self) -> str:
        return self.name

    @derived
    def numbers(self) -> str:
        """How much was measured, in a few words."""
        noisy = sum(point.noisy for point in self)
        count = f"{len(self)} point{'' if len(self) == 1 else 's'}"
        return count + (f"; NOISY: {noisy} of them" if noisy else "")


def _positive(value: Any) -> float | None:  # as times and counts are; a record is anybody's
    return value if isinstance(value, (int, float)) and 0 < value < float("inf") else None
