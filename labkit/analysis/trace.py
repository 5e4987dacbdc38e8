"""Read a torch.profiler trace and say where the time of a step went: `trace(path)`.

PyTorch's own reader of these files, the TensorBoard plugin, was removed upstream. This one keeps
its rules (see `trace_steps`) and agrees with it. It differs on purpose in three things: it knows
newer category names, it knows NCCL kernels without their operator, and it does not take plain
multiply-add kernels with "xmma" in their name for Tensor Core kernels.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from labkit.analysis import trace_events as kinds
from labkit.analysis.trace_events import Events, Intervals, read_events, uses_tensor_cores
from labkit.analysis.trace_file import TraceError, TraceFile
from labkit.analysis.trace_steps import (
    CLASSES,
    StepClock,
    find_steps,
    join,
    length,
    split_by_class,
    split_idle,
)
from labkit.results.result import Result, Table

TOP = 10  # kernels listed
GRAPHS = "CUDA graphs were launched: some profilers miss the kernels inside them."  # a note
XRAY_FILE = "xray.json.gz"  # written by labkit.bench.profile into the run's folder
XRAY_EVENT = "xray_trace"  # what a saved record has instead


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

    Read from a profiler trace, whose recording slows the host: a traced step is longer, and idler,
    than an untraced one. Each class has the time that none above it covers.
    """

    source: str  # the file's name
    device_kind: str  # "gpu", or "cpu" where the trace holds no device activity
    device_name: str | None  # what the trace calls it; None where it does not, or calls it several
    steps: int  # that were averaged
    step_us: float  # of the host's mark and the device work launched in it
    kernel_us: float  # a compute kernel runs
    memcpy_us: float  # a copy runs
    memset_us: float  # a memset runs
    communication_us: float  # a collective (NCCL, Gloo) runs
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
    # was launched after the gap began), `kernel_wait_us` (short gaps between work that was already
    # launched), `other_us`; None each without device activity
    idle: dict[str, float | None]
    copy_overlap_share: float | None  # of copy time during which a kernel ran; None without copies
    top_kernels: tuple[TopKernel, ...]  # that took most time
    rank: int | None  # that the file says it is of; None where it does not say
    notes: tuple[str, ...]  # what was missing or odd, and how it was handled

    @property
    def shares(self) -> dict[str, float]:
        """Share (0 to 1) of the step in each class, by name, in the order of priority."""
        return {c: getattr(self, f"{c}_us") / self.step_us for c in (*CLASSES, "other")}

    @property
    def cuda_graphs(self) -> bool:
        """Whether CUDA graphs were launched, whose kernels may be missing."""
        return GRAPHS in self.notes

    @property
    def utilization(self) -> float:
        """Share (0 to 1) of the step in which the device computes: kernels, on a CPU operators."""
        return self.shares["cpu_exec"] if self.gpu_utilization is None else self.gpu_utilization

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values, under the attributes' names."""
        return asdict(self) | {"shares": self.shares, "utilization": self.utilization}

    def table(self) -> Table:
        """Return the classes of the step, and below them idle time, Tensor Cores and notes."""
        device = self.device_name or self.device_kind.upper()
        steps = f"{self.steps} steps" if self.steps > 1 else "1 step"
        title = f"Trace {self.source}: {steps} of {self.step_us / 1000:,.1f} ms on {device}, "
        rows = [
            (_words(name), f"{getattr(self, name + '_us') / 1000:,.2f} ms", f"{share:.1%}")
            for name, share in self.shares.items()
        ]
        foot = []
        if self.gpu_utilization is not None:
            idle = (f"{_words(k)} {v / 1000:,.1f} ms" for k, v in self.idle.items())
            foot.append(f"device idle: {', '.join(idle)}")
        if self.tensor_core_share is not None:
            foot.append(
                f"Tensor Cores: {self.tensor_core_share:.0%} of kernel time uses them, "
                f"{self.tensor_core_eligible_share:.0%} is of operators that can"
            )
        foot += [f"note: {note}" for note in self.notes]
        return Table(rows, title=f"{title}{self.utilization:.1%} busy", foot=foot)


def _words(name: str) -> str:
    return name.removesuffix("_us").replace("_", " ")


def trace(path: str | os.PathLike) -> Breakdown:
    """Break down the steps of a torch.profiler trace.

    Args:
        path: A Chrome trace of one rank as torch.profiler writes it, .json or .json.gz, of any
            version.

    Returns:
        The average step. Where the process drives several devices, a stretch of time counts as
        `kernel` if any of them runs one, and utilization and idle time are averages over the
        devices. `notes` says so.

    Raises:
        TraceError: The file cannot be read, is damaged, is not a profiler trace, has several ranks
            or no time inside steps, or is larger than 2 GiB uncompressed.
    """
    file = TraceFile(path)
    events = read_events(file)
    steps, notes = find_steps(events)
    clock, count = StepClock(steps), len(steps.start)
    if not clock.total:
        raise file.error("has only steps of zero length")
    is_kernel = (events.kind == kinds.KERNEL) | (events.kind == kinds.COMMUNICATION_KERNEL)
    devices = np.unique(events.place[is_kernel] if is_kernel.any() else events.place)
    inside = clock.inside(events.device)
    busy, idle = 0, dict.fromkeys(("host_wait", "kernel_wait", "other"), 0)
    for device in devices:
        busy += length(inside.only(is_kernel & (events.place == device)))
        for cause, amount in split_idle(events, device, clock).items():
            idle[cause] += amount
    # Per device: a process with two idle GPUs waits once, not twice.
    device_ns = len(devices) * clock.total
    weight = clock.total / device_ns if device_ns else None

    copies, under = inside.only(events.kind == kinds.MEMCPY), inside.only(is_kernel)
    copied = length(copies)
    both = copied + length(under) - length(join(copies, under))
    kernels = _kernels(events, inside, is_kernel)
    if len(devices) > 1:
        notes.append(
            f"{len(devices)} devices: kernel time is time with a kernel on any of them, "
            "utilization and idle time are averages over devices."
        )
    if not device_ns:
        notes.append("No device activity: a CPU run, or recorded without ProfilerActivity.CUDA.")
    else:
        if not (events.launch >= 0).any():
            notes.append(
                "Device work is not tied to launches: the causes of idle time are unknown."
            )
        if kernels["tensor_core_share"] is None:
            notes.append("No kernel falls inside the steps.")
    if kinds.GRAPH_LAUNCH in events.host:
        notes.append(GRAPHS)
    listed, info = (file.meta.get(key) for key in ("deviceProperties", "distributedInfo"))
    listed = [d for d in listed if type(d) is dict] if type(listed) is list else []
    names = {str(d.get("name")) for d in listed if d.get("id") in events.devices and d.get("name")}
    rank = info.get("rank") if type(info) is dict else None
    return Breakdown(
        source=os.path.basename(file.path),
        device_kind="gpu" if device_ns else "cpu",
        device_name=names.pop()[:100] if len(names) == 1 else None,
        steps=count,
        step_us=clock.total / count / 1000,
        **{f"{c}_us": ns / count / 1000 for c, ns in split_by_class(events, clock).items()},
        gpu_utilization=busy / device_ns if device_ns else None,
        idle={f"{c}_us": weight and ns / count / 1000 * weight for c, ns in idle.items()},
        copy_overlap_share=both / copied if copied else None,
        rank=int(rank) if re.fullmatch("[0-9]{1,7}", str(rank)) else None,
        notes=tuple(dict.fromkeys([*file.notes, *notes])),
        **kernels,
    )


def _kernels(events: Events, inside: Intervals, is_kernel: np.ndarray) -> dict[str, Any]:
    """Return the top kernels, and the shares of kernel time on Tensor Cores and able to be."""
    spent = inside.end - inside.start
    counted = is_kernel & (spent > 0)
    times = np.bincount(events.name[counted], weights=spent[counted])
    calls = np.bincount(events.name[counted])
    on_cores = np.array([uses_tensor_cores(name) for name in events.kernels] or [False])
    uses = counted & on_cores[events.name]
    total = float(spent[counted].sum(dtype=float))
    # As in the plugin, an operator that was seen to use Tensor Cores is one that can.
    can = float(spent[counted & (events.eligible | uses)].sum(dtype=float))
    top = sorted(np.flatnonzero(calls), key=lambda kernel: -times[kernel])[:TOP]
    return {
        "tensor_core_share": float(spent[uses].sum(dtype=float)) / total if total else None,
        "tensor_core_eligible_share": can / total if total else None,
        "top_kernels": tuple(
            TopKernel(events.kernels[k], float(times[k]) / 1000, int(calls[k]), bool(on_cores[k]))
            for k in top
        ),
    }


# -- the trace of a run's x-ray: a file in its folder; a saved record has what was read from it ----


def xray_of(run: Any) -> Breakdown | None:
    """Return the Breakdown of the x-ray of `run`; None where there is none that can be read."""
    path = Path(run.path) / XRAY_FILE
    return _of_file(path) if path.is_file() else _of_event(run.event(XRAY_EVENT) or {})


def xray_line(run: Any) -> str | None:
    """Return the line that keeps the x-ray of `run` in a saved record; None where it has none."""
    found = xray_of(run)
    line = found and {"event": XRAY_EVENT, "t_ns": 0, **asdict(found)}
    return line and json.dumps(line, allow_nan=False)


@functools.lru_cache(maxsize=16)
def _of_file(path: Path) -> Breakdown | None:
    try:
        return trace(path)
    except TraceError:  # cut short by a full disk, say: the run's own numbers stand
        return None


def _of_event(event: dict[str, Any]) -> Breakdown | None:
    """Rebuild a Breakdown from a record, which may be anybody's: None unless all of it fits."""
    try:
        values = {field.name: event[field.name] for field in fields(Breakdown)}
        values["top_kernels"] = tuple(TopKernel(**kernel) for kernel in values["top_kernels"])
        found = Breakdown(**values | {"notes": tuple(values["notes"])})
        str(found)  # formats every number in it
        return found
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None
