"""The roofs of this device, and real operations to place under them (see `roofline_points`).

An operation's FLOPs and bytes are counted, not measured; the bytes are what must move at least:
every input once in, every output once out (Williams, Waterman and Patterson, "Roofline", CACM
2009, for a cold cache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.experiments.matrix_products import ALL, SIDE, USUAL, side, time_product
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, functional = Later("torch"), Later("torch.nn.functional")
workbench = Later("labkit.bench.workbench")

LAYER = 1024  # numbers normalised together
CHANNELS, EDGE, KERNEL = 64, 56, 3  # of the convolution: as in a ResNet-18's first stage
IMAGES = (8, 16, 32, 64, 128, 256, 512)
SIZES_ON_CPU = (32, 128, 512)


@experiment(
    "this device's measured roofs, and real operations under them",
    mib=knob(None, "size of the arrays", kind="int", unit="MiB", low=1, high=1 << 17,
             auto="well past the last-level cache"),
    n=knob(None, "rows of the matrices of the compute roofs", **SIDE),
    formats=knob(None, "number formats", kind="str", choices=ALL, each=True,
                 auto=", ".join(USUAL)),
    sizes=knob(None, "rows of the smaller products", kind="int", low=1, high=1 << 16, each=True,
               auto="chosen for the device"),
)  # fmt: skip
def roofline(job: Any, bench: Any) -> None:
    """Measure the roofs (`roof` in the case), then the operations.

    Roofs: the bandwidth of passes over arrays past the last-level cache (the fastest counts), and
    the rate of a large matrix product in each of `formats`. Without `n` a format's roof is its
    largest product that does not take long; without `sizes` a GPU gets those below it that are more
    than their launch.
    """
    memory_bound(job, bench)
    largest = {}
    for name in bench.usable(job.formats or USUAL):
        bench.stage(f"the roof of {name}")
        largest[name] = job.n or side(bench, name, largest=True)
        time_product(bench, name, largest[name], of="matmul", format=name, roof="compute")
    for name, roof in largest.items():
        sizes = job.sizes or SIZES_ON_CPU
        if not (job.sizes or bench.on_cpu):
            smallest = side(bench, name)
            sizes = [n for n in workbench.SIDES if n >= smallest]
        for size in dict.fromkeys(sizes):
            if size != roof:  # that is measured already
                bench.stage(f"matrix products in {name}")
                time_product(bench, name, size, of="matmul", format=name)
    convolution(bench)


def memory_bound(job: Any, bench: Any) -> None:
    """Time passes over arrays past the cache, in FP32, into memory that is there already.

    Copy, and scale in place: 8 bytes a number (one read, one written). On a CPU a copy's target is
    fetched into the cache before it is overwritten, which is not counted; in place nothing is.
    Add: 1 FLOP a number; 12 bytes (two read, one written).
    Layer norm: 7 FLOPs a number: sum for the mean (1), subtract it (1), square and sum for the
    variance (2), scale (1), weight and bias (2); 8 bytes (one read, one written). Square roots and
    divisions are one a row and not counted; nor are weight and bias, which stay in the cache.
    """
    n = bench.past_cache_elements(job.mib)
    bench.stage("the roof of memory")
    a = bench.random_array(n)
    b = torch.empty_like(a).fill_(1.0)
    bench.time(lambda: b.copy_(a), of="copy", bytes=8 * n, launches=1, roof="bandwidth")
    bench.time(lambda: b.mul_(0.9999), of="scale in place", bytes=8 * n, launches=1,
               roof="bandwidth")  # fmt: skip
    bench.write("arrays", values={"past_cache": bench.is_past_cache(8 * n)})
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


def convolution(bench: Any) -> None:
    """Time one 3x3 convolution, 64 channels to 64, as in a ResNet-18, on float32 tensors.

    FLOPs: 2 x images x out channels x height x width x in channels x kernel^2 (He et al. 2015
    count multiply-adds, half of that). Bytes: 4 x (input + weights + output). cuDNN's convolutions
    are in TF32 where the card has it (Ampere and later), unless told otherwise.
    """
    bench.stage("convolution")
    weight = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, device=bench.device)

    def work_of(images: int) -> Callable[[], Any]:
        x = torch.randn(images, CHANNELS, EDGE, EDGE, device=bench.device)  # (images, 64, 56, 56)
        return lambda: functional.conv2d(x, weight, padding=KERNEL // 2)

    tf32 = bench.device.type == "cuda" and torch.backends.cudnn.allow_tf32
    tf32 = tf32 and torch.cuda.get_device_capability(bench.device) >= (8, 0)
    with torch.inference_mode():
        images = bench.fitting(work_of, IMAGES)
        numbers = images * CHANNELS * EDGE**2  # in, and as many out: the padding keeps the size
        bench.time(work_of(images), of="convolution", flops=2 * numbers * CHANNELS * KERNEL**2,
                   bytes=4 * (2 * numbers + weight.numel()), launches=1,
                   format="tf32" if tf32 else "fp32")  # fmt: skip
