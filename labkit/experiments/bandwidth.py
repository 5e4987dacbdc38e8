"""How fast the device moves its own memory: copies of every size, and passes one after another."""

from __future__ import annotations

import functools
from typing import Any

from labkit.experiments.measure import page, primitives
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, boxes = Later("torch"), Later("labkit.show.primitives")

SMALLEST = 2**11  # float32 numbers: 8 KiB
LEAST = 2  # launches that a copy takes on a GPU, or it is the launch that is timed


@experiment(
    "copies within the device's own memory, from cache-sized to far beyond",
    largest_mib=knob(
        None, "the largest array", kind="float", unit="MiB", low=0.01, high=1 << 20,
        auto="well past the last-level cache",
    ),
)  # fmt: skip
def bandwidth(job: Any, bench: Any) -> None:
    """Time `out.copy_(x)` for arrays from 8 KiB on, each four times the one before.

    Bytes: 2 x 4 n, n numbers read and n written (the convention of STREAM, McCalpin 1995: what a
    cache fetches before it can write is not counted). The last point is the device's bandwidth. On
    a GPU arrays that are copied faster than copies can be launched are left out.
    """
    largest = max(SMALLEST, bench.past_cache_elements(job.largest_mib))
    source = bench.random_array(largest)
    target = torch.empty_like(source).fill_(1.0)
    sizes = [largest]
    while sizes[-1] // 4 >= SMALLEST:
        sizes.append(sizes[-1] // 4)
    bench.write("caches", values=bench.cache_bytes())
    left_out = 0
    for done, n in enumerate(reversed(sizes)):
        bench.stage("copying", done, len(sizes))
        copy = functools.partial(target[:n].copy_, source[:n])
        if not bench.on_cpu and n < largest and bench.quick_s(copy) < LEAST * bench.launch_s:
            left_out = n
            continue
        bench.time(copy, of="copy", bytes=8 * n, launches=1, array_bytes=4 * n)
    if left_out:
        size = f"arrays up to {left_out / 2**18:.3g} MiB"
        bench.skip(size, f"a copy takes less than {LEAST} launches: those would be timed")
    past = bench.is_past_cache(8 * largest)
    bench.write("largest", values={"array_bytes": 4 * largest, "past_cache": past})


@bandwidth.figure
def draw_bandwidth(measured: Any, before: Any = None) -> Any:
    """Draw GB/s against the bytes of one array, both logarithmic; dotted lines are cache sizes."""
    texts = ["read plus written; an array and its copy are twice the size shown"]
    if any(point.values.get("past_cache") is False for point in measured.where("largest")):
        texts.append("the largest is NOT well past the last-level cache: not the memory's own rate")
    drawn = []
    for run in (measured, before) if before is not None else (measured,):
        rates = {p.case["array_bytes"]: p.gb_per_s for p in run.where("copy") if p.gb_per_s}
        drawn.append(primitives.Series("", [*rates], [*rates.values()], before=bool(drawn)))
    sizes, rates = drawn[0].x, drawn[0].y
    title = f"{primitives.number(rates[-1])} GB/s from memory" if rates else ""
    figure, (axes,) = page(measured, [(0.3, 2.3)], *texts, before=before, title=title)
    ticks = {size: primitives.size_text(size) for size in sizes}
    primitives.lines(axes, drawn, "size of one array", "GB/s", log="xy", xticks=ticks,
                     say=lambda rate: f"{rate:.3g}")  # fmt: skip
    for name, size in [pair for p in measured.where("caches") for pair in p.values.items()]:
        if sizes and sizes[0] < size < sizes[-1]:
            axes.axvline(size, color="#888888", linestyle=":", linewidth=1, zorder=0)
            boxes.say(axes, size, 1.03, f"{name} {primitives.size_text(size)}", fontsize=8,
                      transform=axes.get_xaxis_transform())  # fmt: skip
    return figure


@experiment(
    "elementwise operations one after another: each is a pass over memory",
    mib=knob(
        None, "size of the array", kind="int", unit="MiB", low=1, high=1 << 17,
        auto="well past the last-level cache",
    ),
    lengths=knob([1, 2, 4, 8], "operations one after another", low=1, high=1 << 12),
)  # fmt: skip
def eager_chain(job: Any, bench: Any) -> None:
    """Time 1, 2, 4 ... multiplications in turn on one array, for each number in `lengths`.

    Bytes: 8 a float32 number and operation, one read and one write, since each operation is a pass
    of its own over memory. In place, so that no time goes into new memory. (FLOPs: 1 a number and
    operation, an eighth of the bytes.)
    """
    n = bench.past_cache_elements(job.mib)
    x = bench.random_array(n)

    def chain(length: int) -> None:
        for step in range(length):
            x.mul_(1.0001 if step % 2 else 0.9999)  # neither to zero nor to infinity

    for length in job.lengths:
        bench.time(lambda length=length: chain(length), of="in turn", bytes=8 * length * n,
                   launches=length, operations=length)  # fmt: skip
