"""What `lk.trace` returns of one trace: where the time of an average step went."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.results.result import Result, Table
from labkit.text import counted
from labkit.traces.file import TraceError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.traces.perfetto import Link

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

GRAPHS = "CUDA graphs were launched: some profilers miss the kernels inside them."  # a note
LISTED = 6  # kernels that took most time, or changed most


@dataclass(frozen=True, repr=False)
class Breakdown(Result):
    """Where the time of an average step went, in µs; every ns of a step is in exactly one class.

    Of each class, what none above it covers. Profiling slows the host: a traced step is longer and
    idler than an untraced one.
    """

    source: str  # the file's name
    # What the trace calls it, "GPU" where it does not or has several kinds; "CPU" where the trace
    # holds no device activity
    device_name: str
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
    # `other_us`; empty without device activity
    idle: dict[str, float]
    # That took most time: of each its `name`, `total_us` and `calls` over all steps together, and
    # whether it is a `tensor_core` one
    top_kernels: list[dict[str, Any]]
    rank: int | None  # that the file says it is of; None where it does not say
    notes: list[str]  # what was missing or odd, and how it was handled
    # Shares (0 to 1) of the steps, of `TracePieces.busy`. This and what follows: older records may
    # lack it
    busy: dict[str, float] = field(default_factory=dict)
    # Of `idle["host_us"]`, on a CPU of `other_us`: what is more than Python between two operators
    host_work_us: float = 0.0
    # The annotation and the Python function around most of that
    host_where: list[str] = field(default_factory=list)
    compute_capability: str | None = None  # of the devices, "7.0"; None where it does not tell
    loader_workers: bool = False  # whether it has a DataLoader with workers
    # Not in a saved record: µs of a step of every kernel by name, when each row of a picture was
    # active, as `TracePieces.lanes`, and what these count from
    kernels_us: dict[str, float] = field(default_factory=dict, compare=False)
    lanes: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    began_ns: int = field(default=0, compare=False)
    path: str | None = field(default=None, compare=False)  # of the file, where it is one of its own

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
        return {each.name: getattr(self, each.name) for each in fields(self) if each.compare}

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-ready values, under the attributes' names."""
        return self.recorded() | {"shares": self.shares, "utilization": self.utilization}

    def compare(self, after: Breakdown) -> TraceComparison:
        """Return what changed from this trace to `after`, another of one rank, else TraceError."""
        return TraceComparison(self, after)

    def timeline(self, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw when operators, loader, CUDA calls and kernels were active: its first two steps.

        Or from `start_ms` to `end_ms` after the start of the first step.
        """
        from labkit.view.run_figure import draw_timeline

        return draw_timeline(self.source, self.lanes, start_ms, end_ms)

    def open_in_perfetto(self) -> Link:
        """Serve the trace's file to Perfetto's page; return the address, in a notebook a link.

        On 127.0.0.1 alone, until the next call or the end of this process. ValueError: there is no
        file of its own. RuntimeError: another program has the port.
        """
        from labkit.traces.perfetto import serve

        if self.path is None:
            raise ValueError(
                f"{self.source!r} is no file of its own here: unpack an archive, or set "
                "LABKIT_TRACES to a folder with the published trace, and read that file."
            )
        return serve(Path(self.path))

    def plot(self) -> Figure:
        """Draw the average step as bars; one without device activity has no idle gaps."""
        import pandas

        from labkit.view.rows_figure import plot

        rows = [(words_of(name), us, "time of a step") for name, us in self.class_us.items()]
        rows += [(f"idle: {words_of(name)}", us, "idle") for name, us in self.idle.items()]
        for place, each in enumerate(self.top_kernels[:LISTED], 1):  # names begin alike
            us = each["total_us"] / self.steps
            rows.append((f"{place}. {each['name'][:40]}", us, "top kernels"))
        table = pandas.DataFrame([row for row in rows if row[1]], columns=["name", "ms", "what"])
        table["ms"] /= 1e3
        return plot(table, "name", "ms", "what", title=self.table().title)

    def table(self) -> Table:
        """Return the classes of the step, and below them idle time, Tensor Cores and notes."""
        title = (
            f"Trace {self.source}: {counted(self.steps, 'step')} of {self.step_us / 1000:,.1f} ms "
            f"on {self.device_name}, {self.utilization:.1%} busy"
        )
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
        if self.idle:
            parts = [f"{words_of(cause)} {us / 1000:,.1f} ms" for cause, us in self.idle.items()]
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


@dataclass(frozen=True, repr=False)
class TraceComparison(Result):
    """What changed from one trace to another, in an average step (without marks: the window)."""

    before: Breakdown
    after: Breakdown

    def __post_init__(self) -> None:
        for each in (self.before, self.after):
            if not isinstance(each, Breakdown):
                raise TraceError("What holds several ranks is not compared: give one of its files.")

    @property
    def headline(self) -> str:
        """Say how the step and its busy share changed."""
        before = self.before
        after = self.after
        times = f"{before.step_us / 1000:,.1f} -> {after.step_us / 1000:,.1f} ms"
        busy = f"{before.utilization:.1%} -> {after.utilization:.1%} busy"
        return f"step {times} ({after.step_us / before.step_us - 1:+.0%}), {busy}"

    @property
    def changes(self) -> pandas.DataFrame:
        """What each class, and the kernels that changed most, take of an average step, by name.

        Columns: `before_us`, `after_us`, `change_us`.
        """
        import pandas

        times = [
            each.class_us | {f"kernel {name}": us for name, us in each.kernels_us.items()}
            for each in (self.before, self.after)
        ]
        table = pandas.DataFrame(times, ["before_us", "after_us"]).T.fillna(0.0)
        table["change_us"] = table.after_us - table.before_us
        kernels = table.change_us[len(CLASSES) :].abs().nlargest(LISTED)
        return table.loc[[*CLASSES, *kernels.index]]

    def plot(self) -> Figure:
        """Draw the average step of both by class."""
        import pandas

        from labkit.view.run_figure import draw_stacks

        times_us = pandas.DataFrame({"before": self.before.class_us, "after": self.after.class_us})
        widths = times_us.rename(words_of).T / 1e3
        return draw_stacks(self.table().title, [], widths, "ms of the average step")

    def to_dict(self) -> dict[str, object]:
        """Return both traces' sources and the changes."""
        return {
            "before": self.before.source,
            "after": self.after.source,
            "headline": self.headline,
            "changes": self.changes.rename_axis("name").reset_index().to_dict("records"),
        }

    def table(self) -> Table:
        """Return the classes, then the kernels that changed most."""
        rows = [
            (name[:67], f"{before / 1000:,.2f}", f"{after / 1000:,.2f}", f"{change / 1000:+,.2f}")
            for name, before, after, change in self.changes.itertuples()
        ]
        head = ("of a step", "ms before", "ms after", "change")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        return Table(rows, head, title)
