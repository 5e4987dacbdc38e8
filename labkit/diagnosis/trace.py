"""Read torch.profiler traces and say where the time of a step went: `trace(path)`.

The rules are those of the TensorBoard plugin, with which it agrees, but for newer categories,
collectives by their kernels' names, and multiply-add kernels with "xmma" in theirs.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.diagnosis import trace_events as kinds
from labkit.diagnosis import trace_steps as steps_of
from labkit.diagnosis.trace_events import join, read_events
from labkit.diagnosis.trace_file import RankTraces, TraceError, TraceFile, packing, ranks_of
from labkit.diagnosis.trace_steps import CLASSES, StepClock, TopKernel, length
from labkit.results.result import Result, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTED = 6  # kernels and operators that changed most
GRAPHS = "CUDA graphs were launched: some profilers miss the kernels inside them."  # a note
XRAY_FILE = "xray.json.gz"  # written by labkit.bench.profile into the run's folder
XRAY_EVENT = "xray_trace"  # what a saved record has instead


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
    copy_overlap_share: float | None  # of copy time during which a kernel ran; None without copies
    top_kernels: tuple[TopKernel, ...]  # that took most time
    rank: int | None  # that the file says it is of; None where it does not say
    notes: tuple[str, ...]  # what was missing or odd, and how it was handled
    # Shares (0 to 1) of the steps, of `trace_steps.device_shares`; of a CPU only the collectives'
    busy: dict[str, float] = field(default_factory=dict)
    # The same of the whole window up to the last mark, as other tools report it, and `window_ms`,
    # `profiler_steps` (marks in it), `kernels` (in the file)
    window: dict[str, float] = field(default_factory=dict)
    # Of `idle["host_us"]`, on a CPU of `other_us`: what is more than Python between two operators
    host_work_us: float = 0.0
    host_where: tuple[str, ...] = ()  # the annotation and the Python function around most of that
    compute_capability: str | None = None  # of the devices, "7.0"; None where it does not tell
    loader_workers: bool | None = None  # whether the DataLoader has workers; None without one
    # µs of a step of all kernels, and of all operators without those inside them; not in records
    detail: dict[str, dict[str, float]] = field(default_factory=dict, compare=False)

    @property
    def trains(self) -> bool | None:
        """Whether there is a backward pass or an optimizer; None where no operator is known."""
        operators = self.detail.get("operators")
        if not operators:
            return None
        return any("ackward" in name or name.startswith("Optimizer.") for name in operators)

    # fmt: off
    shares = property(lambda b: {c: getattr(b, f"{c}_us") / b.step_us for c in (*CLASSES, "other")},
                      doc="Share (0 to 1) of the step in each class, in the order of priority.")
    cuda_graphs = property(lambda b: GRAPHS in b.notes,
                           doc="Whether CUDA graphs were launched, whose kernels may be missing.")
    utilization = property(lambda b: b.shares["cpu_exec"] if b.gpu_utilization is None
                           else b.gpu_utilization, doc="Share (0 to 1) of the step in which the "
                           "device computes: kernels, on a CPU operators.")
    # fmt: on

    def plot(self) -> Figure:
        """Draw the average step as bars."""
        from labkit.view.analysis_figures import draw_trace

        return draw_trace(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values, under the attributes' names."""
        return _recorded(self) | {"shares": self.shares, "utilization": self.utilization}

    def compare(self, after: Breakdown | str | os.PathLike) -> TraceComparison:
        """Return what changed from this trace to `after`: another of one rank, or its path."""
        after = after if isinstance(after, Result) else trace(after)
        if not isinstance(after, Breakdown):
            raise TraceError(f"{after.source!r} holds several ranks: compare one of its .ranks.")
        return TraceComparison(self, after)

    def table(self) -> Table:
        """Return the classes of the step, and below them idle time, Tensor Cores and notes."""
        device, busy, foot = self.device_name or self.device_kind.upper(), self.busy, []
        steps = f"{self.steps} steps" if self.steps > 1 else "1 step"
        title = f"Trace {self.source}: {steps} of {self.step_us / 1000:,.1f} ms on {device}, "
        title += f"{self.utilization:.1%} busy"
        if "any_gpu_busy" in busy:
            title += f" (kernels; {busy['any_gpu_busy']:.1%} with copies and memsets)"
        if busy.get("comm_busy"):
            exposed = f"{busy['exposed_comm']:.1%} exposed, with nothing else running"
            foot.append(f"collectives: {busy['comm_busy']:.1%} of the time, {exposed}")
        if self.gpu_utilization is not None:
            idle = (f"{_words(k)} {v / 1000:,.1f} ms" for k, v in self.idle.items())
            foot.append(f"device idle: {', '.join(idle)}")
        if self.host_where and self.host_work_us > 0.05 * self.step_us:
            foot.append(f"host work outside operators is mostly in {', '.join(self.host_where)}")
        if self.tensor_core_share is not None:
            foot.append(
                f"Tensor Cores: {self.tensor_core_share:.0%} of kernel time uses them, "
                f"{self.tensor_core_eligible_share:.0%} is of operators that can"
            )
        rows = [
            (_words(name), f"{getattr(self, name + '_us') / 1000:,.2f} ms", f"{share:.1%}")
            for name, share in self.shares.items()
        ]
        return Table(rows, title=title, foot=[*foot, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, repr=False)
class TraceComparison(Result):
    """What changed from one trace to another, in an average step (without marks: the window)."""

    before: Breakdown
    after: Breakdown

    @property
    def headline(self) -> str:
        """Say how the step and its busy share changed."""
        a, b = self.before, self.after
        times = f"{a.step_us / 1000:,.1f} -> {b.step_us / 1000:,.1f} ms"
        busy = f"{a.utilization:.1%} -> {b.utilization:.1%} busy"
        return f"step {times} ({b.step_us / a.step_us - 1:+.0%}), {busy}"

    def plot(self) -> Figure:
        """Draw what changed, as bars."""
        from labkit.view.analysis_figures import draw_comparison

        return draw_comparison(self)

    def to_dict(self) -> dict[str, Any]:
        """Return µs and shares of a step: of all classes, and of what changed most."""
        a, b = self.before, self.after
        found: dict[str, Any] = {"before": a.source, "after": b.source}
        for key in ("step_us", "utilization", "steps"):
            found |= {f"before_{key}": getattr(a, key), f"after_{key}": getattr(b, key)}
        classes = [{name: getattr(x, f"{name}_us") for name in x.shares} for x in (a, b)]
        for what in ("classes", "kernels", "operators"):
            old, new = classes if what == "classes" else [x.detail.get(what, {}) for x in (a, b)]
            rows = []
            for name in old | new:
                us = old.get(name, 0.0), new.get(name, 0.0)
                row = {"name": name, "before_us": us[0], "after_us": us[1]}
                row |= {"change_us": us[1] - us[0], "before_share": us[0] / a.step_us}
                rows.append(row | {"after_share": us[1] / b.step_us})
            if what != "classes":
                rows = sorted(rows, key=lambda row: -abs(row["change_us"]))[:LISTED]
            found[what] = rows
        return found

    def table(self) -> Table:
        """Return the classes, then the kernels and operators that changed most."""
        found, rows = self.to_dict(), []
        for what in ("classes", "kernels", "operators"):
            for row in found[what]:
                name = row["name"] if what == "classes" else f"{what[:-1]} {row['name'][:60]}"
                ms = [f"{row[f'{key}_us'] / 1000:,.2f}" for key in ("before", "after")]
                shares = (f"{row[f'{key}_share']:.1%}" for key in ("before", "after"))
                rows.append((name, *ms, f"{row['change_us'] / 1000:+,.2f}", *shares))
        head = ("of a step", "ms before", "ms after", "change", "before", "after")
        title = f"{self.before.source} -> {self.after.source}: {self.headline}"
        foot = ("kernels: time on the device; operators: the host's, without those inside them",)
        return Table(rows, head, title, foot)


def _recorded(breakdown: Breakdown) -> dict[str, Any]:
    values = asdict(breakdown)
    del values["detail"]
    return values


def _words(name: str) -> str:
    return name.removesuffix("_us").replace("_", " ")


def trace(path: str | os.PathLike) -> Breakdown | RankTraces:
    """Break down the steps of torch.profiler traces: the average step of a rank, or of every rank.

    Args:
        path: A Chrome trace of one rank as torch.profiler writes it, .json or .json.gz, of any
            version; or a folder or an archive (.tar, .tar.gz, .zip) of one such file per rank.

    Where a process drives several devices, a stretch of time counts as `kernel` if any of them runs
    one; utilization and idle time are averages. TraceError: the file cannot be read, is damaged or
    no profiler trace, has several ranks, no time inside steps, or over 2 GiB uncompressed.
    """
    kind = packing(path)
    return ranks_of(path, kind, _of_one) if kind else _of_one(TraceFile(path))


def _of_one(file: TraceFile) -> Breakdown:
    """Read one rank's trace."""
    events = read_events(file)
    steps, notes = steps_of.find_steps(events)
    clock, count = StepClock(steps), len(steps.start)
    if not clock.total:
        raise file.error("has only steps of zero length")
    is_kernel = np.isin(events.kind, (kinds.KERNEL, kinds.COMMUNICATION_KERNEL))
    ran_there = is_kernel if is_kernel.any() else np.isin(events.kind, kinds.ON_DEVICE)
    devices, inside = np.unique(events.place[ran_there]), clock.inside(events.span)
    on_gpu = len(devices) > 0
    busy, window = steps_of.device_shares(events, devices, clock), steps_of.find_window(events)
    copies, under = inside.only(events.kind == kinds.MEMCPY), inside.only(is_kernel)
    copied = length(copies)
    both = copied + length(under) - length(join(copies, under))
    outside = steps_of.host_outside(events, clock)
    glue = min(steps_of.GLUE_NS, steps_of.GLUE_SHARE * clock.total / count)
    long = outside.only(outside.length > glue)
    idle = [steps_of.split_idle(events, device, clock, outside) for device in devices]
    work = [steps_of.split_idle(events, device, clock, long)["host"] for device in devices]
    ops = np.isin(events.kind, (kinds.CPU_OP, kinds.ELIGIBLE_OP))
    ran = inside.only(ops)
    if not on_gpu:
        sent = inside.only(events.kind == kinds.COMMUNICATION)
        alone = length(join(sent, ran)) - length(ran)
        busy = {"comm_busy": length(sent) / clock.total, "exposed_comm": alone / clock.total}
    kernels = steps_of.top_kernels(events, inside, is_kernel)
    doubts = {
        f"{len(devices)} devices: kernel time is time with a kernel on any of them, "
        "utilization and idle time are averages over devices.": len(devices) > 1,
        "No device activity: a CPU run, or recorded without ProfilerActivity.CUDA.": not on_gpu,
        "Device work is not tied to launches: the causes of idle time are unknown.": (
            on_gpu and not events.tied.any()
        ),
        "No kernel falls inside the steps.": on_gpu and kernels["tensor_core_share"] is None,
        GRAPHS: (events.kind == kinds.GRAPH_LAUNCH).any(),
    }
    notes = [*file.notes, *notes, *(note for note, holds in doubts.items() if holds)]
    info = file.meta.get("distributedInfo")
    rank = str(info.get("rank")) if type(info) is dict else ""

    def per_step(ns: float) -> float:
        return float(ns) / count / 1000

    def by_name(name: np.ndarray, ns: np.ndarray) -> dict[str, float]:
        total = np.bincount(name, ns)
        return {events.names[i]: per_step(total[i]) for i in np.flatnonzero(total)}

    return Breakdown(
        source=os.path.basename(file.path),
        device_kind="gpu" if on_gpu else "cpu",
        device_name=_device_name(file.meta.get("deviceProperties"), events.devices),
        compute_capability=_capability(file.meta.get("deviceProperties"), events.devices),
        loader_workers=_loader_workers(events),
        steps=count,
        step_us=clock.total / count / 1000,
        **{f"{c}_us": per_step(ns) for c, ns in steps_of.split_by_class(events, clock).items()},
        gpu_utilization=busy["kernel_busy"] if on_gpu else None,
        # Per device: a process with two idle GPUs waits once, not twice.
        idle={f"{c}_us": per_step(np.mean([each[c] for each in idle])) if on_gpu else None
              for c in ("host_wait", "host", "kernel_wait", "other")},
        copy_overlap_share=both / copied if copied else None,
        rank=int(rank) if re.fullmatch("[0-9]{1,7}", rank) else None,
        notes=tuple(dict.fromkeys(notes)),
        busy=busy,
        window={"window_ms": window.total / 1e6, "kernels": int(is_kernel.sum()),
                "profiler_steps": len(events.of(kinds.STEP).start),
                **steps_of.device_shares(events, devices, window)},
        host_work_us=per_step(np.mean(work) if on_gpu else long.length.sum()),
        host_where=steps_of.where(events, clock, long),
        detail={"kernels": by_name(events.name[is_kernel], under.length),
                "operators": by_name(events.name[ops],
                                     steps_of.self_times(ran, events.place[ops]))},
        **kernels,
    )  # fmt: skip


def _properties(listed: Any, devices: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the properties of the devices, which need not be numbered as there."""
    listed = [d for d in listed if type(d) is dict] if type(listed) is list and devices else []
    return [d for d in listed if d.get("id") in devices] or listed


def _device_name(listed: Any, devices: tuple[str, ...]) -> str | None:
    """Return what the properties call the devices; None where they differ."""
    names = {str(d["name"]) for d in _properties(listed, devices) if d.get("name")}
    return names.pop()[:100] if len(names) == 1 else None


def _capability(listed: Any, devices: tuple[str, ...]) -> str | None:
    """Return the compute capability of the devices, such as "7.0"; None where they differ."""
    keys = ("computeMajor", "computeMinor")
    found = {tuple(d.get(key) for key in keys) for d in _properties(listed, devices)}
    numbers = found.pop() if len(found) == 1 else ()
    whole = len(numbers) == 2 and all(type(n) is int for n in numbers)
    return f"{numbers[0]}.{numbers[1]}" if whole else None


def _loader_workers(events: Any) -> bool | None:
    """Return whether the DataLoader of a trace prepares batches in workers; None without one."""
    marked = np.unique(events.name[events.kind == kinds.DATALOADER])
    names = [events.names[name] for name in marked if name >= 0]
    return any("_MultiProcessing" in name for name in names) if names else None


# -- the trace of a run's x-ray: a file in its folder; a saved record has what was read from it ----


def xray_of(run: Any) -> Breakdown | None:
    """Return the Breakdown of the x-ray of `run`; None where there is none that can be read."""
    path = Path(run.path) / XRAY_FILE
    return _of_file(path) if path.is_file() else _of_event(run.event(XRAY_EVENT) or {})


def xray_line(run: Any) -> str | None:
    """Return the line that keeps the x-ray of `run` in a saved record; None where it has none."""
    if (found := xray_of(run)) is None:
        return None
    return json.dumps({"event": XRAY_EVENT, "t_ns": 0, **_recorded(found)}, allow_nan=False)


@functools.lru_cache(maxsize=16)
def _of_file(path: Path) -> Breakdown | None:
    try:
        return _of_one(TraceFile(path))
    except TraceError:  # cut short by a full disk, say: the run's own numbers stand
        return None


def _of_event(event: dict[str, Any]) -> Breakdown | None:
    """Rebuild a Breakdown from a record, which may be anybody's: None unless all of it fits."""
    try:
        values = {f.name: event[f.name] for f in fields(Breakdown) if f.name in event}
        values["top_kernels"] = tuple(TopKernel(**kernel) for kernel in values["top_kernels"])
        values |= {name: tuple(values[name]) for name in ("notes", "host_where") if name in values}
        found = Breakdown(**values)
        str(found)  # formats every number in it
        return found
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None
