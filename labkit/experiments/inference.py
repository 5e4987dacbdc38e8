"""Inference: prefill and decode of a decoder with a KV cache, held against the law of bandwidth.

A decode step reads every weight and the whole cache to give one token a sequence, so it takes
bytes / bandwidth at the least, and FLOPs / rate where that is more: then it is compute-bound (Pope
et al., "Efficiently Scaling Transformer Inference", MLSys 2023, section 2). FLOPs are those of the
matrix products: 2 a weight and token, 4 x width a pair of tokens in each block. On a CPU, products
of few rows are far slower than large ones, and take weights no faster than one row's: both timed.
On CUDA, PyTorch's product with int8 weights is a plain kernel (a thread an output in most versions:
aten/src/ATen/native/cuda/int8mm.cu), which is not bandwidth-bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis import knee
from labkit.analysis.efficiency import of_peak
from labkit.experiments.device import side
from labkit.experiments.measure import (
    loop,
    machine,
    model_size,
    models,
    page,
    primitives,
    style,
    torch,
)
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.spec import experiment, knob

NUMBER_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a weight
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "bfloat16"}  # of what is computed with
LENGTH = {True: 64, False: 1024}  # on a CPU, whose attention reads at half the bandwidth; on a GPU
DEPTH_ON_GPU = 8
WEIGHTS_SHARE = 1 / 4  # of the memory that is free on a GPU, at most, for FP32 weights
PAST = 2  # on a CPU int8 weights take so many times its last-level cache
VOCABULARY, STEPS = 256, 100  # a 99th percentile of fewer would be their maximum
SECONDS = {True: 1.5, False: 0.3}  # of steps for batch 1, and for each other batch
LONGEST_S = 0.3  # of a step: larger batches are not tried
HELD = 4  # times a thin product's weights fit the last-level cache
CACHE_SHARE = 1 / 8  # of the memory that is free, at most, for the cache
NEAR = 1.2  # compute-bound: FLOPs take so many times as long as the weights, beyond the noise
INT8_ON_CUDA = (
    "int8 on CUDA: PyTorch's own product is a plain kernel that is not bandwidth-bound: half the "
    "bytes of bf16 are not half the time"
)
BEYOND = 2  # larger batches are not tried once FLOPs take so many times as long as the weights


@experiment(
    "prefill and decode of a decoder against what bandwidth allows, and an image model's latency",
    width=knob(4096, "width of the decoder: few and large matrices", low=64, high=16_384),
    depth=knob(None, "blocks of the decoder", kind="int", low=1, high=256,
               auto="until its weights are well past the last-level cache"),
    formats=knob(None, "of the weights; int8 is weight-only", kind="str",
                 choices=tuple(NUMBER_BYTES), each=True, auto="all"),
    length=knob(None, "tokens in the cache, and in the prompt", kind="int", low=8, high=16_384,
                auto="64 on a CPU, else 1024"),
    batches=knob(None, "sequences decoded at once", kind="int", low=1, high=1 << 16, each=True,
                 auto="1, doubled until it is compute-bound or no longer fits"),
    compile=knob(False, "decode through torch.compile, too: up to a minute of compiling"),
    image_model=knob("cnn", "the image model", choices=("mlp", "cnn", "transformer")),
)  # fmt: skip
def inference(job: Any, bench: Any) -> None:
    """Measure the roofs, then each format's prefill and decode steps, then an image model."""
    cache = max(bench.cache_bytes().values(), default=2**25)
    job.length = job.length or LENGTH[bench.on_cpu]
    job.depth = job.depth or depth_for(job.width, cache, bench)
    names = [n for n in job.formats or NUMBER_BYTES if n != "int8"]
    names = bench.usable(names) + ["int8"] * ("int8" in (job.formats or NUMBER_BYTES))
    with torch.inference_mode():
        peaks = roofs(bench, names) | {"cache": cache}
        for name in names:
            bench.stage(f"decode in {name}")
            try:
                decoder(name, job, bench, peaks)
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                if name != "int8":
                    raise
                bench.skip("int8", f"{type(error).__name__}: {machine.in_words(error)}")
    autograd(bench)
    images(job, bench)


def depth_for(width: int, cache_bytes: int, bench: Any) -> int:
    """Return how many blocks make weights that pass a CPU's cache, or that a GPU has room for.

    On a GPU as many as leave room for the caches of several sequences beside FP32 weights.
    """
    block = 12 * width**2  # weights
    if bench.on_cpu:
        return -(-PAST * cache_bytes // block)
    fit = int(WEIGHTS_SHARE * bench.free_bytes()) // (block * NUMBER_BYTES["fp32"])
    return max(1, min(DEPTH_ON_GPU, fit))


def roofs(bench: Any, names: list[str]) -> dict[str, Any]:
    """Measure reading (decode writes next to nothing; "read" does it), and products by format."""
    bench.stage("the roofs: reading memory, matrix products")
    array = bench.random_array(n := bench.past_cache_elements())
    bench.time(array.sum, of="sum", bytes=4 * n, launches=1, roof="bandwidth")
    peaks = {"read": (array.sum, 4 * n)}
    for name in dict.fromkeys("bf16" if name == "int8" else name for name in names):
        rows = side(bench, name, largest=True)
        seconds = bench.time(product(name, rows, rows, bench), of="packed matmul", format=name,
                             flops=2 * rows**3, launches=1, roof="compute", n=rows)  # fmt: skip
        peaks[name] = 2 * rows**3 / seconds
    return peaks


def make(name: str, job: Any, bench: Any, pack: bool = True) -> Any:
    """Return a decoder with random weights in a format, ready to decode."""
    with bench.device:
        model = models.GPT(job.width, job.depth, VOCABULARY, job.length).eval()
    model.to(getattr(torch, DTYPES[name]))
    for layer in model.modules():
        if pack and isinstance(layer, torch.nn.Linear):
            models.packed(layer, name, bench.on_cpu)
    return model


def decoder(name: str, job: Any, bench: Any, peaks: dict[str, float]) -> None:
    """Measure prefill, then decode steps at each batch, of a decoder in one format."""
    model, matrices = make(name, job, bench), 12 * job.width**2 * job.depth + VOCABULARY * job.width
    kind = "bf16" if name == "int8" else name  # of the cache, and of what is computed
    held = math.isqrt(peaks["cache"] // (HELD * NUMBER_BYTES[name])) // 64 * 64

    def flops(batch: int, tokens: int) -> float:
        return batch * tokens * (2 * matrices + 4 * job.width * job.depth * job.length)

    prompt = torch.ones(1, job.length, dtype=torch.long, device=bench.device)
    [seconds] = in_turn(bench, [lambda: model(prompt, models.Cache(model, 1, job.length))], 0.4)
    size = {"width": job.width, "depth": job.depth, "length": job.length,
            "weights_bytes": matrices * NUMBER_BYTES[name]}  # fmt: skip
    bench.write("prefill", seconds=seconds, flops=flops(1, job.length), values=size, format=name)
    for batch in job.batches or (2**n for n in itertools.count()):
        kept = 2 * batch * job.length * job.width * job.depth * NUMBER_BYTES[kind]
        if batch > 1 and kept > CACHE_SHARE * bench.free_bytes():
            bench.skip(f"{name}, batch {batch} and more", "its cache would take too much memory")
            break
        moved = size["weights_bytes"] + kept
        (read, array), step = peaks["read"], decode_step(model, batch, job.length)
        one, thin = (product(name, rows, held, bench) for rows in (1, batch))
        for way, work in ways(step, name, batch, job, bench):
            # In turn: the law is of the moment in which it is held. One product fills the cache
            works = [work, read, *([one, one, thin, thin] if bench.on_cpu else [])]
            seconds, reads, *thins = in_turn(bench, works, SECONDS[batch == 1])
            byte_s, rate, feed_s = np.median(reads) / array, peaks[kind], 0.0
            if thins:
                fed = min(thins[1])
                rate = 2 * batch * held**2 / (fed if batch == 1 else min(thins[3]))
                feed_s = kept * byte_s + matrices * fed / held**2
            values = {"cache_bytes": kept, "bandwidth_s": moved * byte_s, "feed_s": feed_s,
                      "compute_s": flops(batch, 1) / rate}  # fmt: skip
            bench.write("decode", seconds=sorted(seconds), flops=flops(batch, 1), bytes=moved,
                        values=values, format=name, batch=batch, way=way)  # fmt: skip
        beyond = values["compute_s"] > BEYOND * max(values["bandwidth_s"], feed_s)
        if (beyond or min(seconds) > LONGEST_S) and not job.batches:
            break


def product(name: str, rows: int, side: int, bench: Any) -> Callable[[], Any]:
    """Return a product of `rows` with (side, side) weights as a function, as decode has them."""
    kind = getattr(torch, DTYPES[name])
    layer = torch.nn.Linear(side, side, device=bench.device, dtype=kind)
    x = torch.randn(rows, side, device=bench.device).to(kind)
    models.packed(layer, name, bench.on_cpu)
    return lambda: layer(x)


def decode_step(model: Any, batch: int, length: int) -> Callable[[], Any]:
    """Return one decode step as a function: the cache is full but for this token, each time."""
    cache = models.Cache(model, batch, length)
    cache.kept.normal_()  # memory that was never written is not read, either
    cache.at = length - 1
    token = torch.ones(batch, 1, dtype=torch.long, device=cache.kept.device)
    return lambda: model(token, cache)


def ways(step: Callable, name: str, batch: int, job: Any, bench: Any) -> Iterator[tuple]:
    """Yield (way, step): as it is; in a CUDA graph; asked for, compiled, which packs no weights."""
    yield "eager", step
    if bench.device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        step()
        with torch.cuda.graph(graph):
            step()
        yield "CUDA graph", graph.replay
    if job.compile and batch == 1 and name != "int8":
        if why := bench.compile_lacks():
            bench.skip("compiled", why)
            return
        bench.stage(f"compiling decode in {name}")
        plain = decode_step(make(name, job, bench, pack=False), batch, job.length)
        yield "compiled", torch.compile(plain)


def in_turn(bench: Any, works: Sequence[Callable], seconds: float) -> list[list[float]]:
    """Return the s of each call of `works`, one by one and in turn: five rounds at the least."""
    for work in (*works, *works):
        bench.timed(work)
    taken: list[list[float]] = [[] for _ in works]
    while len(taken[0]) < 5 or (sum(taken[0]) < seconds and len(taken[0]) < 2 * STEPS):
        for work, kept in zip(works, taken, strict=True):
            kept.append(bench.timed(work))
    return taken


def autograd(bench: Any) -> None:
    """Time a small decoder's forward pass: in inference_mode, in no_grad, and in neither."""
    with bench.device:
        model = models.GPT(64, 4, VOCABULARY, 64).eval()
    tokens = torch.ones(1, 64, dtype=torch.long, device=bench.device)
    modes = {"inference_mode": "inference_mode", "no_grad": "no_grad", "neither": "enable_grad"}
    calls = dict.fromkeys(modes, lambda: model(tokens))
    for name, seconds in bench.in_turn(calls, lambda name: getattr(torch, modes[name])()).items():
        bench.write("autograd", seconds=seconds, mode=name)


def images(job: Any, bench: Any) -> None:
    """Time an image model's forward pass for batches from 1 on."""
    bench.stage(f"{job.image_model}: latency against throughput")
    plan = model_size.plain_job(bench.device, model=job.image_model)
    model = loop.Trainer(plan, bench.device).model.eval()
    for batch in (1, 4, 16, 64):
        x = torch.rand(batch, 3, plan.image_px, plan.image_px, device=bench.device)
        with torch.inference_mode():
            bench.time(lambda x=x: model(x), of="image", batch=batch)


@dataclass(frozen=True)
class Decoded:
    """Decode steps of one format, batch and way, beside what the law allows."""

    format: str
    batch: int
    way: str
    memory_ms: float  # bytes over the bandwidth of reading
    feed_ms: float  # bytes over the rate at which products of one row take them; 0 on a GPU
    compute_ms: float  # FLOPs over the rate of products
    gflop_per_s: float  # that rate: on a CPU, of as many rows and with weights in the cache
    measured_ms: float  # median
    p99_ms: float | None  # None of fewer than 100 steps
    cache_mib: float

    reading_ms = property(lambda d: max(d.memory_ms, d.feed_ms), doc="The law's, of memory.")
    predicted_ms = property(lambda d: max(d.reading_ms, d.compute_ms), doc="The law's.")
    bound = property(lambda d: ("memory", "compute")[d.compute_ms > NEAR * d.reading_ms])
    mbu = property(lambda d: d.memory_ms / d.measured_ms, doc="Bytes over bandwidth x time.")
    ratio = property(lambda d: d.measured_ms / d.predicted_ms, doc="Measured over predicted.")
    tokens_per_s = property(lambda d: d.batch / d.measured_ms * 1e3, doc="Of all sequences.")


class Inference(Result):
    """Decode against the law, as `lk.measure("inference")` found it; ValueError of another's."""

    def __init__(self, measured: Measurements):
        if getattr(measured, "name", "") != "inference" or not measured.where("decode"):
            raise ValueError(f"{measured!r} is no inference: pass lk.measure('inference')'s.")
        self.measured, self.steps = measured, []
        self.gb_per_s = max(p.gb_per_s for p in measured.where(roof="bandwidth"))
        for p in measured.where("decode"):
            memory, compute = p.values["bandwidth_s"], p.values["compute_s"]
            p99 = np.percentile(p.seconds, 99) * 1e3 if len(p.seconds) >= STEPS else None
            self.steps.append(Decoded(
                **p.case, memory_ms=memory * 1e3, compute_ms=compute * 1e3, p99_ms=p99,
                feed_ms=p.values.get("feed_s", 0.0) * 1e3,
                gflop_per_s=p.flops / compute / 1e9, measured_ms=p.median_s * 1e3,
                cache_mib=p.values["cache_bytes"] / 2**20,
            ))  # fmt: skip
        sizes = {p.case["batch"]: p.median_s * 1e3 for p in measured.where("image")}
        self.image_knee = knee.fit(list(sizes), list(sizes.values())) if len(sizes) > 2 else None

    def one(self, format: str, batch: int = 1, way: str = "eager") -> Decoded:
        """Return the decode steps of this case; raises LookupError where there are none."""
        for step in self.steps:
            if (step.format, step.batch, step.way) == (format, batch, way):
                return step
        raise LookupError(f"inference: {format}, batch {batch}, {way} was not measured")

    def prefill_mfu(self, format: str) -> float | None:
        """Return the MFU of prefill, 0 to 1: of the fastest product's rate; None if unknown."""
        kind = "bf16" if format == "int8" else format
        peaks = [p.flops / min(p.seconds) for p in self.measured.where(roof="compute", format=kind)]
        took = self.measured.where("prefill", format=format)
        return of_peak(took[0].flops / took[0].median_s / max(peaks)) if took and peaks else None

    def eager(self, format: str, *bounds: str) -> list[Decoded]:
        """Return the eager steps of a format; with `bounds`, those that are bound so."""
        mine = [s for s in self.steps if (s.format, s.way) == (format, "eager")]
        return [s for s in mine if not bounds or s.bound in bounds]

    def turn(self, format: str) -> list[Decoded]:
        """Return the first eager step from which on it is compute-bound; [] where it never is."""
        last = max((s.batch for s in self.eager(format, "memory")), default=0)
        return [s for s in self.eager(format, "compute") if s.batch > last][:1]

    def verdict(self, format: str) -> str:
        """Return what the law says of a format in a sentence, and how it was kept."""
        held, beyond = self.eager(format, "memory"), self.turn(format)
        said = [f"takes {'at most ' * (len(held) > 1)}{max(s.ratio for s in held):.2f}x as long as "
                f"reading the weights, up to batch {held[-1].batch}"] if held else []  # fmt: skip
        said += [f"is compute-bound from batch {s.batch} on, where products reach "
                 f"{s.gflop_per_s:,.3g} GFLOP/s" for s in beyond]  # fmt: skip
        return f"decode in {format} {'; it '.join(said)}"

    headline = property(lambda self: self.verdict(self.steps[0].format), doc="What came out.")

    def table(self) -> Table:
        """Return each decode step: predicted, measured, ratio, tokens/s, MBU, cache."""
        rows = [
            (s.format, s.batch, s.way, f"{s.predicted_ms:.2f}", f"{s.measured_ms:.2f}",
             s.p99_ms and f"{s.p99_ms:.2f}", f"{s.ratio:.2f}", s.bound, f"{s.gflop_per_s:,.3g}",
             f"{s.tokens_per_s:,.0f}", f"{s.mbu:.0%}", f"{s.cache_mib:.1f}") for s in self.steps
        ]  # fmt: skip
        head = ("weights", "batch", "way", "law ms", "measured ms", "p99 ms", "ratio", "bound by",
                "GFLOP/s of products", "tokens/s", "MBU", "cache MiB")  # fmt: skip
        mfu = {s.format: self.prefill_mfu(s.format) for s in self.steps}
        said = ", ".join(f"{n} {f'{part:.0%}' if part else 'unknown'}" for n, part in mfu.items())
        autograd = self.measured.where("autograd")
        modes = ", ".join(f"{p.case['mode']} {p.median_s * 1e3:.2f} ms" for p in autograd)
        size = self.measured.where("prefill")[0].values
        foot = [f"a decoder of width {size['width']}, {size['depth']} blocks, {size['length']} "
                f"tokens in its cache: {size['weights_bytes'] / 1e6:,.0f} MB of weights",
                f"reading memory: {self.gb_per_s:.3g} GB/s; MFU of prefill: {said}",
                modes and f"a small decoder's forward pass: {modes}",
                "int8" in mfu and self.measured.machine.kind == "gpu" and INT8_ON_CUDA,
                *map(self.verdict, list(mfu)[1:])]  # fmt: skip
        foot = [line for line in foot if line]
        if self.image_knee:
            foot.append(f"image model, latency against throughput: {self.image_knee.line}")
        return Table(rows, head, self.headline, foot, left=(0, 2, 7))

    def to_dict(self) -> dict[str, Any]:
        """Return the decode steps, and what was measured, as JSON types."""
        more = ("predicted_ms", "bound", "mbu", "ratio", "tokens_per_s")
        steps = [vars(s) | {name: getattr(s, name) for name in more} for s in self.steps]
        return {"steps": steps, "gb_per_s": self.gb_per_s, **self.measured.to_dict()}

    plot = property(lambda self: self.measured.plot, doc="Draw it as a matplotlib Figure.")


@inference.figure
def draw(measured: Measurements) -> Any:
    """Draw decode steps over the law, and the image model's latency and throughput."""
    found, lines, series = Inference(measured), [], primitives.Series
    for colour, name in enumerate(dict.fromkeys(s.format for s in found.steps)):
        mine, turn = found.eager(name), found.turn(name)
        for label, some, value, *look in (
            (name, mine, "measured_ms"), (f"{name}, law", mine, "predicted_ms", "--", ""),
            ("" if colour else "compute-bound from here on", turn, "predicted_ms", "", "X"),
        ):  # fmt: skip
            y = [getattr(s, value) for s in some]
            lines.append(series(label, [s.batch for s in some], y, style.LINES[colour], *look))
    figure, axes = page(measured, [(0.5, 2.6), (0.75, 1.9)], title=found.headline, left_in=0.75)
    primitives.lines(axes[0], lines, "sequences decoded at once", "ms a step", log="xy",
                     xticks={s.batch: str(s.batch) for s in found.steps})  # fmt: skip
    points = measured.where("image")
    sizes, times = [p.case["batch"] for p in points], [p.median_s for p in points]
    rates = [size * times[0] / s for size, s in zip(sizes, times, strict=True)]
    primitives.lines(axes[1], [
        series("latency", sizes, [s / times[0] for s in times], style.LINES[0]),
        series("images a second", sizes, rates, style.LINES[1]),
    ], f"images at once ({measured.params.get('image_model')})", "times that of batch 1", log="xy",
        xticks={size: str(size) for size in sizes})  # fmt: skip
    return figure


inference = Inference  # what lk.inference is; the experiment itself stands in EXPERIMENTS
