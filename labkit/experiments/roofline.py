"""The roofs of this device, and real operations to place under them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from labkit.bench.caches import is_past_cache, past_cache_elements, random_array
from labkit.bench.sizes import SIDES, fitting
from labkit.bench.workbench import Workbench
from labkit.experiments.matrix_rates import side, time_product, usable

USUAL = ("fp32", "tf32", "fp16", "bf16")
LAYER = 1024  # numbers normalised together
CHANNELS, SIDE, KERNEL = 64, 56, 3  # of the convolution: as in a ResNet-18's first stage
IMAGES = (8, 16, 32, 64, 128, 256, 512)
SIZES_ON_CPU = (32, 128, 512)


def measure(job: Any, bench: Workbench) -> None:
    """Measure the roofs (`roof` in the case), then the operations.

    Roofs: the bandwidth of passes over arrays past the last-level cache (the fastest counts), and
    the rate of a large matrix product in each of `formats`. Every operation's FLOPs and bytes are
    counted, not measured; the bytes are what must move at least: every input once in, every output
    once out (Williams, Waterman and Patterson, "Roofline", CACM 2009, for a cold cache).

    Without `n` a format's roof is its largest product that does not take long; without `sizes` a
    GPU gets those below it that are more than their launch.
    """
    memory_bound(job, bench)
    largest = {}
    for name in usable(job.formats or USUAL, bench):
        bench.stage(f"the roof of {name}")
        largest[name] = job.n or side(bench, name, math.inf)
        time_product(bench, name, largest[name], of="matmul", format=name, roof="compute")
    for name, roof in largest.items():
        for size in dict.fromkeys(job.sizes or usual_sizes(bench, name)):
            if size == roof:
                continue  # measured already
            bench.stage(f"matrix products in {name}")
            time_product(bench, name, size, of="matmul", format=name)
    convolution(bench)


def usual_sizes(bench: Workbench, name: str) -> list[int]:
    """Return the sizes of products below the roof, in a format."""
    if bench.device.type == "cpu":
        return list(SIZES_ON_CPU)
    smallest = side(bench, name)
    return [n for n in SIDES if n >= smallest]


def memory_bound(job: Any, bench: Workbench) -> None:
    """Passes over arrays past the cache, in FP32, into memory that is there already.

    Copy, and scale in place: 8 bytes a number (one read, one written). On a CPU a copy's target is
    fetched into the cache before it is overwritten, which is not counted; in place nothing is.
    Add: 1 FLOP a number; 12 bytes (two read, one written).
    Layer norm: 7 FLOPs a number: sum for the mean (1), subtract it (1), square and sum for the
    variance (2), scale (1), weight and bias (2); 8 bytes (one read, one written). Square roots and
    divisions are one a row and not counted; nor are weight and bias, which stay in the cache.
    """
    n = past_cache_elements(bench.device) if job.mib is None else job.mib * 2**20 // 4
    bench.stage("the roof of memory")
    a = random_array(n, bench.device)
    b = torch.empty_like(a).fill_(1.0)
    bench.time(lambda: b.copy_(a), of="copy", bytes=8 * n, launches=1, roof="bandwidth")
    bench.time(lambda: b.mul_(0.9999), of="scale in place", bytes=8 * n, launches=1,
               roof="bandwidth")  # fmt: skip
    bench.write("arrays", values={"past_cache": is_past_cache(8 * n, bench.device)})
    bench.stage("elementwise operations")
    bench.time(lambda: torch.add(a, b, out=b), of="add", flops=n, bytes=12 * n, launches=1,
               format="fp32")  # fmt: skip
    rows = n // LAYER
    x = a[: rows * LAYER].view(rows, LAYER)  # (rows, 1024)
    weight, bias = torch.rand(2, LAYER, device=bench.device)
    bench.time(layer_norm(x, weight, bias), of="layer norm", flops=7 * x.numel(),
               bytes=8 * x.numel(), launches=1, format="fp32")  # fmt: skip


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable[[], Any]:
    """Return a layer norm of `x`, on a CPU in blocks of 1 MiB that end where they came from.

    For a large new result the system has to fetch and clear every page, which would be timed as if
    it were the operation. A GPU's memory comes from PyTorch's own cache.
    """
    if x.device.type != "cpu":
        return lambda: functional.layer_norm(x, (LAYER,), weight, bias)
    blocks = x.split(256)  # (256, 1024) each

    def work() -> None:
        for block in blocks:
            block.copy_(functional.layer_norm(block, (LAYER,), weight, bias))

    return work


def convolution(bench: Workbench) -> None:
    """One 3x3 convolution, 64 channels to 64, as in a ResNet-18, on float32 tensors.

    FLOPs: 2 x images x out channels x height x width x in channels x kernel^2 (He et al. 2015
    count multiply-adds, half of that). Bytes: 4 x (input + weights + output).
    """
    bench.stage("convolution")
    weight = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, device=bench.device)

    def work_of(images: int) -> Callable[[], Any]:
        x = torch.randn(images, CHANNELS, SIDE, SIDE, device=bench.device)  # (images, 64, 56, 56)
        return lambda: functional.conv2d(x, weight, padding=KERNEL // 2)

    # cuDNN's convolutions are in TF32 where the card has it, unless told otherwise
    kind = "tf32" if tf32_convolutions(bench.device) else "fp32"
    with torch.inference_mode():
        images = fitting(work_of, IMAGES, bench)
        numbers = images * CHANNELS * SIDE**2  # in, and as many out: the padding keeps the size
        bench.time(work_of(images), of="convolution", flops=2 * numbers * CHANNELS * KERNEL**2,
                   bytes=4 * (2 * numbers + weight.numel()), launches=1, format=kind)  # fmt: skip


def tf32_convolutions(device: torch.device) -> bool:
    """Whether float32 convolutions run in TF32 here: PyTorch's default on Ampere and later."""
    return (
        device.type == "cuda"
        and torch.backends.cudnn.allow_tf32
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
