"""PyTorch's profiler as the stand-in GPU would fill it: operators, launches, kernels, marks.

Installed in place of `torch.autograd.profiler.profile` and `record_function`, with as much of their
interface as labkit's x-ray uses. Times are those of the stand-in's clock and queue.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

CPU = torch.autograd.DeviceType.CPU
# As NVIDIA's libraries name their matrix products; labkit tells Tensor Cores by such names
PRODUCTS = {
    "fp32": "ampere_sgemm_128x64_tn", "tf32": "cutlass_80_tensorop_s1688gemm_128x128",
    "fp16": "ampere_fp16_s16816gemm_fp16_128x128", "bf16": "ampere_bf16_s16816gemm_bf16_128x128",
    "fp64": "ampere_dgemm_64x64_tn",
}  # fmt: skip


class Op(NamedTuple):
    """An operator on the host, with the kernels that it launched; ns."""

    name: str
    start: int
    end: int
    shapes: list
    kernels: tuple[int, int]  # indices in the stand-in's list

    def event(self) -> Any:
        return SimpleNamespace(
            name=lambda: self.name, start_ns=lambda: self.start, end_ns=lambda: self.end,
            shapes=lambda: self.shapes, device_type=lambda: CPU,
        )  # fmt: skip


class Profile:
    """Stands in for `torch.autograd.profiler.profile`."""

    gpu: Any = None  # the stand-in

    def __init__(self, **_: Any):  # whatever is asked for, all is recorded
        self.ops: list[Op] = []

    def __enter__(self) -> Profile:
        self.first = len(self.gpu.kernels)
        self.gpu.profile = self
        return self

    def __exit__(self, *_: Any) -> None:
        self.gpu.profile = None

    @property
    def kineto_results(self) -> Any:
        return SimpleNamespace(events=lambda: [op.event() for op in self.ops])

    def export_chrome_trace(self, path: str) -> None:
        card = self.gpu.cards[0]
        major, minor = card.capability
        device = {"id": 0, "name": card.name, "computeMajor": major, "computeMinor": minor,
                  "numSms": card.sms, "totalGlobalMem": int(card.memory_gib * 2**30)}  # fmt: skip
        events = [event for n, op in enumerate(self.ops) for event in self._traced(op, n + 1)]
        with open(path, "w") as file:
            json.dump({"deviceProperties": [device], "traceEvents": events}, file)

    def _traced(self, op: Op, number: int) -> list[dict]:
        mark, known = "::" not in op.name, {"External id": number}
        host = {"ph": "X", "pid": 1, "tid": 1}
        kind = "user_annotation" if mark else "cpu_op"
        events = [host | {"cat": kind, "name": op.name, "args": known, **span(op.start, op.end)}]
        for i in () if mark else range(*op.kernels):
            kernel = self.gpu.kernels[i]
            ids = {"correlation": i + 1, "device": kernel.card, "stream": 7 + kernel.stream} | known
            call = "cudaMemcpyAsync" if kernel.is_copy else "cudaLaunchKernel"
            where = {"ph": "X", "pid": kernel.card, "tid": 7 + kernel.stream, "args": ids}
            events += [
                host | {"cat": "cuda_runtime", "name": call, "args": {"correlation": i + 1},
                        **span(op.start, op.end)},
                where | {"cat": "gpu_memcpy" if kernel.is_copy else "kernel",
                         "name": kernel_name(kernel), **span(kernel.start, kernel.end)},
            ]  # fmt: skip
        return events


class Mark:
    """Stands in for `torch.autograd.profiler.record_function`."""

    def __init__(self, name: str, *_: Any):
        self.name = name

    def __enter__(self) -> Mark:
        self.start = Profile.gpu.clock.now()
        return self

    def __exit__(self, *_: Any) -> None:
        profile = Profile.gpu.profile
        if profile is not None:
            profile.ops.append(Op(self.name, self.start, Profile.gpu.clock.now(), [], (0, 0)))


def install() -> None:
    """Take the place of PyTorch's profiler, also where labkit has imported that already."""
    torch.autograd.profiler.profile = Profile
    torch.autograd.profiler.record_function = Mark
    if xray := sys.modules.get("labkit.bench.profile"):
        xray.profiler, xray.record_function = Profile, Mark


def kernel_name(kernel: Any) -> str:
    """Return a name such as a profiler shows: of a library's product, or of PyTorch's own."""
    if kernel.is_copy:
        up = kernel.name.endswith("HtoD")
        return "Memcpy HtoD (Pageable -> Device)" if up else "Memcpy DtoH (Device -> Pinned)"
    if kernel.flops:
        return PRODUCTS.get(kernel.format, PRODUCTS["fp32"])
    if "foreach" in kernel.name or "fused" in kernel.name:
        return f"void at::native::multi_tensor_apply_kernel<{kernel.name}>"
    if any(word in kernel.name for word in ("norm", "softmax", "sum", "mean", "loss")):
        return f"void at::native::{kernel.name}_kernel<float>"
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{kernel.name}>"


def span(start: int, end: int) -> dict[str, float]:
    return {"ts": start / 1e3, "dur": (end - start) / 1e3}
