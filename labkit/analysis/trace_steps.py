"""Where the time of a step goes: every ns of it in one class, and device idle time by cause.

The rules are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, overall_parser.py and
event_parser.py): a stretch of time belongs to the first of kernel, memcpy, memset, communication,
runtime, dataloader, cpu that is active in it, and to `other` where none is. A step begins where the
one before ended and lasts until the host's mark and the device work launched in it have both ended.
"""

from __future__ import annotations

import numpy as np

from labkit.analysis import trace_events as kinds
from labkit.analysis.trace_events import Events, Intervals

CLASSES = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_exec")

# The longest device gap between two pieces of work that were both already launched which still
# counts as the hardware's own hand-over. On a V100 (the two ResNet-50 traces of pytorch/kineto,
# 14,778 such gaps) the median is 1 µs, and 99.6% are 10 µs or shorter.
SHORT_GAP_NS = 10_000


def union(intervals: Intervals) -> Intervals:
    """Merge overlapping and touching intervals; the result is sorted and free of empty ones."""
    some = intervals.only(intervals.end > intervals.start)
    start, end = some.only(np.argsort(some.start, kind="stable"))
    reach = np.maximum.accumulate(end)
    first = np.ones(len(start), dtype=bool)
    first[1:] = start[1:] > reach[:-1]
    return Intervals(start[first], reach[np.append(first[1:], True)] if len(start) else reach)


def length(intervals: Intervals) -> int:
    """Return the time that at least one interval covers, in ns."""
    merged = union(intervals)
    return int(np.sum(merged.end - merged.start))


def join(*several: Intervals) -> Intervals:
    """Put intervals side by side in one."""
    empty = np.zeros(0, dtype=np.int64)
    starts, ends = zip(Intervals(empty, empty), *several, strict=True)
    return Intervals(np.concatenate(starts), np.concatenate(ends))


class StepClock:
    """A clock that runs only inside the steps: maps a time of the trace to time spent in steps.

    With it "the part of an interval inside the steps" is one subtraction.
    """

    def __init__(self, steps: Intervals):
        """Take the steps, sorted and without overlap."""
        self.steps = steps
        lengths = steps.end - steps.start
        self.total = int(lengths.sum())
        self._before = np.cumsum(lengths) - lengths

    def at(self, time: np.ndarray) -> np.ndarray:
        """Return the ns of steps that had passed at each `time`."""
        step = np.searchsorted(self.steps.start, time, side="right") - 1
        index = np.maximum(step, 0)
        into = np.minimum(time, self.steps.end[index]) - self.steps.start[index]
        return np.where(step < 0, 0, self._before[index] + np.maximum(into, 0))

    def inside(self, intervals: Intervals) -> Intervals:
        """Return the intervals on this clock; what lies outside the steps has no length."""
        return Intervals(self.at(intervals.start), self.at(intervals.end))


def find_steps(events: Events) -> tuple[Intervals, list[str]]:
    """Find when the steps begin and end, device work included; return them, and notes.

    The steps follow one another without overlap. Without marks the whole span of the host's
    operators is one step. The last steps are dropped where the profiler stopped before all of their
    kernels were recorded (fewer than 80% of the kernels of the step before, as the plugin had it).
    """
    notes = []
    marks = events.host.get(kinds.STEP)
    if marks is None or not np.any(marks.end > marks.start):
        notes.append("No ProfilerStep marks (call prof.step()): the whole span is one step.")
        no_work = (kinds.RUNTIME, kinds.GRAPH_LAUNCH)
        host = [intervals for kind, intervals in events.host.items() if kind not in no_work]
        span = join(*host) if host else join(events.launches, events.device)
        marks = Intervals(span.start.min(keepdims=True), span.end.max(keepdims=True))
    long = marks.only(marks.end > marks.start)
    start, end = long.only(np.argsort(long.start, kind="stable"))
    if not len(start):
        return long, notes

    # The step in whose mark each piece of device work was launched, -1 for none
    step = np.full(len(events.launch), -1)
    if len(events.launches.start):
        of_launch = np.searchsorted(start, events.launches.start, side="right") - 1
        of_launch[events.launches.end > end[np.maximum(of_launch, 0)]] = -1
        step = np.where(events.launch >= 0, of_launch[np.maximum(events.launch, 0)], -1)
    known = step >= 0
    count = np.bincount(step[known], minlength=len(start))
    before = start[0]  # a step begins where the one before ended
    np.maximum.at(end, step[known], events.device.end[known])
    if count[0]:
        # Work launched before the first mark delays the first step's own.
        early = events.device.end[~known]
        early = early[early < events.device.start[step == 0].min()]
        before = max(before, early.max(initial=before))
    end = np.maximum.accumulate(np.maximum(np.maximum(start, end), before))
    start = np.maximum(start, np.append(before, end[:-1]))

    keep = end > start
    if known.any() and len(count) > 1:
        last = int(np.flatnonzero(count)[-1])
        complete = last if last > 0 and count[last] < 0.8 * count[last - 1] else last + 1
        if complete < len(count):
            cut = len(count) - complete
            steps = "step" if cut == 1 else f"{cut} steps"
            notes.append(f"Dropped the last {steps}: their kernels are missing.")
            keep[complete:] = False
    return Intervals(start[keep], end[keep]), notes


def split_by_class(events: Events, clock: StepClock) -> dict[str, int]:
    """Return the ns of all steps in each class of `CLASSES` and `other`; they add up to the total.

    A class gets what it adds to the union of all classes before it: so no ns is counted twice.
    """
    roles: dict[int, list[Intervals]] = {}
    same = {kinds.ELIGIBLE_OP: kinds.CPU_OP, kinds.GRAPH_LAUNCH: kinds.RUNTIME}
    for kind, intervals in events.host.items():
        roles.setdefault(same.get(kind, kind), []).append(intervals)
    for kind in np.unique(events.kind):
        own = events.kind == kind
        role = kinds.COMMUNICATION if kind == kinds.COMMUNICATION_KERNEL else int(kind)
        roles.setdefault(role, []).append(events.device.only(own))

    times, covered = {}, join()
    for role, name in enumerate(CLASSES):
        so_far = length(covered)
        covered = union(join(covered, clock.inside(join(*roles.get(role, ())))))
        times[name] = length(covered) - so_far
    times["other"] = clock.total - length(covered)
    return times


def split_idle(events: Events, device: int, clock: StepClock) -> dict[str, int]:
    """Return the ns of all steps in which `device` ran nothing, by cause.

    The rule is Holistic Trace Analysis' (MIT, breakdown_analysis.py), for the device as a whole
    rather than per stream. A gap is

    - `host_wait` if the work that ends it was launched after the gap began: the device ran dry;
    - `kernel_wait` if that work was already launched and the gap is at most `SHORT_GAP_NS`: the
      hardware's hand-over;
    - `other` if it is longer (the work waited for another stream, for memory, for the profiler),
      or if the launch is not in the trace.
    """
    work = events.device
    own = np.flatnonzero((events.place == device) & (work.end > work.start))
    busy = union(work.only(own))
    # Device work is sorted by start: the first of a busy stretch is what ended the gap before.
    opener = own[np.searchsorted(work.start[own], busy.start)]
    launch = events.launch[opener]
    launched = np.append(events.launches.start, 0)[launch]  # index -1, unknown, reads the 0
    gap = Intervals(
        np.concatenate([clock.steps.start[:1], busy.end]),
        np.concatenate([busy.start, clock.steps.end[-1:]]),
    )
    inside = clock.inside(gap)
    amount = np.maximum(inside.end - inside.start, 0)
    # After the last work nothing is queued: the host's doing, if launches are known at all.
    known = np.append(launch >= 0, bool((events.launch >= 0).any()))
    late = np.append(launched > gap.start[:-1], True)
    short = gap.end - gap.start <= SHORT_GAP_NS
    host_wait, kernel_wait = known & late, known & ~late & short
    return {
        "host_wait": int(amount[host_wait].sum()),
        "kernel_wait": int(amount[kernel_wait].sum()),
        "other": int(amount[~host_wait & ~kernel_wait].sum()),
    }
