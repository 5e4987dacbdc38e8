"""What came out of reading a profiler trace: the average step, and how it prints."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, fields
from typing import Any

from labkit.analysis.step_classes import CLASSES

GRAPHS = "CUDA graphs were launched: some profilers miss the kernels inside them."  # a note


@dataclass(frozen=True)
class TopKernel:
    """One kernel, by name: its time in µs and its calls, over all steps and ranks together."""

    name: str
    total_us: float
    calls: int
    tensor_core: bool


@dataclass(frozen=True)
class Breakdown:
    """Where the time of an average step went, in µs; every ns of a step is in exactly one class.

    Read from a profiler trace, whose recording slows the host: a traced step is longer, and idler,
    than an untraced one.

    Attributes:
        source: The file's name.
        device_kind: "gpu", or "cpu" where the trace holds no device activity.
        device_name: What the trace calls the device; None where it does not, or calls it several.
        steps: How many steps were averaged (of all ranks together).
        step_us: Length of a step: of the host's mark and the device work launched in it.
        kernel_us: A compute kernel runs.
        memcpy_us: A copy runs, and no kernel.
        memset_us: A memset runs, and none of the above.
        communication_us: A collective (NCCL, Gloo) runs, and none of the above.
        runtime_us: The host is in a call of the CUDA (HIP, XPU) runtime, and none of the above.
        dataloader_us: The host waits for the DataLoader, and none of the above.
        cpu_exec_us: The host executes an operator, and none of the above.
        other_us: None of the above: Python, mostly.
        gpu_utilization: Share (0 to 1) of the steps in which a kernel ran, collectives included.
            Not how well it used the GPU. None without device activity.
        tensor_core_share: Share of kernel time in Tensor Core kernels, told by their names.
        tensor_core_eligible_share: Share of kernel time launched by operators that could use them.
        idle: Time the device runs nothing, by cause: `host_wait_us` (it ran dry: the work that
            ends the gap was launched after the gap began), `kernel_wait_us` (short gaps between
            work that was already launched), `other_us`. None each without device activity.
        copy_overlap_share: Share of copy time during which a kernel ran; None without copies.
        top_kernels: The kernels that took most time.
        rank: The rank the file says it is of; None where it does not say.
        ranks: The process ids of the ranks in the file.
        notes: What was missing or odd, and how it was handled.
    """

    source: str
    device_kind: str
    device_name: str | None
    steps: int
    step_us: float
    kernel_us: float
    memcpy_us: float
    memset_us: float
    communication_us: float
    runtime_us: float
    dataloader_us: float
    cpu_exec_us: float
    other_us: float
    gpu_utilization: float | None
    tensor_core_share: float | None
    tensor_core_eligible_share: float | None
    idle: dict[str, float | None]
    copy_overlap_share: float | None
    top_kernels: tuple[TopKernel, ...]
    rank: int | None
    ranks: tuple[str, ...]
    notes: tuple[str, ...]

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

    def __str__(self) -> str:
        """Return the numbers a person asks for first, on a few lines."""
        device = self.device_name or self.device_kind.upper()
        shares = (f"{name} {share:.1%}" for name, share in self.shares.items() if share >= 0.001)
        steps = f"{self.steps} steps" if self.steps > 1 else "1 step"
        lines = [
            f"Trace {self.source}: {steps} of {self.step_us / 1000:,.1f} ms on {device}, "
            f"{self.utilization:.1%} busy",
            f"  step: {', '.join(shares)}",
        ]
        if self.gpu_utilization is not None:
            idle = (f"{_words(k)} {v / 1000:,.1f} ms" for k, v in self.idle.items())
            lines.append(f"  device idle: {', '.join(idle)}")
        if self.tensor_core_share is not None:
            lines.append(
                f"  Tensor Cores: {self.tensor_core_share:.0%} of kernel time uses them, "
                f"{self.tensor_core_eligible_share:.0%} is of operators that can"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        """Return one line."""
        values = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[:5])
        return f"<Breakdown {', '.join(values)}, utilization={self.utilization:.3f}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{_words(name)}</td><td>{getattr(self, name + '_us') / 1000:,.2f} ms</td>"
            f"<td>{share:.1%}</td></tr>"
            for name, share in self.shares.items()
        )
        head, *rest = str(self).splitlines()
        tail = "<br>".join(html.escape(line.strip()) for line in rest[1:])
        return f"<b>{html.escape(head)}</b><table>{rows}</table><small>{tail}</small>"


def _words(name: str) -> str:
    return name.removesuffix("_us").replace("_", " ")
