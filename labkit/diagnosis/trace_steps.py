"""Where the time of a step goes: every ns of it in one class, and device idle time by cause.

The rules are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, overall_parser.py and
event_parser.py): a stretch of time belongs to the first of `CLASSES` that is active in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.diagnosis import trace_events as kinds
from labkit.diagnosis.trace_events import Events, Intervals, join, uses_tensor_cores

CLASSES = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_exec")
# What else counts as a class, by its number
ALSO = {
    kinds.COMMUNICATION: kinds.COMMUNICATION_KERNEL,
    kinds.RUNTIME: kinds.GRAPH_LAUNCH,
    kinds.CPU_OP: kinds.ELIGIBLE_OP,
}

TOP = 10  # kernels listed
# The longest device gap between two pieces of work that were both already launched which still
# counts as the hardware's own hand-over. On a V100 (the two ResNet-50 traces of pytorch/kineto,
# 14,778 such gaps) the median is 1 µs, and 99.6% are 10 µs or shorter.
SHORT_GAP_NS = 10_000
# Python between two operators that takes no longer than this, or a tenth of the step, only issues
# them. In traces of eager models (RTX 2080 Ti, V100, A100, H100) its median is 3 to 22 µs, also
# where stacks were recorded.
GLUE_NS, GLUE_SHARE = 50_000, 0.1


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
    return int(union(intervals).length.sum())


class StepClock:
    """A clock that runs only inside the steps, which are sorted and without overlap."""

    def __init__(self, steps: Intervals):
        self.steps = steps
        self.total = int(steps.length.sum())
        self._before = np.cumsum(steps.length) - steps.length

    def at(self, time: np.ndarray) -> np.ndarray:
        """Return the ns of steps that had passed at each `time`."""
        if not len(self.steps.start):
            return np.zeros_like(time)
        step = np.searchsorted(self.steps.start, time, side="right") - 1
        index = np.maximum(step, 0)
        into = np.minimum(time, self.steps.end[index]) - self.steps.start[index]
        return np.where(step < 0, 0, self._before[index] + np.maximum(into, 0))

    def inside(self, intervals: Intervals) -> Intervals:
        """Return the intervals on this clock; what lies outside the steps has no length."""
        return Intervals(self.at(intervals.start), self.at(intervals.end))


def find_steps(events: Events) -> tuple[Intervals, list[str]]:
    """Find when the steps begin and end; return them, and notes.

    A step begins where the one before ended and lasts until the host's mark and the device work
    launched in it have ended. The last are dropped where the profiler stopped before their kernels
    were recorded (fewer than 80% of those of the step before, as the plugin had it).
    """
    notes, marks = [], events.of(kinds.STEP)
    if not marks.length.any():
        notes.append("No ProfilerStep marks (call prof.step()): the whole span is one step.")
        work = events.of(*kinds.HOST, kinds.STEP)
        only_cuda = events.of(*kinds.ISSUED, *kinds.ON_DEVICE)
        marks = _hull(work if len(work.start) else only_cuda)
    start, end = marks = marks.only(marks.end > marks.start)
    if not len(start):
        return marks, notes

    # The step in whose mark each piece of device work was launched, -1 for none
    step = np.searchsorted(start, events.launched.start, side="right") - 1
    known = events.tied & (step >= 0) & (events.launched.end <= end[step])
    step[~known] = -1
    count = np.bincount(step[known], minlength=len(start))
    before = start[0]
    np.maximum.at(end, step[known], events.span.end[known])
    if count[0]:
        # Work launched before the first mark delays the first step's own.
        early = events.span.end[np.isin(events.kind, kinds.ON_DEVICE) & ~known]
        early = early[early < events.span.start[step == 0].min()]
        before = max(before, early.max(initial=before))
    end = np.maximum.accumulate(np.maximum(np.maximum(start, end), before))
    start = np.maximum(start, np.append(before, end[:-1]))

    keep = end > start
    if known.any():
        last = int(np.flatnonzero(count)[-1])
        complete = last if last > 0 and count[last] < 0.8 * count[last - 1] else last + 1
        if complete < len(count):
            steps = "step" if (cut := len(count) - complete) == 1 else f"{cut} steps"
            notes.append(f"Dropped the last {steps}: their kernels are missing.")
            keep[complete:] = False
    return Intervals(start[keep], end[keep]), notes


def find_window(events: Events) -> StepClock:
    """Return a clock of the whole window: from the first mark to the last, else of all events."""
    marks = events.of(kinds.STEP)
    return StepClock(_hull(marks if marks.length.any() else events.span))


def _hull(spans: Intervals) -> Intervals:
    return Intervals(spans.start.min(keepdims=True), spans.end.max(keepdims=True))


def split_by_class(events: Events, clock: StepClock) -> dict[str, int]:
    """Return the ns of all steps that each class and `other` add to the union of those before."""
    times, covered, so_far = {}, events.span.only(slice(0)), 0
    for role, name in enumerate(CLASSES):
        own = clock.inside(events.of(role, ALSO.get(role, role)))
        covered = union(join(covered, own))
        times[name], so_far = length(covered) - so_far, length(covered)
    return times | {"other": clock.total - so_far}


def device_shares(events: Events, devices: np.ndarray, clock: StepClock) -> dict[str, float]:
    """Return shares (0 to 1) of the clock's time, averages over `devices`.

    In `kernel_busy` a kernel runs, in `any_gpu_busy` that or a copy or memset, in `compute_busy` a
    kernel that computes, in `comm_busy` a collective, in `exposed_comm` nothing but collectives; in
    `dataloader_share` the host waits for the DataLoader, whatever the device does.
    """
    inside, total = clock.inside(events.span), max(clock.total, 1)
    compute, collective = events.kind == kinds.KERNEL, events.kind == kinds.COMMUNICATION_KERNEL

    def share(some: np.ndarray) -> float:
        each = (length(inside.only(some & (events.place == device))) for device in devices)
        return sum(each) / (max(len(devices), 1) * total)

    busy = share(events.kind >= 0)
    return {
        "kernel_busy": share(compute | collective),
        "any_gpu_busy": busy,
        "compute_busy": share(compute),
        "comm_busy": share(collective),
        "exposed_comm": max(busy - share(~collective), 0.0),
        "idle": max(1 - busy, 0.0),
        "dataloader_share": length(clock.inside(events.of(kinds.DATALOADER))) / total,
    }


def host_outside(events: Events, clock: StepClock) -> Intervals:
    """Return when, on the steps' clock, the host is in nothing that the profiler knows."""
    inside = union(clock.inside(events.of(*kinds.HOST, *kinds.ISSUED)))
    free = Intervals(np.append(0, inside.end), np.append(inside.start, clock.total))
    # Recorded without ProfilerActivity.CPU, nobody knows where the host was
    return free if len(events.of(*kinds.HOST, kinds.STEP).start) else free.only(slice(0))


def where(events: Events, clock: StepClock, stretches: Intervals) -> tuple[str, ...]:
    """Name the annotation and Python function that are the shortest to cover half of `stretches`.

    On the thread of the steps' marks, or of most operators: others may only wait.
    """
    marked, found = events.kind == kinds.STEP, []
    marked = marked if marked.any() else np.isin(events.kind, (*kinds.HOST, *kinds.ISSUED))
    half = 0.5 * int(stretches.length.sum())
    if not half or not marked.any():
        return ()
    own = events.place == np.bincount(events.place[marked]).argmax()
    for kind in (kinds.ANNOTATION, kinds.PYTHON):
        some = own & (events.kind == kind)
        inside, name = clock.inside(events.span.only(some)), events.name[some]
        covers = np.bincount(name, StepClock(stretches).inside(inside).length)
        if len(most := np.flatnonzero(covers >= half)):
            found.append(events.names[most[np.bincount(name, inside.length)[most].argmin()]])
    return tuple(found)


def self_times(span: Intervals, thread: np.ndarray) -> np.ndarray:
    """Return the ns of each of the calls without those inside it on its thread."""
    order = np.lexsort((-span.end, span.start, thread))
    own, around = span.length, []
    ends, threads, whole, rest = map(memoryview, (span.end, thread, span.length, own))  # no copies
    for call in memoryview(order):
        while around and (ends[around[-1]] < ends[call] or threads[around[-1]] != threads[call]):
            around.pop()
        if around:
            rest[around[-1]] -= whole[call]
        around.append(call)
    return np.maximum(own, 0)


def split_idle(events: Events, device: int, clock: StepClock, outside: Intervals) -> dict[str, int]:
    """Return the ns of all steps in which `device` ran nothing, by cause.

    The rule is Holistic Trace Analysis' (MIT, breakdown_analysis.py), for the device as a whole. A
    gap is `host_wait` if the work that ends it was launched after the gap began, else `kernel_wait`
    if short, the hardware's hand-over, else `other`: it waited for another stream or memory, or its
    launch is unknown. What the host spent `outside` is `host`, unless it was launched already.
    """
    work = events.span
    own = np.flatnonzero((events.place == device) & (work.end > work.start))
    busy = union(work.only(own))
    # Events are sorted by start: the first of a busy stretch is what ended the gap before.
    opener = own[np.searchsorted(work.start[own], busy.start)]
    gap = Intervals(
        np.concatenate([clock.steps.start[:1], busy.end]),
        np.concatenate([busy.start, clock.steps.end[-1:]]),
    )
    inside = clock.inside(gap)
    # After the last work nothing is queued: the host's doing, if launches are known at all.
    known = np.append(events.tied[opener], events.tied.any())
    queued = known & np.append(events.launched.start[opener] <= gap.start[:-1], False)
    short = queued & (gap.length <= SHORT_GAP_NS)
    host = np.where(queued, 0, np.maximum(StepClock(outside).inside(inside).length, 0))
    rest = np.maximum(inside.length, 0) - host
    return {
        "host_wait": int(rest[known & ~queued].sum()),
        "host": int(host.sum()),
        "kernel_wait": int(rest[short].sum()),
        "other": int(rest[(~known | queued) & ~short].sum()),
    }


@dataclass(frozen=True)
class TopKernel:
    """One kernel, by name: its time in µs and its calls, over all steps together."""

    name: str
    total_us: float
    calls: int
    tensor_core: bool


def top_kernels(events: Events, inside: Intervals, is_kernel: np.ndarray) -> dict[str, Any]:
    """Return the top kernels, and the shares of kernel time on Tensor Cores and able to be."""
    counted = is_kernel & (inside.length > 0)
    ns, eligible = inside.length[counted].astype(float), events.eligible[counted]
    kernels, which, calls = np.unique(events.name[counted], return_inverse=True, return_counts=True)
    names, times = [events.names[kernel] for kernel in kernels], np.bincount(which, ns)
    on_cores = np.array([uses_tensor_cores(name) for name in names], dtype=bool)
    uses, total = on_cores[which], ns.sum()
    # As in the plugin, an operator that was seen to use Tensor Cores is one that can.
    can = uses | eligible
    return {
        "tensor_core_share": float(ns[uses].sum() / total) if total else None,
        "tensor_core_eligible_share": float(ns[can].sum() / total) if total else None,
        "top_kernels": tuple(
            TopKernel(names[k], float(times[k]) / 1000, int(calls[k]), bool(on_cores[k]))
            for k in np.argsort(-times, kind="stable")[:TOP]
        ),
    }
