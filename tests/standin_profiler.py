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
    """An operator or a mark on the host, with the kernels that it launched; ns."""

    name: str
    start: int
    end: int
    shapes: list
    kernels: tuple[int, int]  # indices in the stand-in's list


class Profile:
    gpu: Any = None  # the stand-in

    def __init__(self, **_: Any):  # whatever is asked for, all is recorded
        self.ops: list[Op] = []

    def __enter__(self) -> Profile:
        self.gpu.profile = self
        return self

    def __exit__(self, *_: Any) -> None:
        self.gpu.profile = None

    @property
    def kineto_results(self) -> Any:
        found = [
            {
                "name": op.name,
                "start_ns": op.start,
                "end_ns": op.end,
                "shapes": op.shapes,
                "device_type": CPU,
            }
            for op in self.ops
        ]
        events = [SimpleNamespace(**{k: lambda v=v: v for k, v in op.items()}) for op in found]
        return SimpleNamespace(events=lambda: events)

    def export_chrome_trace(self, path: str) -> None:
        card = self.gpu.cards[0]
        major, minor = card.capability
        device = {
            "id": 0,
            "name": card.name,
            "computeMajor": major,
            "computeMinor": minor,
            "numSms": card.sms,
            "totalGlobalMem": int(card.memory_gib * 2**30),
        }
        events = [event for n, op in enumerate(self.ops) for event in self._traced(op, n + 1)]
        with open(path, "w") as file:
            json.dump({"deviceProperties": [device], "traceEvents": events}, file)

    def _traced(self, op: Op, number: int) -> list[dict]:
        def event(kind: str, name: str, args: dict, start=op.start, end=op.end, **where) -> dict:
            where = {"ph": "X", "pid": 1, "tid": 1, "cat": kind, "name": name, "args": args} | where
            return where | {"ts": start / 1e3, "dur": (end - start) / 1e3}

        known = {"External id": number}
        if "::" not in op.name:
            return [event("user_annotation", op.name, known)]
        events = [event("cpu_op", op.name, known)]
        for i in range(*op.kernels):
            kernel = self.gpu.kernels[i]
            same = {"correlation": i + 1}
            call = "cudaMemcpyAsync" if kernel.is_copy else "cudaLaunchKernel"
            kind = "gpu_memcpy" if kernel.is_copy else "kernel"
            stream = 7 + kernel.stream
            ids = same | {"device": kernel.card, "stream": stream} | known
            events += [
                event("cuda_runtime", call, same),
                event(
                    kind,
                    kernel_name(kernel),
                    ids,
                    kernel.start,
                    kernel.end,
                    pid=kernel.card,
                    tid=stream,
                ),
            ]
        return events


class Mark:
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
        xray.profiler = Profile
        xray.record_function = Mark


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
