"""A run's times as arrays: its steps on one clock, and what its data cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
CLASSES = {  # of a step's time
    "wait": "waiting for data",
    "copy": "host-to-device copy",
    "compute": "device compute",
    "launch": "launch gaps",
    "other": "host work between steps",
}
NUMBERS = 10  # of a row of the bench's item timer, a batch each; then two lists, of the items


class Timeline:
    """The steps of a run in seconds since its first batch was asked for.

    The clock stands still between two passes over a watched loader (validation, checkpoints), of
    which the watch saw nothing.
    """

    def __init__(self, steps: list[dict[str, Any]], passes: list[int]):
        """`passes` holds the number of the first step of each pass over a watched loader."""
        self.size = len(steps), len(passes)
        self._zero_ns = steps[0]["t"][0] if steps else 0
        stamps = stamps_ns(steps)
        first = np.array(sorted({i for i in passes if 0 < i < len(steps)}), dtype=np.int64)
        start = stamps[first - 1, 5]
        end = np.maximum(start, stamps[first, 0])
        gone = np.cumsum(end - start)
        # Both (2 * pauses,): start and end of each pause, and how long all had lasted by then, ns
        self._edges = np.column_stack([start, end]).ravel()
        self._gone = np.column_stack([gone - (end - start), gone]).ravel()
        self.stamps = self._running(stamps) / 1e9  # (steps, 6), s: see `stamps_ns`
        done_ns = np.array([step["t"][3] for step in steps], dtype=np.int64)
        self.issued = self._running(done_ns - self._zero_ns) / 1e9  # (steps,), s

    def _running(self, moment_ns: Any) -> Any:
        """Return a moment (a number or an array, ns) on the clock that stands still in pauses."""
        if not len(self._edges):
            return moment_ns
        return moment_ns - np.interp(moment_ns, self._edges, self._gone)

    def seconds(self, t_ns: int) -> float:
        """Return a stamp of the run's clock in s; NaN within a pause, which is no time of it."""
        moment = t_ns - self._zero_ns
        in_pause = np.searchsorted(self._edges, moment) % 2
        return float("nan") if in_pause else float(self._running(moment)) / 1e9

    def utilization(self, bins: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (bins,) s and the busy share (bins,) of equal stretches, stamped at the middle."""
        busy = self.stamps[:, 4:6]
        if len(busy) == 0:
            return np.empty(0), np.empty(0)
        edges = np.linspace(0.0, busy[-1, 1], bins + 1)
        return (edges[:-1] + edges[1:]) / 2, np.diff(busy_until(busy, edges)) / np.diff(edges)


def stamps_ns(steps: list[dict[str, Any]]) -> np.ndarray:
    """Return (steps, 6), ns: asked, ready, copy start, copy end, busy start, busy end.

    Where the events have no device times (a CPU), copy and compute are what the host did.
    """
    rows = [
        (*step["t"][:2], *step.get("copy", step["t"][1:3]), *step.get("busy", step["t"][2:]))
        for step in steps
    ]
    stamps = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return stamps - stamps[:1, :1]


def unevenness(ends_s: np.ndarray, blocks: int) -> float | None:
    """Return IQR over median of the steps per second in `blocks` stretches; None where too few."""
    if len(ends_s) < 3 * blocks:
        return None
    edges = np.linspace(0, len(ends_s) - 1, blocks + 1).astype(int)
    seconds = np.diff(ends_s[edges])
    if (seconds <= 0).any():  # stamps that no clock made
        return None
    low, middle, high = np.percentile(np.diff(edges) / seconds, [25, 50, 75])
    return float((high - low) / middle)


def busy_until(busy: np.ndarray, moments_s: np.ndarray) -> np.ndarray:
    """Return the seconds that the device had been busy by each moment; `busy` is (n, 2), s."""
    done = np.concatenate([[0.0], np.cumsum(busy[:, 1] - busy[:, 0])])
    total = np.column_stack([done[:-1], done[1:]]).ravel()  # flat between intervals, rising inside
    return np.interp(moments_s, busy.ravel(), total, left=0.0)


def split_steps(stamps: np.ndarray) -> np.ndarray:
    """Split each step but the first, from the end before to its own: (steps - 1, 5), s.

    Every moment is in the first of these that was going on: compute, copy, wait, launch (the device
    waits for its next piece of work); else in `other`.
    """
    if len(stamps) < 2:
        return np.zeros((0, 5))
    asked, ready, copy_start, copy_end, busy_start, busy_end = stamps.T
    end = np.maximum.accumulate(busy_end)
    begin, end = np.minimum(end[:-1], end[1:]), end[1:]  # each step's window
    start = np.clip(busy_start[1:], begin, end)
    first = np.clip(copy_start[1:], begin, start)
    last = np.clip(copy_end[1:], first, start)
    # What the host did in the two stretches of the gap that no copy fills. On a GPU it may have
    # been at a later step's data by then, so it is asked by time, not by step number. When it had
    # issued a step is known exactly on a CPU, and bounded by what came next elsewhere.
    issued = np.maximum(ready, np.minimum(busy_end, np.append(asked[1:], np.inf)))
    wait, launch = (
        busy_until(host, first) - busy_until(host, begin)
        + busy_until(host, start) - busy_until(host, last)
        for host in (np.column_stack([asked, ready]), np.column_stack([ready, issued]))
    )  # fmt: skip
    other = (first - begin) + (start - last) - wait - launch
    return np.column_stack([wait, last - first, end - start, launch, np.maximum(other, 0.0)])


@dataclass(frozen=True)
class ItemCosts:
    """Per prepared batch, in the order of their start; times in s, one entry a batch."""

    number: np.ndarray  # which batch of its loader process it was, from 0
    start: np.ndarray  # when it began, on the run's clock
    cpu: np.ndarray  # CPU time of fetching its samples
    wait: np.ndarray  # time of fetching in which the process wanted no core: it read or slept
    collate_cpu: np.ndarray  # as `cpu` and `wait`, of the collate step
    collate_wait: np.ndarray
    between: np.ndarray  # CPU time of the process, all threads, since the batch before
    item_cpu: list[np.ndarray]  # as `cpu`, of single samples; empty where not timed singly
    item_wait: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> ItemCosts:
        """Return the batches where the mask `keep` is true."""
        rows = np.flatnonzero(keep)
        return ItemCosts(*([column[row] for row in rows] if isinstance(column, list)
                           else column[rows] for column in vars(self).values()))  # fmt: skip


def item_costs(run: Any) -> ItemCosts | None:
    """Read what `run` measured of its items; None where it measured nothing (an older record)."""
    rows = [row for event in run.item_events for row in event["rows"] if _is_sound(row)]
    if not rows:
        return None
    rows.sort(key=lambda row: row[1])
    table = np.array([row[:NUMBERS] for row in rows], dtype=float).T
    cpu, wait, line, collate_cpu, collate_wait, collate_line, between = table[3:] / 1e6
    return ItemCosts(
        table[0].astype(int),
        np.array([run.seconds(row[1]) for row in rows]),
        cpu,
        np.maximum(0.0, wait - LINE_MISSED * line),
        collate_cpu,
        np.maximum(0.0, collate_wait - LINE_MISSED * collate_line),
        between,
        *([np.array(row[place]) / 1e6 for row in rows] for place in (-2, -1)),
    )


def _is_sound(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != NUMBERS + 2:
        return False
    *numbers, cpus, waits = row
    pair = isinstance(cpus, list) and isinstance(waits, list) and len(cpus) == len(waits)
    flat = [*numbers, *cpus, *waits] if pair else [None]
    return all(type(n) in (int, float) and 0 <= n < 2**62 for n in flat)
