"""Where the time of a step goes: every ns of it in one class, and device idle time by cause.

The rules are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, overall_parser.py and
event_parser.py): a stretch of time belongs to the first class that is active in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.traces.events import (
    HOST_WORK,
    KERNELS,
    ON_DEVICE,
    Events,
    Intervals,
    Kind,
    uses_tensor_cores,
)

TRACE_CLASSES = {  # of a step, by priority
    "kernel": (Kind.KERNEL,),
    "memcpy": (Kind.MEMCPY,),
    "memset": (Kind.MEMSET,),
    "communication": (Kind.COMMUNICATION, Kind.COLLECTIVE_KERNEL),
    "runtime": (Kind.RUNTIME,),
    "dataloader": (Kind.DATALOADER,),
    "cpu_exec": (Kind.CPU_OP,),
}
IDLE_CAUSES = ("host_wait", "host", "kernel_wait", "other")  # of a device's gaps
LANES = {  # rows of a picture of the trace
    "CPU operators": (Kind.CPU_OP,),
    "DataLoader": (Kind.DATALOADER,),
    "CUDA calls": (Kind.RUNTIME,),
    "kernels": (Kind.KERNEL,),
    "collectives": (Kind.COLLECTIVE_KERNEL,),
    "copies": (Kind.MEMCPY, Kind.MEMSET),
}

TOP = 10  # kernels listed
# The longest device gap between two pieces of work that were both already launched which still
# counts as the hardware's own hand-over. On a V100 (the two ResNet-50 traces of pytorch/kineto,
# 14,778 such gaps) the median is 1 µs, and 99.6% are 10 µs or shorter.
SHORT_GAP_NS = 10_000
# Python between two operators that takes no longer than this, or a tenth of the step, only issues
# them. In traces of eager models (RTX 2080 Ti, V100, A100, H100) its median is 3 to 22 µs, also
# where stacks were recorded.
GLUE_NS = 50_000
GLUE_SHARE = 0.1
CELL_FILE = re.compile(r"\S*ipykernel_\d+[/\\]\d+\.py")  # what the kernel calls a cell's file
BUILT_IN = "<built-in "  # a function of C, as the profiler writes it: no line of anybody's
COMPLETE = 0.8  # of the kernels of the step before


def merge(intervals: Intervals) -> Intervals:
    """Merge overlapping and touching intervals, sorted by start; the empty ones go."""
    start, end = intervals.only(intervals.length > 0)
    reach = np.maximum.accumulate(end)
    first = np.ones(len(start), dtype=bool)
    first[1:] = start[1:] > reach[:-1]
    last = np.ones(len(start), dtype=bool)
    last[:-1] = first[1:]
    return Intervals(start[first], reach[last])


class Clock:
    """A clock that runs only inside some stretches, which are sorted and do not overlap."""

    def __init__(self, stretches: Intervals):
        self.stretches = stretches
        passed = np.append(0, np.cumsum(stretches.length))
        self.total = int(passed[-1])
        self._edges = np.append(0, np.stack(stretches, axis=1))
        self._passed = np.repeat(passed, 2)[:-1]

    def inside(self, intervals: Intervals) -> Intervals:
        """Return the intervals on this clock; what lies outside the stretches has no length."""
        return Intervals(*np.interp(np.stack(intervals), self._edges, self._passed))


def find_steps(events: Events) -> tuple[Intervals, list[str]]:
    """Find when the steps begin and end; return them, and notes.

    A step begins where the one before ended and lasts until the host's mark and the device work
    launched in it have ended. The last are dropped where the profiler stopped before their kernels
    were recorded.
    """
    notes = []
    marks = events.of(Kind.STEP)
    if not marks.length.any():
        notes.append("No ProfilerStep marks (call prof.step()): the whole span is one step.")
        marks = _whole_span(events)
    marks = marks.only(marks.length > 0)
    if not len(marks.start):
        return marks, notes
    step = _launching_steps(events, marks)
    complete = _complete_steps(np.bincount(step[step >= 0], minlength=len(marks.start)))
    dropped = len(marks.start) - complete
    if dropped:
        steps = "step" if dropped == 1 else f"{dropped} steps"
        notes.append(f"Dropped the last {steps}: their kernels are missing.")
    found = _with_device_work(events, marks, step)
    keep = found.length > 0
    keep[complete:] = False
    return found.only(keep), notes


def _whole_span(events: Events) -> Intervals:
    """Return the span of all work as the one mark of a trace without marks."""
    host = events.are(*HOST_WORK, Kind.STEP)
    only_device = events.are(Kind.RUNTIME, *ON_DEVICE)
    whole = events.span.only(host if host.any() else only_device)
    return Intervals(whole.start.min(keepdims=True), whole.end.max(keepdims=True))


def _launching_steps(events: Events, marks: Intervals) -> np.ndarray:
    """Return in which step's mark the work of each event was launched; -1 where in none."""
    launched = events.span.only(events.launch)
    step = np.searchsorted(marks.start, launched.start, side="right") - 1
    known = (events.launch >= 0) & (step >= 0) & (launched.end <= marks.end[step])
    return np.where(known, step, -1)


def _with_device_work(events: Events, marks: Intervals, step: np.ndarray) -> Intervals:
    """Return when the steps begin and end, each with the device work launched in its mark."""
    start, end = marks
    known = step >= 0
    before = start[0]
    np.maximum.at(end, step[known], events.span.end[known])
    if (step == 0).any():
        # Work launched before the first mark delays the first step's own.
        early = events.span.end[events.are(*ON_DEVICE) & ~known]
        first = events.span.start[step == 0].min()
        before = max(before, early[early < first].max(initial=before))
    end = np.maximum.accumulate(np.maximum(np.maximum(start, end), before))
    return Intervals(np.maximum(start, np.append(before, end[:-1])), end)


def _complete_steps(launches: np.ndarray) -> int:
    """Return how many steps, of which each launched so much work, were recorded whole.

    The last was not where it has fewer than 80% of the kernels of the step before, as the plugin
    had it.
    """
    if not launches.any():
        return len(launches)
    complete = int(np.flatnonzero(launches)[-1]) + 1
    if complete > 1 and launches[complete - 1] < COMPLETE * launches[complete - 2]:
        complete -= 1
    return complete


@dataclass(frozen=True)
class TopKernel:
    """One kernel, by name: its time in µs and its calls, over all steps together."""

    name: str
    total_us: float
    calls: int
    tensor_core: bool


class TraceSteps:
    """The events of a trace on the clock of its steps; times in ns.

    The starts and ends of all events cut the clock into `pieces`, within which nothing changes.
    """

    def __init__(self, events: Events, stretches: Intervals):
        self.events = events
        self.clock = Clock(stretches)
        self.total = self.clock.total
        self.inside = self.clock.inside(events.span)
        moments = np.concatenate([*self.inside, [0, self.total]])
        edges, number = np.unique(moments, return_inverse=True)
        self.pieces = Intervals(edges[:-1], edges[1:])
        self._first, self._behind = number[:-2].reshape(2, -1)  # (events,) pieces of each

    def active(self, *kinds: Kind) -> np.ndarray:
        """Return the mask of the pieces in which at least one event of these kinds is active."""
        which = self.events.are(*kinds)
        count = len(self.pieces.start) + 1
        begin = np.bincount(self._first[which], minlength=count)
        end = np.bincount(self._behind[which], minlength=count)
        return np.cumsum(begin - end)[:-1] > 0

    def _times(self, **pieces: np.ndarray) -> dict[str, float]:
        """Return how long pieces, a mask each, are together."""
        return {name: self.pieces.length[mask].sum() for name, mask in pieces.items()}

    def by_class(self) -> dict[str, float]:
        """Return the time in each class, and in `other`: of a piece, the first that is active."""
        active = [self.active(*kinds) for kinds in TRACE_CLASSES.values()]
        first = np.select(active, range(len(active)), len(active))
        times = np.bincount(first, self.pieces.length, len(active) + 1)
        return dict(zip((*TRACE_CLASSES, "other"), times, strict=True))

    def device_busy(self) -> dict[str, float]:
        """Return the time in which devices work; of several, in which any of them does.

        In `kernel_busy` a kernel runs, in `any_gpu_busy` that or a copy or memset, in
        `compute_busy` a kernel that computes, in `comm_busy` a collective, in `exposed_comm`
        nothing but collectives; in `dataloader_share` the host waits for the DataLoader, whatever
        the device does.
        """
        computing = self.active(Kind.KERNEL)
        collective = self.active(Kind.COLLECTIVE_KERNEL)
        other_work = computing | self.active(Kind.MEMCPY, Kind.MEMSET)
        return self._times(
            kernel_busy=computing | collective,
            any_gpu_busy=other_work | collective,
            compute_busy=computing,
            comm_busy=collective,
            exposed_comm=collective & ~other_work,
            idle=~(other_work | collective),
            dataloader_share=self.active(Kind.DATALOADER),
        )

    def host_busy(self) -> dict[str, float]:
        """Return the time of a CPU's collectives (Gloo), and of those with no operator beside."""
        sent = self.active(Kind.COMMUNICATION)
        return self._times(comm_busy=sent, exposed_comm=sent & ~self.active(Kind.CPU_OP))

    @cached_property
    def host_outside(self) -> np.ndarray:
        """The mask of the pieces in which the host is in nothing that the profiler knows."""
        # Recorded without ProfilerActivity.CPU, nobody knows where the host was
        is_known = self.events.are(*HOST_WORK, Kind.STEP).any()
        return ~self.active(*HOST_WORK, Kind.RUNTIME) & is_known

    @cached_property
    def host_work(self) -> Intervals:
        """When the host does more outside than Python that issues the next operator."""
        outside = merge(self.pieces.only(self.host_outside))
        glue = min(GLUE_NS, GLUE_SHARE * self.total / len(self.clock.stretches.start))
        return outside.only(outside.length > glue)

    def host_where(self) -> tuple[str, ...]:
        """Name the annotation and Python function that are the shortest to cover half of that.

        On the thread of the steps' marks, or of most operators: others may only wait.
        """
        half = 0.5 * self.host_work.length.sum()
        marked = self.events.are(Kind.STEP)
        if not marked.any():
            marked = self.events.are(*HOST_WORK, Kind.RUNTIME)
        if not half or not marked.any():
            return ()
        thread = np.bincount(self.events.place[marked]).argmax()
        clock = Clock(self.host_work)
        found = []
        for kind in (Kind.ANNOTATION, Kind.PYTHON):
            which = self.events.are(kind) & (self.events.place == thread)
            spans = self.inside.only(which)
            covered = self._by_name(which, clock.inside(spans).length)
            lengths = self._by_name(which, spans.length)
            enough = [name for name, covers in covered.items() if covers >= half]
            enough = [name for name in enough if not name.startswith(BUILT_IN)]
            if enough:
                shortest = min(enough, key=lengths.__getitem__)
                found.append(CELL_FILE.sub("a notebook's cell", shortest))
        return tuple(found)

    def idle(self) -> dict[str, float]:
        """Return the time in which no device ran anything, by cause.

        The rule is Holistic Trace Analysis' (MIT, breakdown_analysis.py). A gap is `host_wait` if
        the work that ends it was launched after the gap began, else `kernel_wait` if short, the
        hardware's hand-over, else `other`: it waited for another stream or memory, or its launch is
        unknown. What the host spent outside of all that is known is `host`, unless it was launched
        already; of that, `host_work` is long.
        """
        work = self.events.are(*ON_DEVICE) & (self.events.span.length > 0)
        start, end = self.inside.only(work)
        # Of the gap that a piece may be in: the work that ends it, its launch, its start and end
        following = np.searchsorted(start, self.pieces.end)
        launch = np.append(self.events.launch[work], -1)[following]
        began = np.append(0, np.maximum.accumulate(end))[following]
        ended = np.append(start, self.total)[following]
        queued = (launch >= 0) & (self.inside.start[launch] <= began)
        # After the last work nothing is queued: the host's doing, if launches are known at all.
        behind = (following == len(start)) & (self.events.launch >= 0).any()
        late = ((launch >= 0) | behind) & ~queued
        short = queued & (ended - began <= SHORT_GAP_NS)
        idle = ~self.active(*ON_DEVICE)
        host = idle & ~queued & self.host_outside
        rest = idle & ~host
        return self._times(
            host_wait=rest & late,
            host=host,
            kernel_wait=rest & short,
            other=rest & ~late & ~short,
            host_work=host & (Clock(self.host_work).inside(self.pieces).length > 0),
        )

    @cached_property
    def kernels(self) -> np.ndarray:
        """Indexes of the kernels that run inside the clock's stretches."""
        return np.flatnonzero(self.events.are(*KERNELS) & (self.inside.length > 0))

    def _by_name(self, which: np.ndarray, amount: np.ndarray | None = None) -> dict[str, float]:
        """Return the sum of an amount of each of these events, or how many, by their names."""
        total = np.bincount(self.events.name[which], amount)
        return {self.events.names[number]: total[number] for number in np.flatnonzero(total)}

    def kernel_times(self) -> dict[str, float]:
        """Return the time of every kernel, by name."""
        return self._by_name(self.kernels, self.inside.length[self.kernels])

    def lanes(self) -> dict[str, np.ndarray]:
        """Return the steps and when each lane is active: (n, 2) starts and ends, in ms.

        They count from the first step; what overlaps or touches in a lane is one.
        """
        steps = self.clock.stretches
        found = {"steps": steps}
        for name, kinds in LANES.items():
            active = merge(self.events.of(*kinds))
            if len(active.start):
                found[name] = active
        began = steps.start[0]
        return {name: (np.stack(each, axis=1) - began) / 1e6 for name, each in found.items()}

    def top_kernels(self) -> tuple[TopKernel, ...]:
        """Return the kernels that took most time."""
        times = self.kernel_times()
        calls = self._by_name(self.kernels)
        found = []
        for name in sorted(times, key=lambda name: -times[name])[:TOP]:
            total_us = float(times[name]) / 1000
            found.append(TopKernel(name, total_us, int(calls[name]), uses_tensor_cores(name)))
        return tuple(found)

    def tensor_core_shares(self) -> tuple[float | None, float | None]:
        """Return the shares of kernel time on Tensor Cores, and of operators that can use them."""
        if not len(self.kernels):
            return None, None
        length = self.inside.length[self.kernels]
        by_name = np.array([uses_tensor_cores(name) for name in self.events.names])
        uses = by_name[self.events.name[self.kernels]]
        # As in the plugin, an operator that was seen to use Tensor Cores is one that can.
        could = uses | self.events.can_use_tensor_cores[self.kernels]
        return float(np.average(uses, weights=length)), float(np.average(could, weights=length))

    def operator_times(self) -> dict[str, float]:
        """Return the time of every operator without those inside it on its thread, by name."""
        operators = np.flatnonzero(self.events.are(Kind.CPU_OP))
        start, end = self.inside.only(operators)
        thread = self.events.place[operators]
        own = end - start
        around: list[int] = []  # the operators that the next one may be inside of
        for number in np.lexsort((-end, start, thread)).tolist():
            while around and (
                end[around[-1]] < end[number] or thread[around[-1]] != thread[number]
            ):
                around.pop()
            if around:
                own[around[-1]] -= end[number] - start[number]
            around.append(number)
        return self._by_name(operators, np.maximum(own, 0))
