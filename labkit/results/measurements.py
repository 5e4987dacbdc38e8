"""What an experiment measured: a log with the isolation, outcomes, records and replay of a Run.

It has points in place of steps. What was asked for is a `labkit.spec.Experiment`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.results.event_log import EventLogResult
from labkit.spec import NOISY
from labkit.wiring import above


@dataclass(frozen=True)
class Measurement:
    """One point: what was done, in which case, and the raw times of one call each (s)."""

    of: str
    case: dict[str, Any]
    seconds: np.ndarray  # (repeats,), sorted
    flops: float | None = None  # of one call, counted
    bytes: float | None = None  # of one call, counted
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def median_s(self) -> float | None:
        """Median time of a call, s; None where nothing was timed."""
        return float(np.median(self.seconds)) if len(self.seconds) else None

    @property
    def spread(self) -> float | None:
        """IQR over median of the times; None for fewer than four."""
        if len(self.seconds) < 4:
            return None
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / self.median_s)

    @property
    def noisy(self) -> bool:
        """Whether the times differ so much that small differences mean nothing."""
        return self.spread is not None and self.spread > NOISY

    @property
    def gb_per_s(self) -> float | None:
        """Counted bytes over the median time, 10^9 byte/s."""
        return self.bytes / self.median_s / 1e9 if self.bytes and self.median_s else None

    @property
    def tflop_per_s(self) -> float | None:
        """Counted FLOPs over the median time, 10^12 FLOP/s."""
        return self.flops / self.median_s / 1e12 if self.flops and self.median_s else None

    def to_dict(self) -> dict[str, Any]:
        """The point and what follows from it, as JSON types."""
        numbers = ("flops", "bytes", "median_s", "spread", "noisy", "gb_per_s", "tflop_per_s")
        return {
            "of": self.of,
            "case": self.case,
            **{name: getattr(self, name) for name in numbers},
            "values": self.values,
        }

    def __repr__(self) -> str:
        case = ", ".join(f"{name}={value}" for name, value in self.case.items())
        parts = [f"{self.of}({case})"]
        if self.median_s is not None:
            parts.append(_time(self.median_s))
        if self.gb_per_s:
            parts.append(f"{self.gb_per_s:.1f} GB/s")
        if self.tflop_per_s:
            parts.append(f"{self.tflop_per_s * 1e3:.1f} GFLOP/s")
        parts += [f"{name}={_short(value)}" for name, value in self.values.items()]
        return " ".join(parts) + (
            f" NOISY: times varied by {self.spread:.0%} (IQR/median)" if self.noisy else ""
        )


class Measurements(EventLogResult):
    """What an experiment measured: its points, in order. Live or recorded, like a Run."""

    def __init__(self, path: Path, process: Any = None, recorded: bool = False):
        """Read the log at `path`; `process` is the live supervisor's handle, None for a record."""
        self._points: list[Measurement] = []
        self._skipped: dict[str, str] = {}
        super().__init__(path, process, recorded)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "measurement":
            self._points.append(_point(event))
        elif event["event"] == "skipped":
            self._skipped[event["what"]] = event["why"]
        else:
            super()._take(event)

    @property
    def points(self) -> list[Measurement]:
        """What was measured, in order."""
        return self._now()._points

    @property
    def skipped(self) -> dict[str, str]:
        """{what was not measured: why}."""
        return self._now()._skipped

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self._last.get("spec", {}).get("experiment"))

    @property
    def params(self) -> dict[str, Any]:
        """The experiment's parameters."""
        return dict(self._last.get("spec", {}).get("params") or {})

    def where(self, of: str | None = None, **case: Any) -> list[Measurement]:
        """Return the points of the operation `of` whose case has these values."""
        return [
            point
            for point in self.points
            if of in (None, point.of)
            and all(point.case.get(name) == value for name, value in case.items())
        ]

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
        return {
            "id": self.id, "utc": self.utc, "recorded": self.recorded, "outcome": self.outcome,
            "error": self.error, "mark": self.mark, "experiment": self.name, "params": self.params,
            "machine": self.machine.to_dict(), "skipped": self.skipped,
            "points": [point.to_dict() for point in self.points],
        }  # fmt: skip

    def plot(self, **drawing: Any) -> Any:
        """Draw the points as a matplotlib Figure, in the way that suits this experiment."""
        return above("Measurements.plot")(self, **drawing)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.recorded else ""
        count = "1 point" if len(self) == 1 else f"{len(self)} points"
        head = f"{mark}Measurements({self.name}) {self.outcome}: "
        noisy = sum(point.noisy for point in self)
        tail = f"; NOISY: {noisy} of them" if noisy else ""
        return head + (self.error or count + tail)


def _point(event: dict[str, Any]) -> Measurement:
    return Measurement(
        event["of"],
        event["case"],
        np.array([value for value in event["seconds"] if _number(value)], float),
        _number(event.get("flops")),
        _number(event.get("bytes")),
        values if isinstance(values := event.get("values"), dict) else {},
    )


def _number(value: Any) -> float | None:
    """The value if it is a positive number, as times and counts are; a record is anybody's."""
    sound = isinstance(value, (int, float)) and 0 < value < float("inf")
    return value if sound else None


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:40]
