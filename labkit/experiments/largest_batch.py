"""The largest batch that fits: a bisection whose every try is a process of its own.

An out-of-memory error ends that try and nothing else. What fits is tried again, for more steps, in
a fresh process, before it is believed.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from labkit.results.machine import Machine
from labkit.results.measurements import Measurements
from labkit.spec import KNOBS, Pipeline

STEPS, CONFIRMING_STEPS = 3, 12  # the optimizer's state is there from the second step on
LEAP = 8  # at most so many times the last size that fitted: the line is no law beyond
FINE = 32  # good enough: a gap of a 32nd of what fits
KILLED = "SIGKILL"  # the system's own out-of-memory killer


@dataclass(frozen=True)
class Try:
    """One size that was tried: whether it trained for `steps` steps, and what it took, GiB."""

    batch_size: int
    fits: bool
    steps: int
    peak_gib: float | None = None
    why: str | None = None  # it did not fit
    confirming: bool = False


class LargestBatch:
    """What `lk.largest_batch` found: `.batch_size`, `.tried`, and under which limit.

    `batch_size` is None where not even one sample fits, and as long as nothing was confirmed.
    """

    def __init__(self, pipeline: Pipeline, margin: float, multiple: int, most: int):
        self.pipeline, self.margin, self.multiple, self.most = pipeline, margin, multiple, most
        self.tried: list[Try] = []
        self.limit_gib: float | None = None  # known from the first try on
        self.how, self.machine = "", Machine.from_dict({})

    @property
    def batch_size(self) -> int | None:
        """The largest size that fitted twice, the second time for more steps."""
        return max((t.batch_size for t in confirmed(self.tried)), default=None)

    @property
    def next(self) -> tuple[int, int] | None:
        """The size to try next and for how many steps; None where the search is over."""
        best, low = self.batch_size or 0, fitting(self.tried)
        room = self.limit_gib * (1 - self.margin) if self.limit_gib else None
        start = min(self.pipeline.batch_size, self.most)
        size = next_size(self.tried, start, self.most, self.multiple, room)
        if size is not None:
            return size, STEPS
        return (low, CONFIRMING_STEPS) if low > best else None

    def take(self, measured: Measurements) -> Try:
        """Add the try that `measured` tells of; raise RuntimeError where it failed otherwise."""
        size, steps = measured.params["batch_size"], measured.params["steps"]
        self.machine = measured.machine
        confirming = steps == CONFIRMING_STEPS
        if not measured.points:
            if measured.outcome == "stopped":
                raise KeyboardInterrupt
            if KILLED not in (measured.error or ""):
                raise RuntimeError(f"batch_size={size}: {measured.error or measured.outcome}")
            done = Try(size, False, 0, None, measured.error, confirming)
        else:
            found = measured.points[-1].values
            self.limit_gib, self.how = found["limit_bytes"] / 2**30, found["how"]
            peak = found["peak_bytes"]
            peak_gib = None if peak is None else peak / 2**30
            done = Try(size, found["fits"], found["steps"], peak_gib, found["why"], confirming)
        self.tried.append(done)
        return done

    def rows(self) -> list[tuple[str, ...]]:
        """The table of what was tried, in order, every cell as text."""
        head = ("batch", "steps", "peak GiB", "fits", "")
        return [head, *(_cells(t, self.batch_size) for t in self.tried)]

    @property
    def line(self) -> str:
        """What was found, and under which limit, in words."""
        if self.limit_gib is None:
            return "nothing was tried to its end"
        limit = f"{self.limit_gib:.3g} GiB less a margin of {self.margin:.0%}: {self.how}"
        if self.batch_size is None:
            found = "not even one sample fits" if self.next is None else "search not over"
            return f"{found} in {limit}"
        ended = " (the most that was asked for)" if self.batch_size == self.most else ""
        ended = ended if self.next is None else " so far: search not over"
        return f"largest batch {self.batch_size}{ended} in {limit}"

    def plot(self) -> Any:
        """Draw memory against batch size as a matplotlib Figure."""
        from labkit.experiments.batch_finder_figure import draw

        return draw(self)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "batch_size": self.batch_size, "limit_gib": self.limit_gib, "margin": self.margin,
            "how": self.how, "machine": self.machine.to_dict(),
            "pipeline": self.pipeline.to_dict(), "tried": [vars(t) for t in self.tried],
        }  # fmt: skip

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, self.line])

    def _repr_html_(self) -> str:
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        machine = f"; {self.machine.line}" if self.tried else ""
        return f"<table>{body}</table><p><small>{html.escape(self.line + machine)}</small></p>"


def find(
    search: LargestBatch, attempt: Callable[[int, int], Measurements], each: Callable[[], None]
) -> LargestBatch:
    """Run `attempt(batch_size, steps)` until the search is over, calling `each` after every one."""
    while (plan := search.next) is not None:
        search.take(attempt(*plan))
        each()
    return search


def check(margin: float, multiple: int, most: int, limit_gib: float | None) -> None:
    """Raise ValueError for a bad setting, naming it and what is allowed."""
    if not 0 <= margin < 1:
        raise ValueError(f"margin={margin!r} is not allowed: use a share from 0 up to 1.")
    if limit_gib is not None and not limit_gib > 0:
        raise ValueError(f"limit_gib={limit_gib!r} is not allowed: use GiB above 0, or None.")
    if multiple < 1:
        raise ValueError(f"multiple={multiple!r} is not allowed: use a whole number from 1.")
    KNOBS["batch_size"].check(most)


def fitting(tried: Iterable[Try]) -> int:
    """The largest size that fitted and lies below every size that did not; 0 without any."""
    tried = list(tried)
    refused = min((t.batch_size for t in tried if not t.fits), default=None)
    sizes = (t.batch_size for t in tried if t.fits)
    return max((s for s in sizes if refused is None or s < refused), default=0)


def confirmed(tried: Iterable[Try]) -> list[Try]:
    """The tries that fitted for the longer time, no larger than any that did not fit."""
    tried = list(tried)
    low = fitting(tried)
    return [t for t in tried if t.fits and t.confirming and t.batch_size <= low]


def next_size(
    tried: list[Try], start: int, most: int, multiple: int, room_gib: float | None
) -> int | None:
    """Return the size to try next, or None where the bracket is small enough.

    Upwards it doubles, or leaps to where a line through the measured peaks meets the limit;
    between a size that fits and one that does not, it tries by turns what the line says and the
    middle, so that a line that misleads costs at most as many tries again as plain bisection.
    Sizes from `multiple` on are multiples of it.
    """
    if not tried:
        return start
    low = fitting(tried)
    high = min((t.batch_size for t in tried if not t.fits), default=None)
    guess = _line_meets(tried, room_gib)
    if high is None:
        if low >= most:
            return None
        below = max((t.batch_size for t in tried if t.batch_size < low), default=0)
        return min(most, _even(_upwards(low, below, guess, multiple), multiple, low))
    unit = 1 if high <= multiple else multiple
    if high - low <= max(unit, low // FINE):
        return None
    by_line = guess is not None and len(tried) % 2 == 0
    wanted = guess if by_line else (low + high) // 2
    inside = min(max(wanted, low + unit), high - 1)
    return max(low + 1, _even(inside, multiple, low))


def _upwards(low: int, below: int, guess: int | None, multiple: int) -> int:
    """Where to go as long as everything fits: to the line's limit, then just beyond it.

    `below` is the size tried before `low`: where going just beyond did not help, it doubles.
    """
    if guess is not None and guess >= low + multiple:
        return min(guess, LEAP * low)
    small = max(multiple, low // FINE)
    return low + small if guess is not None and low - below > small else 2 * low


def _even(size: int, multiple: int, low: int) -> int:
    """Round down to a multiple, where that is above `low`."""
    rounded = size // multiple * multiple
    return rounded if rounded > low else size


def _line_meets(tried: list[Try], room_gib: float | None) -> int | None:
    """Where the line through the two largest measured peaks meets the limit; None without one."""
    peaks = {t.batch_size: t.peak_gib for t in tried if t.fits and t.peak_gib}
    if len(peaks) < 2 or not room_gib:
        return None
    (b0, p0), (b1, p1) = sorted(peaks.items())[-2:]
    if p1 <= p0:
        return None
    meets = b1 + (room_gib - p1) * (b1 - b0) / (p1 - p0)
    return int(min(max(meets, 0), KNOBS["batch_size"].high))  # it may be infinite


def _cells(done: Try, best: int | None) -> tuple[str, ...]:
    peak = "-" if done.peak_gib is None else f"{done.peak_gib:.3f}"
    notes = ["checked again" if done.confirming else ""]
    notes += ["largest" if done.confirming and done.batch_size == best else "", done.why or ""]
    fits = "yes" if done.fits else "no"
    return (
        str(done.batch_size), str(done.steps), peak, fits, ", ".join(filter(None, notes))[:90],
    )  # fmt: skip
