"""What `lk.trace` returns of one trace: where the time of an average step went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.results.result import Result, Table
from labkit.text import counted
from labkit.traces.file import TraceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = (  # of the time of a step, in the order of priority
    "kernel",
    "memcpy",
    "memset",
    "communication",
    "runtime",
    "dataloader",
    "cpu_exec",
    "other",
)
IDLE_CAUSES = ("host_wait", "host", "kernel_wait", "other")  # of a device's gaps

GRAPHS = "CUDA graphs were launched: some profilers miss the kernels inside them."  # a note
LISTED = 6  # kernels that changed most
UNRECORDED = ("kernels_us", "lanes", "began_ns")  # fields that a saved record leaves out


def share_cells(shares: Mapping[str, float | None], names: Iterable[str]) -> list[str | None]:
    """Return shares as the cells of a table's row; None where one is not known."""
    known = map(shares.get, names)
    return [None if share is None else f"{share:.1%}" for share in known]


@dataclass(frozen=True)
class TopKernel:
    """One kernel, by name: its time in µs and its calls, over all steps together."""

    name: str
    total_us: float
    calls: int
    tensor_core: bool


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
    # Shares (0 to 1) of the steps, of `TracePieces.busy`; of a CPU only the collectives'
    busy: dict[str, float] = field(default_factory=dict)
    # Of `idle["host_us"]`, on a CPU of `other_us`: what is more than Python between two operators
    host_work_us: float = 0.0
    host_where: tuple[str, ...] = ()  # the annotation and the Python function around most of that
    compute_capability: str | None = None  # of the devices, "7.0"; None where it does not tell
    loader_workers: bool | None = None  # whether the DataLoader has workers; None without one
    cuda_graphs: bool = False  # whether any were launched, whose kernels may be missing
    trains: bool | None = None  # whether there is a backward pass or an optimizer, where it tells
    # µs of a step of every kernel, by name
    kernels_us: dict[str, float] = field(default_factory=dict, compare=False)
    # When each row of a picture was active, as `TracePieces.lanes`
    lanes: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    began_ns: int = field(default=0, compare=False)  # what the lanes count from

    @property
    def class_us(self) -> dict[str, float]:
        """µs of the step in each class, in the order of priority."""
        return {name: getattr(self, f"{name}_us") for name in CLASSES}

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
        return {name: value for name, value in asdict(self).items() if name not in UNRECORDED}

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-ready values, under the attributes' names."""
        return self.recorded() | {"shares": self.shares, "utilization": self.utilization}

    def compare(self, after: Result) -> TraceComparison:
        """Return what changed from this trace to `after`, another of one rank."""
        if not isinstance(after, Breakdown):
            raise TraceError("What holds several ranks is not compared: compare one of its .ranks.")
        return TraceComparison(self, after)

    def timeline(self, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw when operators, loader, CUDA calls and kernels were active: its first two steps.

        Or from `start_ms` to `end_ms` after the start of the first step.
        """
        from labkit.view.analysis_figures import draw_timeline

        return draw_timeline(self.source, self.lanes, start_ms, end_ms)

    def plot(self) -> Figure:
        """Draw the average step as bars."""
        from labkit.view.analysis_figures import draw_trace

        return draw_trace(self)

    def table(self) -> Table:
        """Return the classes of the step, and below them idle time, Tensor Cores and notes."""
        steps = counted(self.steps, "step")
        device = self.device_name or self.device_kind.upper()
        title = (
            f"Trace {self.source}: {steps} of {self.step_us / 1000:,.1f} ms on {device}, "
            f"{self.utilization:.1%} busy"
        )
        if "any_gpu_busy" in self.busy:
            title += f" (kernels; {self.busy['any_gpu_busy']:.1%} with copies and memsets)"
        rows = [
            (words_of(name), f"{us / 1000:,.2f} ms", f"{us / self.step_us:.1%}")
            for name, us in self.class_us.items()
        ]
        return Table(rows, title=title, foot=self._foot())

    def _foot(self) -> list[str]:
        foot = []
        if self.busy.get("comm_busy"):
            exposed = f"{self.busy['exposed_comm']:.1%} exposed, with nothing else running"
            foot.append(f"collectives: {self.busy['comm_busy']:.1%} of the time, {exposed}")
        idle = {words_of(cause): us for cause, us in self.idle.items() if us is not None}
        if idle:
            parts = [f"{cause} {us / 1000:,.1f} ms" for cause, us in idle.items()]
            foot.append(f"device idle: {', '.join(parts)}")
        if self.tensor_core_share is not None:
            foot.append(
                f"Tensor Cores: {self.tensor_core_share:.0%} of kernel time uses them, "
                f"{self.tensor_core_eligible_share:.0%} is of operators that can"
            )
        return foot + [f"note: {note}" for note in self.notes]


def words_of(name: str) -> str:
    """Return the name of a time as words: "host_wait_us" is "host wait"."""
    return name.removesuffix("_us").replace("_", " ")


class Change(NamedTuple):
    """What a class or a kernel takes of an average step, µs."""

    name: str
    before_us: float
    after_us: float
    change_us: float


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

    @property
    def classes(self) -> list[Change]:
        """What each class takes of an average step before and after."""
        return _changes(self.before.class_us, self.after.class_us)

    @property
    def kernels(self) -> list[Change]:
        """The same of the kernels that changed most, those first."""
        changes = _changes(self.before.kernels_us, self.after.kernels_us)
        return sorted(changes, key=lambda each: -abs(each.change_us))[:LISTED]

    def plot(self) -> Figure:
        """Draw what changed, as bars."""
        from labkit.view.analysis_figures import draw_comparison

        return draw_comparison(self)

    def to_dict(self) -> dict[str, object]:
        """Return µs of a step: of all classes, and of the kernels that changed most."""
        found: dict[str, object] = {"before": self.before.source, "after": self.after.source}
        for key in ("step_us", "utilization", "steps"):
            found[f"before_{key}"] = getattr(self.before, key)
            found[f"after_{key}"] = getattr(self.after, key)
        for what in ("classes", "kernels"):
            found[what] = [each._asdict() for each in getattr(self, what)]
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels that changed most."""
        rows = []
        for label, changes in (("", self.classes), ("kernel ", self.kernels)):
            for each in changes:
                name = f"{label}{each.name[:60]}"
                ms = (f"{us / 1000:,.2f}" for us in (each.before_us, each.after_us))
                rows.append((name, *ms, f"{each.change_us / 1000:+,.2f}"))
        head = ("of a step", "ms before", "ms after", "change")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        return Table(rows, head, title)


def _changes(before: dict[str, float], after: dict[str, float]) -> list[Change]:
    took = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in before | after]
    return [Change(name, first, second, second - first) for name, first, second in took]
