"""What `lk.trace` returns: where the time of an average step went, of a trace or of all ranks'."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

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

# Share of a step that the others wait for one rank. Two healthy gloo ranks on two cores wait for
# each other 7 to 9 % of the time
WORTH_NAMING_A_STRAGGLER = 0.13
RANK_LANES = ("CPU operators", "kernels", "collectives")  # in the picture of two ranks
RANK_COLUMNS = {  # of the table of ranks: shares in `Breakdown.busy`
    "compute_busy": "compute",
    "comm_busy": "collectives",
    "exposed_comm": "exposed",
    "idle": "device idle",
    "dataloader_share": "DataLoader",
}
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
    rank: int | None  # that the file says it is of; None where it does not say
    notes: list[str]  # what was missing or odd, and how it was handled
    # Shares (0 to 1) of the steps, of `TracePieces.busy`. This and what follows: older records may
    # lack it
    busy: dict[str, float] = field(default_factory=dict)
    # µs of a step by the kernel's name, those first that take most; a saved record has few of them
    kernels_us: dict[str, float] = field(default_factory=dict)
    # Of `idle["host_us"]`, on a CPU of `other_us`: what is more than Python between two operators
    host_work_us: float = 0.0
    # The annotation and the Python function around most of that
    host_where: list[str] = field(default_factory=list)
    compute_capability: str | None = None  # of the devices, "7.0"; None where it does not tell
    loader_workers: bool = False  # whether it has a DataLoader with workers
    # Not in a saved record: when each row of a picture was active, as `TracePieces.lanes`, and what
    # these count from
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

    def to_record(self) -> dict[str, object]:
        """Return all fields that a saved record keeps; of the kernels those that take most."""
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        kept["kernels_us"] = dict([*self.kernels_us.items()][:LISTED])
        return kept

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON-ready values, under the attributes' names."""
        return self.to_record() | {"shares": self.shares, "utilization": self.utilization}

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
        for place, (name, us) in enumerate(self.kernels_us.items(), 1):  # names begin alike
            if place <= LISTED:
                rows.append((f"{place}. {name[:40]}", us, "top kernels"))
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
    def changes(self) -> pandas.DataFrame:
        """What each class, and the kernels that changed most, take of an average step, by name.

        Columns: `before_us`, `after_us`, `change_us`. No kernels where a record has only some.
        """
        import pandas

        both = (self.before, self.after)
        are_all = all(sum(each.kernels_us.values()) > 0.999 * each.kernel_us for each in both)
        times = [
            each.class_us | {f"kernel {name}": us for name, us in each.kernels_us.items()}
            for each in both
        ]
        table = pandas.DataFrame(times, ["before_us", "after_us"]).T.fillna(0.0)
        table["change_us"] = table.after_us - table.before_us
        kernels = table.change_us[len(CLASSES) :].abs().nlargest(LISTED if are_all else 0)
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
            "changes": self.changes.rename_axis("name").reset_index().to_dict("records"),
        }

    def table(self) -> Table:
        """Return the classes, then the kernels that changed most; step and busy share above."""
        rows = [
            (name[:67], f"{before / 1000:,.2f}", f"{after / 1000:,.2f}", f"{change / 1000:+,.2f}")
            for name, before, after, change in self.changes.itertuples()
        ]
        head = ("of a step", "ms before", "ms after", "change")
        before, after = self.before, self.after
        times = f"{before.step_us / 1000:,.1f} -> {after.step_us / 1000:,.1f} ms"
        gain = f"step {times} ({after.step_us / before.step_us - 1:+.0%})"
        busy = f"{before.utilization:.1%} -> {after.utilization:.1%} busy"
        return Table(rows, head, f"{before.source} -> {after.source}: {gain}, {busy}")


@dataclass(frozen=True, repr=False)
class RankTraces(Result):
    """The traces of a job: a Breakdown for each rank, in the order of their `rank`."""

    source: str
    ranks: tuple[Breakdown, ...]
    notes: list[str] = field(default_factory=list)

    def _collectives(self) -> tuple[int | None, float, float]:
        """Return who is in collectives for least time, for how long, and the others' median.

        In µs of a step; there a rank also waits for the others.
        """
        spent = {each.rank: each.busy.get("comm_busy", 0.0) * each.step_us for each in self.ranks}
        late = min(spent, key=spent.__getitem__)
        own = spent.pop(late)
        return late, own, median(spent.values() or [own])

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for, so that it waits least; None where none stands out."""
        late, own, others = self._collectives()
        enough = WORTH_NAMING_A_STRAGGLER * fmean(each.step_us for each in self.ranks)
        return late if others - own >= enough else None

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        if self.straggler is None:
            return "no rank keeps the others waiting"
        late, own, others = self._collectives()
        return (
            f"rank {late} is the straggler: it is in collectives for {own / 1000:,.1f} ms of a "
            f"step, the others, which wait for it, for {others / 1000:,.1f} ms (median)"
        )

    def timeline(self) -> Figure:
        """Draw when the first rank and the straggler computed and were in collectives."""
        from labkit.view.run_figure import draw_timeline

        shown = [each for each in self.ranks if each.rank in (self.ranks[0].rank, self.straggler)]
        began_ns = min(each.began_ns for each in shown)
        lanes = {
            f"rank {each.rank}: {kind}": each.lanes[kind] + (each.began_ns - began_ns) / 1e6
            for each in shown
            for kind in RANK_LANES
            if kind in each.lanes
        }
        return draw_timeline(self.source, lanes)

    def to_dict(self) -> dict[str, object]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        return {
            "source": self.source,
            "straggler": self.straggler,
            "headline": self.headline,
            "ranks": [each.to_dict() for each in self.ranks],
            "notes": self.notes,
        }

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        rows = [
            (
                each.rank,
                f"{each.step_us / 1000:,.2f} ms",
                *(f"{each.busy.get(share, 0.0):.1%}" for share in RANK_COLUMNS),
            )
            for each in self.ranks
        ]
        late = self.straggler
        return Table(
            rows,
            head=("rank", "step", *RANK_COLUMNS.values()),
            title=f"Traces {self.source}: {len(self.ranks)} ranks; {self.headline}",
            foot=[f"note: {note}" for note in self.notes],
            left=(),
            bold=[row for row, each in enumerate(self.ranks) if each.rank == late],
        )
