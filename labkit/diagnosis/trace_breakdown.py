"""What `lk.trace` returns: of one trace, of two compared, and of the ranks of a job."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.diagnosis.card_formats import tensor_formats
from labkit.diagnosis.thresholds import WORTH_NAMING
from labkit.diagnosis.trace_file import TraceError
from labkit.diagnosis.trace_steps import TRACE_CLASSES, TopKernel
from labkit.results.result import Result, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNRECORDED = ("detail", "lanes", "began_ns")  # fields that a saved record leaves out
RANK_LANES = ("CPU operators", "kernels", "collectives")  # in the picture of two ranks
LISTED = 6  # kernels and operators that changed most
RANK_COLUMNS = {  # of the table of ranks: shares in `Breakdown.busy`
    "compute_busy": "compute",
    "comm_busy": "collectives",
    "exposed_comm": "exposed",
    "idle": "device idle",
    "dataloader_share": "DataLoader",
}


class TraceLane(NamedTuple):
    """A row in a picture of a trace: when something was active."""

    kind: str  # of `Breakdown.lanes`
    spans: np.ndarray  # (n, 2) starts and ends, ms
    rank: int | None = None  # that it is of, in a picture of several

    @property
    def label(self) -> str:
        """What stands beside the row."""
        return self.kind if self.rank is None else f"rank {self.rank}: {self.kind}"


def lane_rows(lanes: dict[str, np.ndarray]) -> list[TraceLane]:
    """Return the rows in a picture of one trace, from its `Breakdown.lanes`."""
    return [TraceLane(kind, spans) for kind, spans in lanes.items() if kind != "steps"]


@dataclass(frozen=True, repr=False)
class Breakdown(Result):
    """Where the time of an average step went, in µs; every ns of a step is in exactly one class.

    Of each class, what none above it covers. Profiling slows the host: a traced step is longer and
    idler than an untraced one.
    """

    source: str  # the file's name
    device_kind: str  # "gpu", or "cpu" where the trace holds no device activity
    device_name: str | None  # what the trace calls it; None where it does not, or calls it several
    steps: int  # that were averaged
    step_us: float  # of the host's mark and the device work launched in it
    kernel_us: float  # a compute kernel runs
    memcpy_us: float  # a copy runs
    memset_us: float  # a memset runs
    communication_us: float  # a collective (NCCL, RCCL, Gloo) runs, or is issued
    runtime_us: float  # the host is in a call of the CUDA (HIP, XPU) runtime
    dataloader_us: float  # the host waits for the DataLoader
    cpu_exec_us: float  # the host executes an operator
    other_us: float  # Python, mostly
    # Share (0 to 1) of the steps in which a kernel ran, collectives included; not how well it used
    # the GPU. None without device activity
    gpu_utilization: float | None
    tensor_core_share: float | None  # of kernel time in Tensor Core kernels, told by their names
    tensor_core_eligible_share: float | None  # of kernel time of operators that could use them
    # Time the device runs nothing, by cause: `host_wait_us` (it ran dry: the work that ends the gap
    # was launched after the gap began), `host_us` (so it is while the host is in no operator, call
    # or DataLoader), `kernel_wait_us` (short gaps between work that was already launched),
    # `other_us`; None each without device activity
    idle: dict[str, float | None]
    top_kernels: tuple[TopKernel, ...]  # that took most time
    rank: int | None  # that the file says it is of; None where it does not say
    notes: tuple[str, ...]  # what was missing or odd, and how it was handled
    # Shares (0 to 1) of the steps, of `TraceSteps.device_busy`; of a CPU only the collectives'
    busy: dict[str, float] = field(default_factory=dict)
    # Of `idle["host_us"]`, on a CPU of `other_us`: what is more than Python between two operators
    host_work_us: float = 0.0
    host_where: tuple[str, ...] = ()  # the annotation and the Python function around most of that
    compute_capability: str | None = None  # of the devices, "7.0"; None where it does not tell
    loader_workers: bool | None = None  # whether the DataLoader has workers; None without one
    cuda_graphs: bool = False  # whether any were launched, whose kernels may be missing
    # µs of a step of all kernels, and of all operators without those inside them; not in records
    detail: dict[str, dict[str, float]] = field(default_factory=dict, compare=False)
    # When each row of a picture was active, as `TraceSteps.lanes`; not in records
    lanes: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    began_ns: int = field(default=0, compare=False)  # what the lanes count from; not in records

    @property
    def trains(self) -> bool | None:
        """Whether there is a backward pass or an optimizer; None where no operator is known."""
        operators = self.detail.get("operators")
        if not operators:
            return None
        return any("ackward" in name or name.startswith("Optimizer.") for name in operators)

    @property
    def class_us(self) -> dict[str, float]:
        """µs of the step in each class, in the order of priority."""
        return {name: getattr(self, f"{name}_us") for name in (*TRACE_CLASSES, "other")}

    @property
    def shares(self) -> dict[str, float]:
        """Share (0 to 1) of the step in each class, in the order of priority."""
        return {name: us / self.step_us for name, us in self.class_us.items()}

    @property
    def utilization(self) -> float:
        """Share (0 to 1) of the step in which the device computes: kernels, on a CPU operators."""
        return self.shares["cpu_exec"] if self.gpu_utilization is None else self.gpu_utilization

    def recorded(self) -> dict[str, object]:
        """Return all fields that a saved record keeps."""
        values = asdict(replace(self, detail={}, lanes={}))
        return {name: value for name, value in values.items() if name not in UNRECORDED}

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-ready values, under the attributes' names."""
        return self.recorded() | {"shares": self.shares, "utilization": self.utilization}

    def compare(self, after: Breakdown | RankTraces | str | os.PathLike) -> TraceComparison:
        """Return what changed from this trace to `after`: another of one rank, or its path."""
        from labkit.diagnosis.trace import trace

        other = after if isinstance(after, Result) else trace(after)
        if isinstance(other, RankTraces):
            return other.compare(self)
        return TraceComparison(self, other)

    def timeline(self, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw when operators, loader, CUDA calls and kernels were active: its first two steps.

        Or from `start_ms` to `end_ms` after the start of the first step.
        """
        from labkit.view.analysis_figures import draw_timeline

        return draw_timeline(
            self.source, lane_rows(self.lanes), self.lanes.get("steps"), start_ms, end_ms
        )

    def plot(self) -> Figure:
        """Draw the average step as bars."""
        from labkit.view.analysis_figures import draw_trace

        return draw_trace(self)

    def table(self) -> Table:
        """Return the classes of the step, and below them idle time, Tensor Cores and notes."""
        steps = f"{self.steps} steps" if self.steps > 1 else "1 step"
        device = self.device_name or self.device_kind.upper()
        title = f"Trace {self.source}: {steps} of {self.step_us / 1000:,.1f} ms on {device}, "
        title += f"{self.utilization:.1%} busy"
        if "any_gpu_busy" in self.busy:
            title += f" (kernels; {self.busy['any_gpu_busy']:.1%} with copies and memsets)"
        foot = []
        if self.busy.get("comm_busy"):
            exposed = f"{self.busy['exposed_comm']:.1%} exposed, with nothing else running"
            foot.append(f"collectives: {self.busy['comm_busy']:.1%} of the time, {exposed}")
        if self.gpu_utilization is not None:
            known = {cause: us for cause, us in self.idle.items() if us is not None}
            idle = [f"{_words(cause)} {us / 1000:,.1f} ms" for cause, us in known.items()]
            foot.append(f"device idle: {', '.join(idle)}")
        if self.host_where and self.host_work_us > 0.05 * self.step_us:
            foot.append(f"host work outside operators is mostly in {', '.join(self.host_where)}")
        has_none = tensor_formats(self.device_name, self.compute_capability) == ()
        if self.tensor_core_share is not None and not has_none:
            foot.append(
                f"Tensor Cores: {self.tensor_core_share:.0%} of kernel time uses them, "
                f"{self.tensor_core_eligible_share:.0%} is of operators that can"
            )
        foot += [f"note: {note}" for note in self.notes]
        rows = [
            (_words(name), f"{us / 1000:,.2f} ms", f"{us / self.step_us:.1%}")
            for name, us in self.class_us.items()
        ]
        return Table(rows, title=title, foot=foot)


@dataclass(frozen=True)
class Change:
    """What a class, kernel or operator takes of an average step, before and after."""

    name: str
    before_us: float
    after_us: float
    change_us: float
    before_share: float
    after_share: float


@dataclass(frozen=True, repr=False)
class TraceComparison(Result):
    """What changed from one trace to another, in an average step (without marks: the window)."""

    before: Breakdown
    after: Breakdown

    @property
    def headline(self) -> str:
        """Say how the step and its busy share changed."""
        before = self.before
        after = self.after
        times = f"{before.step_us / 1000:,.1f} -> {after.step_us / 1000:,.1f} ms"
        busy = f"{before.utilization:.1%} -> {after.utilization:.1%} busy"
        return f"step {times} ({after.step_us / before.step_us - 1:+.0%}), {busy}"

    def plot(self) -> Figure:
        """Draw what changed, as bars."""
        from labkit.view.analysis_figures import draw_comparison

        return draw_comparison(self)

    def changes(self) -> dict[str, list[Change]]:
        """Return what changed: all `classes`; the `kernels` and `operators` that did most."""
        found = {"classes": self._changes(self.before.class_us, self.after.class_us)}
        for what in ("kernels", "operators"):
            every = self._changes(self.before.detail.get(what, {}), self.after.detail.get(what, {}))
            found[what] = sorted(every, key=lambda change: -abs(change.change_us))[:LISTED]
        return found

    def _changes(self, before: dict[str, float], after: dict[str, float]) -> list[Change]:
        changes = []
        for name in before | after:
            before_us = before.get(name, 0.0)
            after_us = after.get(name, 0.0)
            shares = (before_us / self.before.step_us, after_us / self.after.step_us)
            changes.append(Change(name, before_us, after_us, after_us - before_us, *shares))
        return changes

    def to_dict(self) -> dict[str, object]:
        """Return µs and shares of a step: of all classes, and of what changed most."""
        found: dict[str, object] = {"before": self.before.source, "after": self.after.source}
        for key in ("step_us", "utilization", "steps"):
            found[f"before_{key}"] = getattr(self.before, key)
            found[f"after_{key}"] = getattr(self.after, key)
        for what, changes in self.changes().items():
            found[what] = [asdict(change) for change in changes]
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels and operators that changed most."""
        rows = []
        for what, changes in self.changes().items():
            for change in changes:
                long_name = f"{what[:-1]} {change.name[:60]}"
                rows.append(
                    (
                        change.name if what == "classes" else long_name,
                        f"{change.before_us / 1000:,.2f}",
                        f"{change.after_us / 1000:,.2f}",
                        f"{change.change_us / 1000:+,.2f}",
                        f"{change.before_share:.1%}",
                        f"{change.after_share:.1%}",
                    )
                )
        head = ("of a step", "ms before", "ms after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        foot = ("kernels: time on the device; operators: the host's, without those inside them",)
        return Table(rows, head, title, foot)


@dataclass(frozen=True, repr=False)
class RankTraces(Result):
    """The traces of a job: a Breakdown for each rank, in the order of their `rank`."""

    source: str
    ranks: tuple[Breakdown, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: int) -> Breakdown:
        return self.ranks[index]

    def compare(self, after: object) -> TraceComparison:
        """Refuse: one rank is compared with another."""
        raise TraceError(f"{self.source!r} holds several ranks: compare one of its .ranks.")

    @property
    def collective_us(self) -> dict[int | None, float]:
        """µs of a step that each rank is in collectives, in which it also waits for others."""
        return {each.rank: each.busy.get("comm_busy", 0.0) * each.step_us for each in self.ranks}

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for, so that it waits least; None where none stands out."""
        spent = self.collective_us
        late = min(spent, key=spent.__getitem__)
        own = spent.pop(late)
        enough = WORTH_NAMING["straggler"] * fmean(each.step_us for each in self.ranks)
        return late if median(spent.values() or [0.0]) - own >= enough else None

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        late = self.straggler
        if late is None:
            return "no rank keeps the others waiting"
        spent = self.collective_us
        own = spent.pop(late) / 1000
        return (
            f"rank {late} is the straggler: it is in collectives for {own:,.1f} ms of a step, the "
            f"others, which wait for it, for {median(spent.values()) / 1000:,.1f} ms (median)"
        )

    def timeline(self, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw when the first rank and the straggler computed and were in collectives.

        Args:
            start_ms: Where the picture begins, after the start of the first of the two.
            end_ms: Where it ends; all is drawn where it is not given.
        """
        from labkit.view.analysis_figures import draw_timeline

        shown = [each for each in self.ranks if each.rank in (self.ranks[0].rank, self.straggler)]
        began_ns = min(each.began_ns for each in shown)
        lanes = []
        for each in shown:
            late_ms = (each.began_ns - began_ns) / 1e6
            for kind in RANK_LANES:
                if kind in each.lanes:
                    lanes.append(TraceLane(kind, each.lanes[kind] + late_ms, each.rank))
        return draw_timeline(self.source, lanes, None, start_ms, end_ms)

    def plot(self) -> Figure:
        """Draw every rank's average step as bars."""
        from labkit.view.analysis_figures import draw_rank_traces

        return draw_rank_traces(self)

    def to_dict(self) -> dict[str, object]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        return {
            "source": self.source,
            "straggler": self.straggler,
            "headline": self.headline,
            "ranks": [each.to_dict() for each in self.ranks],
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        rows = []
        for each in self.ranks:
            shares = [each.busy.get(key) for key in RANK_COLUMNS]
            cells = [None if share is None else f"{share:.1%}" for share in shares]
            rows.append((each.rank, f"{each.step_us / 1000:,.2f} ms", *cells))
        late = self.straggler
        return Table(
            rows,
            head=("rank", "step", *RANK_COLUMNS.values()),
            title=f"Traces {self.source}: {len(self)} ranks; {self.headline}",
            foot=[f"note: {note}" for note in self.notes],
            left=(),
            bold=[row for row, each in enumerate(self.ranks) if each.rank == late],
        )


def _words(name: str) -> str:
    return name.removesuffix("_us").replace("_", " ")
