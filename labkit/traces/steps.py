"""Where the time of a step goes: every ns of it in one class, and device idle time by cause.

The rules are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, overall_parser.py and
event_parser.py): a stretch of time belongs to the first class that is active in it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas

from labkit.traces.breakdown import CLASSES
from labkit.traces.events import (
    CLASSED_AS,
    COPIES,
    HOST_WORK,
    KERNELS,
    LANES,
    ON_DEVICE,
    Kind,
    uses_tensor_cores,
)

# The longest device gap between two pieces of work that were both already launched which still
# counts as the hardware's own. On a V100 (the two ResNet-50 traces of pytorch/kineto,
# 14,778 such gaps) the median is 1 µs, and 99.6% are 10 µs or shorter.
SHORT_GAP_NS = 10_000
# Python between two operators that takes no longer than this, or a tenth of the step, only issues
# them. In traces of eager models (RTX 2080 Ti, V100, A100, H100) its median is 3 to 22 µs, also
# where stacks were recorded.
GLUE_NS = 50_000
GLUE_SHARE = 0.1
BUILT_IN = "<built-in "  # a function of C, as the profiler writes it: no line of anybody's


def find_steps(events: pandas.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Find when the steps begin and end; return that, (steps, 2) in ns, and notes.

    A step begins where the one before ended and lasts until the host's mark and the device work
    launched in it have ended.
    """
    notes = []
    marks = events[(events.kind == Kind.STEP) & (events.end > events.start)]
    if marks.empty:
        notes.append("No ProfilerStep marks (call prof.step()): the whole span is one step.")
        host = events.kind.isin(HOST_WORK)
        whole = events[host if host.any() else events.kind.isin([Kind.RUNTIME, *ON_DEVICE])]
        marks = pandas.DataFrame({"start": [whole.start.min()], "end": [whole.end.max()]})
    starts, ends = np.array(marks.start), np.array(marks.end)
    # The work launched in a mark, and in which one
    launched = events[events.launch >= 0]
    call = events.take(launched.launch)
    step = np.searchsorted(starts, call.start, side="right") - 1
    known = (step >= 0) & (np.array(call.end) <= ends[step])
    work = launched.loc[np.array(known)]
    step = step[known]
    np.maximum.at(ends, step, work.end)
    # Work launched before the first mark delays the first step's own.
    others = events[events.kind.isin(ON_DEVICE)].drop(work.index)
    before = others.end[others.end < work.start[step == 0].min()]
    starts[0] = np.append(before, starts[0]).max()
    ends = np.maximum.accumulate(np.maximum(ends, starts[0]))
    starts[1:] = np.maximum(starts[1:], ends[:-1])
    found = np.column_stack([starts, ends])
    return found[found[:, 1] > found[:, 0]], notes


class TracePieces:
    """A trace cut where any event begins or ends into pieces, within which nothing changes.

    What is active in which piece is a mask of the pieces.
    """

    def __init__(self, events: pandas.DataFrame, steps: np.ndarray):
        """Take the (steps, 2) starts and ends: pieces outside of them have no length."""
        self.steps = steps
        moments = np.concatenate([events.start, events.end, *steps.T])
        self.edges, number = np.unique(moments, return_inverse=True)
        count = len(events)
        self._first, self._behind = number[: 2 * count].reshape(2, -1)  # pieces of each event
        in_steps = self._mask(*number[2 * count :].reshape(2, -1))
        self.length = np.where(in_steps, np.diff(self.edges), 0)  # ns
        self.total = int(self.length.sum())  # ns
        self.on_gpu = bool(events.kind.isin(ON_DEVICE).any())
        # `inside`: how much of each event's time is in the steps, ns
        self.events = events.assign(inside=self._time_in(self.length))

    def us(self, mask: np.ndarray | bool) -> float:
        """Return how much of an average step is in pieces of a mask, µs."""
        return float((self.length * mask).sum()) / len(self.steps) / 1000

    def _mask(self, first: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """Return the mask of the pieces from each `first` to the one before its `behind`."""
        count = len(self.edges)
        change = np.bincount(first, minlength=count) - np.bincount(behind, minlength=count)
        return np.cumsum(change)[:-1] > 0

    def active(self, *kinds: Kind) -> np.ndarray:
        """Return the mask of the pieces in which at least one event of these kinds is active."""
        which = self.events.kind.isin(kinds)
        return self._mask(self._first[which], self._behind[which])

    def _time_in(self, length: np.ndarray) -> np.ndarray:
        """Return how much of the length of pieces passes in each event."""
        passed = np.append(0, np.cumsum(length))
        return passed[self._behind] - passed[self._first]

    def by_class(self) -> dict[str, np.ndarray]:
        """Return when each class has the time, and `other`: the first that is active, as masks."""
        found = {}
        rest = np.ones(len(self.length), dtype=bool)
        for name, kind in zip(CLASSES[:-1], Kind, strict=False):
            found[name] = rest & self.active(kind, CLASSED_AS.get(kind, kind))
            rest &= ~found[name]
        return found | {"other": rest}

    def busy(self) -> dict[str, np.ndarray]:
        """Return when devices work, as masks; of several, when any of them does.

        In `compute_busy` they compute, in `comm_busy` there is a collective, in `exposed_comm`
        nothing else, in `idle` nothing at all; of a CPU operators compute, and collectives are
        Gloo's. In `dataloader_share` the host waits for the DataLoader, whatever they do.
        """
        working, sending = Kind.KERNEL, Kind.COLLECTIVE_KERNEL
        if not self.on_gpu:
            working, sending = Kind.CPU_OP, Kind.COMMUNICATION
        collective = self.active(sending)
        other_work = self.active(working, *COPIES)
        return {
            "compute_busy": self.active(working),
            "comm_busy": collective,
            "exposed_comm": collective & ~other_work,
            "idle": ~(other_work | collective),
            "dataloader_share": self.active(Kind.DATALOADER),
        }

    @cached_property
    def host_outside(self) -> np.ndarray:
        """The mask of the pieces in which the host is in nothing that the profiler knows."""
        # Recorded without ProfilerActivity.CPU, nobody knows where the host was
        is_known = self.events.kind.isin([*HOST_WORK, Kind.STEP]).any()
        return ~self.active(*HOST_WORK, Kind.RUNTIME) & is_known

    @cached_property
    def host_work(self) -> np.ndarray:
        """The mask of those in which it does more than Python that issues the next operator."""
        outside = self.host_outside | (self.length == 0)  # between two steps no time passes
        stretch = np.cumsum(np.diff(outside, prepend=False))  # the number of each piece's
        glue = min(GLUE_NS, GLUE_SHARE * self.total / len(self.steps))
        return outside & (np.bincount(stretch, self.length)[stretch] > glue)

    def host_where(self) -> list[str]:
        """Name the annotation and Python function that are the shortest to cover half of that."""
        events = self.events.assign(covered=self._time_in(self.length * self.host_work))
        named = events.kind.isin([Kind.ANNOTATION, Kind.PYTHON])
        around = events[named & ~events.name.str.startswith(BUILT_IN)]
        names = around.groupby(["kind", "name"], observed=True)[["covered", "inside"]].sum()
        half = max(1, 0.5 * self.length[self.host_work].sum())
        shortest = names.inside[names.covered >= half].groupby("kind").idxmin()
        return [name for _, name in shortest]

    def idle(self) -> dict[str, np.ndarray]:
        """Return when no device ran anything, by cause, as masks.

        The rule is Holistic Trace Analysis' (MIT, breakdown_analysis.py). A gap is `host_wait` if
        the work that ends it was launched after the gap began, else `kernel_wait` if short, the
        hardware's own, else `other`: it waited for another stream or memory, or its launch is
        unknown. What the host spent outside of all that is known is `host`, unless it was launched
        already.
        """
        events = self.events
        work = events[events.kind.isin(ON_DEVICE) & (events.end > events.start)]
        # Of the gap that a piece may be in: the work that ends it, its launch, its start and end
        following = np.searchsorted(work.start, self.edges[1:])
        launch = np.append(work.launch, -1)[following]
        began = np.maximum.accumulate(np.append(self.steps[0, 0], work.end))[following]
        ended = np.append(work.start, self.steps[-1, 1])[following]
        queued = (launch >= 0) & (events.start.to_numpy()[launch] <= began)
        # After the last work nothing is queued: the host's doing, if launches are known at all.
        behind = (following == len(work)) & (events.launch >= 0).any()
        late = ((launch >= 0) | behind) & ~queued
        short = queued & (ended - began <= SHORT_GAP_NS)
        idle = ~self.active(*ON_DEVICE)
        host = idle & ~queued & self.host_outside
        rest = idle & ~host
        return {
            "host_wait": rest & late,
            "host": host,
            "kernel_wait": rest & short,
            "other": rest & ~late & ~short,
        }

    def kernels(self) -> pandas.DataFrame:
        """Return the kernels that run in the steps, by name, those that take most time first.

        Of each `total_us` is how long it runs there, `tensor_core` whether it computes on Tensor
        Cores, `eligible_us` how long its operators can.
        """
        kernels = self.events[self.events.kind.isin(KERNELS) & (self.events.inside > 0)]
        us = kernels.inside / 1000
        uses = pandas.Series(kernels["name"]).map(uses_tensor_cores).astype(bool)
        # As in the plugin, an operator that was seen to use Tensor Cores is one that can.
        eligible_us = us * (uses | kernels.can_use_tensor_cores)
        kernels = kernels.assign(us=us, uses=uses, eligible_us=eligible_us)
        by_name = kernels.groupby("name", observed=True).agg(
            total_us=("us", "sum"),
            tensor_core=("uses", "first"),
            eligible_us=("eligible_us", "sum"),
        )
        return by_name.sort_values("total_us", ascending=False, kind="stable")

    def lanes(self) -> dict[str, np.ndarray]:
        """Return the steps and when each lane is active: (n, 2) starts and ends, in ms.

        They count from the first step; what overlaps or touches in a lane is one.
        """
        found = {"steps": self.steps}
        for name, kinds in LANES.items():
            changes = np.diff(self.active(*kinds), prepend=False, append=False)
            if changes.any():
                found[name] = self.edges[changes].reshape(-1, 2)
        return {name: (spans - self.steps[0, 0]) / 1e6 for name, spans in found.items()}
