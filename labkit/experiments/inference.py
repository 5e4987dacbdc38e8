"""Inference: prefill and decode of a decoder with a KV cache, held against the law of bandwidth.

A decode step reads every weight and the whole cache to give one token a sequence, so it takes
bytes / bandwidth at the least, and FLOPs / peak where that is more: then it is compute-bound (Pope
et al., "Efficiently Scaling Transformer Inference", MLSys 2023, section 2). FLOPs are those of the
matrix products: 2 a weight and token, 4 x width a pair of tokens in each block.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis import knee
from labkit.experiments.device import side, time_product
from labkit.experiments.measure import page, primitives, style
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, models = Later("torch"), Later("labkit.bench.models")
model_size, loop = Later("labkit.bench.model_size"), Later("labkit.bench.loop")

NUMBER_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}  # of a weight
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "bfloat16"}  # of what is computed with
# Few and large matrices: what lies between them is no part of the law. A cache of a CPU is short,
# since PyTorch's attention reads it at a third of the bandwidth there
WIDTH, LENGTH = {True: 2048, False: 4096}, {True: 64, False: 1024}  # on a CPU, on a GPU
DEPTH_ON_GPU, FEWEST = 8, 2
PAST = 2  # times the last-level cache that the weights take, even in int8
VOCABULARY = 256
STEPS = 100  # a 99th percentile of fewer would be their maximum
SECONDS = {True: 1.5, False: 0.3}  # of steps for batch 1, and for each other batch
LONGEST_S = 0.3  # of a step: larger batches are not tried
CACHE_SHARE = 1 / 8  # of the memory that is free, at most, for the cache
BEYOND = 2  # larger batches are not tried once FLOPs take so many times as long as the weights
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


@experiment(
    "prefill and decode of a decoder against what bandwidth allows, and an image model's latency",
    width=knob(None, "width of the decoder", kind="int", low=64, high=16_384, auto="by device"),
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
    job.width, job.length = job.width or WIDTH[bench.on_cpu], job.length or LENGTH[bench.on_cpu]
    job.depth = job.depth or depth_of(job, bench)
    names = [n for n in job.formats or NUMBER_BYTES if n != "int8"]
    names = bench.usable(names) + ["int8"] * ("int8" in (job.formats or NUMBER_BYTES))
    with torch.inference_mode():
        peaks = roofs(bench, names)
        for name in names:
            bench.stage(f"decode in {name}")
            try:
                decoder(name, job, bench, peaks)
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                if name != "int8":
                    raise
                bench.skip("int8", f"this torch has no such product here: {str(error)[:120]}")
    autograd(bench)
    images(job, bench)


def depth_of(job: Any, bench: Any) -> int:
    """Return how many blocks make the weights well larger than the last-level cache, in int8."""
    if not bench.on_cpu:
        return DEPTH_ON_GPU
    largest = max(bench.cache_bytes().values(), default=0)
    smallest = min(NUMBER_BYTES[name] for name in job.formats or NUMBER_BYTES)
    return max(FEWEST, -(-PAST * largest // (12 * job.width**2 * smallest)))


def roofs(bench: Any, names: list[str]) -> dict[str, float]:
    """Measure bandwidth of reading (decode writes next to nothing), and products in each format."""
    bench.stage("the roofs: reading memory, matrix products")
    a, b = bench.random_array(n := bench.past_cache_elements()), bench.random_array(n)
    reads = [bench.time(a.sum, of="sum", bytes=4 * n, launches=1, roof="bandwidth"),
             bench.time(lambda: torch.dot(a, b), of="dot", bytes=8 * n, launches=1,
                        roof="bandwidth") / 2]  # fmt: skip
    peaks = {"bandwidth": 4 * n / min(reads)}
    # int8 is computed in bf16
    for name in dict.fromkeys("bf16" if name == "int8" else name for name in names):
        rows = side(bench, name, largest=True)
        time_product(bench, name, rows, of="matmul", format=name, roof="compute")
        x = torch.randn(rows, rows, device=bench.device).to(getattr(torch, DTYPES[name]))
        layer = torch.nn.Linear(rows, rows, device=bench.device).to(x.dtype)
        models.packed(layer, name, bench.on_cpu)
        seconds = bench.time(lambda layer=layer, x=x: layer(x), of="packed matmul", format=name,
                             flops=2 * rows**3, launches=1, roof="compute", n=rows)  # fmt: skip
        peaks[name] = 2 * rows**3 / seconds
    return peaks


def make(name: str, job: Any, bench: Any, pack: bool = True) -> Any:
    """Return a decoder with random weights in a format, ready to decode."""
    torch.set_default_dtype(getattr(torch, DTYPES[name]))
    try:
        with bench.device:
            model = models.GPT(job.width, job.depth, VOCABULARY, job.length).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    for layer in model.modules():
        if pack and isinstance(layer, torch.nn.Linear):
            models.packed(layer, name, bench.on_cpu)
    return model


def decoder(name: str, job: Any, bench: Any, peaks: dict[str, float]) -> None:
    """Measure prefill, then decode steps at each batch, of a decoder in one format."""
    model, matrices = make(name, job, bench), 12 * job.width**2 * job.depth + VOCABULARY * job.width
    kind = "bf16" if name == "int8" else name  # of the cache, and of what is computed

    def flops(batch: int, tokens: int) -> float:
        pairs = 4 * job.width * job.depth * tokens * job.length
        return batch * (2 * matrices * tokens + pairs)

    prompt = torch.ones(1, job.length, dtype=torch.long, device=bench.device)
    seconds = steps_s(bench, lambda: model(prompt, models.Cache(model, 1, job.length)), 0.4)
    size = {"width": job.width, "depth": job.depth, "length": job.length}
    bench.write("prefill", seconds=seconds, flops=flops(1, job.length), format=name, batch=1,
                values=size | {"weights_bytes": matrices * NUMBER_BYTES[name]})  # fmt: skip
    for batch in job.batches or (2**n for n in itertools.count()):
        cache_bytes = 2 * batch * job.length * job.width * job.depth * NUMBER_BYTES[kind]
        if batch > 1 and cache_bytes > CACHE_SHARE * bench.free_bytes():
            bench.skip(f"{name}, batch {batch} and more", "its cache would take too much memory")
            break
        moved = matrices * NUMBER_BYTES[name] + cache_bytes
        values = {"cache_bytes": cache_bytes, "bandwidth_s": moved / peaks["bandwidth"],
                  "compute_s": flops(batch, 1) / peaks[kind]}  # fmt: skip
        step = decode_step(model, batch, job.length)
        for way, work in ways(step, name, batch, job, bench):
            seconds = steps_s(bench, work, SECONDS[batch == 1])
            values["p99_s"] = np.percentile(seconds, 99) if len(seconds) >= STEPS else None
            bench.write("decode", seconds=sorted(seconds), flops=flops(batch, 1), bytes=moved,
                        values=values, format=name, batch=batch, way=way)  # fmt: skip
        weights_s = matrices * NUMBER_BYTES[name] / peaks["bandwidth"]
        over = values["compute_s"] > BEYOND * weights_s or min(seconds) > LONGEST_S
        if over and not job.batches:
            break


def decode_step(model: Any, batch: int, length: int) -> Callable[[], Any]:
    """Return one decode step as a function: the cache is full but for this token, each time."""
    cache = models.Cache(model, batch, length)
    cache.kept.normal_()  # memory that was never written is not read, either
    cache.at = length - 1
    token = torch.ones(batch, 1, dtype=torch.long, device=cache.kept.device)
    return lambda: model(token, cache)


def ways(step: Callable, name: str, batch: int, job: Any, bench: Any) -> Iterator[tuple]:
    """Yield (way, step): as it is; in a CUDA graph; at batch 1, where asked for, compiled."""
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


def steps_s(bench: Any, work: Callable[[], Any], seconds: float) -> list[float]:
    """Return the time of each call in s, one by one: for so many seconds, five at the least."""
    bench.timed(work)
    bench.timed(work)
    taken: list[float] = []
    while (len(taken) < 5 or sum(taken) < seconds) and len(taken) < 2 * STEPS:
        taken.append(bench.timed(work))
    return taken


def autograd(bench: Any) -> None:
    """Time a small decoder's forward pass: in inference_mode, in no_grad, and in neither."""
    with bench.device:
        model = models.GPT(64, 4, VOCABULARY, 64).eval()
    tokens = torch.ones(1, 64, dtype=torch.long, device=bench.device)
    modes = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad,
             "neither": contextlib.nullcontext}  # fmt: skip
    calls = dict.fromkeys(modes, functools.partial(model, tokens))
    for name, seconds in bench.in_turn(calls, setting=lambda name: modes[name]()).items():
        bench.write("autograd", seconds=seconds, mode=name)


def images(job: Any, bench: Any) -> None:
    """Time an image model's forward pass for batches from 1 on."""
    bench.stage(f"{job.image_model}: latency against throughput")
    plan = model_size.plain_job(bench.device, model=job.image_model)
    model = loop.Trainer(plan, bench.device).model.eval()
    for batch in IMAGES:
        x = torch.rand(batch, 3, plan.image_px, plan.image_px, device=bench.device)
        with torch.inference_mode():
            seconds = bench.time(lambda x=x: model(x), of="image", batch=batch)
        if seconds > LONGEST_S:
            break


@dataclass(frozen=True)
class Decoded:
    """Decode steps of one format, batch and way, beside what the law allows."""

    format: str
    batch: int
    way: str
    predicted_ms: float  # the larger of bytes / bandwidth and FLOPs / peak
    measured_ms: float  # median
    p99_ms: float | None  # None of fewer than 100 steps
    bound: str  # by the law: "memory" or "compute"
    mbu: float  # bytes over what bandwidth allows in the time
    cache_mib: float

    ratio = property(lambda d: d.measured_ms / d.predicted_ms, doc="Measured over predicted.")
    tokens_per_s = property(lambda d: d.batch / d.measured_ms * 1e3, doc="Of all sequences.")


class Inference(Result):
    """Decode against the law, as `lk.measure("inference")` found it.

    Raises ValueError for another experiment's measurements, or without a decode step.
    """

    def __init__(self, measured: Measurements):
        if getattr(measured, "name", "") != "inference" or not measured.where("decode"):
            raise ValueError(f"{measured!r} is no inference: pass lk.measure('inference')'s.")
        self.measured, self.steps = measured, []
        roof = [point.gb_per_s for point in measured.where(roof="bandwidth") if point.gb_per_s]
        self.gb_per_s = max(roof, default=None)
        for p in measured.where("decode"):
            memory, compute, took = p.values["bandwidth_s"], p.values["compute_s"], p.median_s
            p99 = p.values.get("p99_s")
            self.steps.append(Decoded(
                **p.case, predicted_ms=max(memory, compute) * 1e3, measured_ms=took * 1e3,
                p99_ms=p99 and p99 * 1e3, bound="memory" if memory >= compute else "compute",
                mbu=memory / took, cache_mib=p.values["cache_bytes"] / 2**20,
            ))  # fmt: skip
        sizes = {p.case["batch"]: p.median_s * 1e3 for p in measured.where("image")}
        self.image_knee = knee.fit(list(sizes), list(sizes.values())) if len(sizes) > 2 else None

    def one(self, format: str, batch: int = 1, way: str = "eager") -> Decoded:
        """Return the decode steps of this case; raises LookupError where there are none."""
        found = [s for s in self.steps if (s.format, s.batch, s.way) == (format, batch, way)]
        if not found:
            raise LookupError(f"inference: {format}, batch {batch}, {way} was not measured")
        return found[0]

    def prefill_mfu(self, format: str) -> float | None:
        """Return the MFU of prefill: its FLOPs over the fastest product's rate, None if unknown."""
        kind = "bf16" if format == "int8" else format
        rates = [p.tflop_per_s for p in self.measured.where(roof="compute", format=kind)]
        took = [p.tflop_per_s for p in self.measured.where("prefill", format=format)]
        return took[0] / max(rates) if took and rates else None

    def compute_bound_from(self, format: str) -> int | None:
        """Return the smallest batch measured at which the law says compute; None without one."""
        batches = [s.batch for s in self.steps if s.format == format and s.bound == "compute"]
        return min(batches, default=None)

    @property
    def headline(self) -> str:
        """What came out, in a sentence."""
        turn = self.compute_bound_from((first := self.steps[0]).format)
        until = f"; compute-bound from batch {turn} on" if turn else ""
        return (f"decode at batch {first.batch} takes {first.ratio:.2f}x the time that reading the "
                f"weights takes ({first.format}){until}")  # fmt: skip

    def table(self) -> Table:
        """Return each decode step: predicted, measured, ratio, tokens/s, MBU, cache."""
        rows = [
            (s.format, s.batch, s.way, f"{s.predicted_ms:.2f}", f"{s.measured_ms:.2f}",
             s.p99_ms and f"{s.p99_ms:.2f}", f"{s.ratio:.2f}", s.bound, f"{s.tokens_per_s:,.0f}",
             f"{s.mbu:.0%}", f"{s.cache_mib:.1f}") for s in self.steps
        ]  # fmt: skip
        head = ("weights", "batch", "way", "law ms", "measured ms", "p99 ms", "ratio", "bound by",
                "tokens/s", "MBU", "cache MiB")  # fmt: skip
        mfu = {s.format: self.prefill_mfu(s.format) for s in self.steps}
        said = ", ".join(f"{name} {share:.0%}" for name, share in mfu.items() if share)
        modes = {p.case["mode"]: p.median_s * 1e3 for p in self.measured.where("autograd")}
        modes = ", ".join(f"{name} {ms:.2f} ms" for name, ms in modes.items())
        size = self.measured.where("prefill")[0].values
        foot = [f"a decoder of width {size['width']}, {size['depth']} blocks, {size['length']} "
                f"tokens in its cache: {size['weights_bytes'] / 1e6:,.0f} MB of weights",
                f"reading memory: {self.gb_per_s:.3g} GB/s; MFU of prefill: {said}",
                modes and f"a small decoder's forward pass: {modes}"]  # fmt: skip
        if self.image_knee:
            foot.append(f"image model, latency against throughput: {self.image_knee.line}")
        return Table(rows, head, self.headline, foot, left=(0, 2, 7))

    def to_dict(self) -> dict[str, Any]:
        """Return the decode steps, and what was measured, as JSON types."""
        steps = [{**vars(s), "ratio": s.ratio, "tokens_per_s": s.tokens_per_s} for s in self.steps]
        return {"steps": steps, "gb_per_s": self.gb_per_s, **self.measured.to_dict()}

    plot = property(lambda self: self.measured.plot, doc="Draw it as a matplotlib Figure.")


@inference.figure
def draw(measured: Measurements) -> Any:
    """Draw decode steps over the law, and the image model's latency and throughput."""
    found, upper, ticks = Inference(measured), [], {}
    for name in dict.fromkeys(s.format for s in found.steps):
        colour = style.LINES[len(upper) // 2]
        mine = [s for s in found.steps if s.format == name and s.way == "eager"]
        x = [s.batch for s in mine]
        ticks |= {batch: str(batch) for batch in x}
        upper.append(primitives.Series(name, x, [s.measured_ms for s in mine], colour))
        law = [s.predicted_ms for s in mine]
        upper.append(primitives.Series(f"{name}, law", x, law, colour, "--", ""))
    figure, axes = page(measured, [(0.5, 2.6), (0.75, 1.9)], title=found.headline, left_in=0.75)
    primitives.lines(axes[0], upper, "sequences decoded at once", "ms a step", log="xy",
                     xticks=ticks)  # fmt: skip
    if turn := found.compute_bound_from(found.steps[0].format):
        at = turn / 2**0.5  # between this batch and the one before
        axes[0].axvline(at, color=style.BEFORE, linewidth=1)
        axes[0].text(at, 0.04, " compute-bound", transform=axes[0].get_xaxis_transform())
    points = measured.where("image")
    sizes, times = [p.case["batch"] for p in points], [p.median_s for p in points]
    latency = [s / times[0] for s in times]
    rates = [size / more for size, more in zip(sizes, latency, strict=True)]
    primitives.lines(axes[1], [
        primitives.Series("latency", sizes, latency, style.LINES[0]),
        primitives.Series("images a second", sizes, rates, style.LINES[1]),
    ], f"images at once ({measured.params.get('image_model')})", "times that of batch 1", log="xy",
        xticks={size: str(size) for size in sizes})  # fmt: skip
    return figure


inference = Inference  # what lk.inference is; the experiment itself stands in EXPERIMENTS
