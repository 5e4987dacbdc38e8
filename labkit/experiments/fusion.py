"""What torch.compile fuses, and gains by it, and what it captures: graph breaks, recompilations."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from labkit.experiments.measure import page, primitives, style, torch
from labkit.spec import NOISY, experiment, knob
from labkit.wiring import Later

dynamo, counted = Later("torch._dynamo"), Later("torch._dynamo.utils")
inductor = Later("torch._inductor.utils")

SMALL_MIB = (1 / 256, 1 / 16, 1, 16)
ITEM = 4  # bytes of a float
LEAST = 1 << 24  # numbers in a large array: 64 MiB
BLOCK = 1 << 20  # numbers with which a chain is compiled and checked
TINY, MANY = 256, 200  # numbers in an array, operations on it: what launches cost
LENGTHS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 88)  # more than torch._dynamo recompiles for
UNARY = (("mul", 1.5), ("add", 1.0), ("clamp", -1.0), ("sub", 0.25), ("mul", 0.5), ("neg",))


class Chain:
    """Operations, each on the result before it and, where there are several, the next array."""

    def __init__(self, name: str, operations: list[tuple], arrays: tuple):
        self.name, self.arrays = name, arrays
        self.steps = [(getattr(torch, operation), args) for operation, *args in operations]
        self.inputs = len(arrays)  # the different arrays that the whole expression reads
        self.reads = [2 if self.inputs > 1 else 1] * len(self.steps)  # of each operation
        self.between, self.d = torch.ones_like(arrays[0]), torch.ones_like(arrays[0])
        self.fused: Callable | None = None  # `run`, once it is compiled

    def run(self, arrays: tuple, d: torch.Tensor, between: torch.Tensor | None = None) -> None:
        """Write `d`; with `between` all other results too, without as one writes it, to compile."""
        x, out = arrays[0], {}
        for i, (operation, args) in enumerate(self.steps, 1):
            if between is not None:
                out["out"] = d if (len(self.steps) - i) % 2 == 0 else between
            x = operation(x, *args, *arrays[i : i + 1], **out)
        if between is None:
            d.copy_(x)

    def bytes(self, fused: bool, count: int) -> int:
        """Count the bytes moved for arrays of `count` numbers."""
        return int(arrays_moved([self.inputs] if fused else self.reads)) * count * ITEM

    def cut(self, count: int) -> tuple[tuple, torch.Tensor, torch.Tensor]:
        """Return the first `count` numbers of every array."""
        return tuple(x[:count] for x in self.arrays), self.d[:count], self.between[:count]


@experiment(
    "elementwise chains, one operation at a time and fused",
    mib=knob(None, "size of the largest arrays", kind="float", unit="MiB", low=0.01, high=1 << 17,
             auto="past the last-level cache"),
    length=knob(6, "operations in the chain", low=1, high=1000),
)  # fmt: skip
def fusion(job: Any, bench: Any) -> None:
    """Time d = a + b + c and a chain of `length` operations, eager and fused, by array size."""
    count = bench.past_cache_elements(job.mib)
    if job.mib is None:  # an operation touches two to four arrays: a CPU's need to be half as large
        count = max(count // (2 if bench.on_cpu else 1), LEAST)
    largest = count * ITEM / 2**20
    a, b, c = (bench.random_array(count) for _ in range(3))
    sums = Chain("a + b + c", [("add",), ("add",)], (a, b, c))
    line = Chain(f"{job.length} operations", islice(cycle(UNARY), job.length), (a,))
    lacking = bench.compile_lacks()
    for chain in (sums, line):
        touched = (chain.inputs + 1) * count * ITEM  # by the fused pass; the eager ones touch more
        bench.write("arrays", chain=chain.name, values={
            "reads": chain.reads, "inputs": chain.inputs, "mib": largest,
            "past cache": bench.is_past_cache(touched),
        })  # fmt: skip
        lacking = lacking or compile_it(chain, bench)
    if lacking:
        bench.skip("fused", lacking)
    else:
        show_kernel(sums, bench)
    for mib in sorted({*SMALL_MIB, largest}):
        for chain in (sums, line) if mib <= largest else ():
            compare(chain, mib, bench)
    seconds = bench.in_turn({"as written": lambda: a + b + c})["as written"]  # to new memory
    bench.write("as written", seconds=seconds, chain=sums.name, mib=largest,
                bytes=sums.bytes(False, count))  # fmt: skip
    launches(bench, lacking)


def compile_it(chain: Chain, bench: Any) -> str | None:
    """Compile the chain, twice, and write how long that took; return why it could not, or None."""
    bench.stage(f"compiling {chain.name}")
    arrays, d, between = chain.cut(BLOCK)
    for turn in ("first", "again"):  # which finds the first one's result in Inductor's disk cache
        dynamo.reset()
        counted.counters.clear()
        compiled = torch.compile(chain.run, dynamic=True)
        start = time.perf_counter()
        try:
            _, codes = inductor.run_and_get_code(compiled, arrays, d)
        except Exception as error:
            return f"torch.compile failed: {str(error).strip().splitlines()[0][:200]}"
        seconds = time.perf_counter() - start
        if not codes:  # what ran was eager
            return "torch.compile produced no kernel: is it switched off (TORCH_COMPILE_DISABLE)?"
        cached = bool(counted.counters["inductor"]["fxgraph_cache_hit"])
        values = {"from cache": cached, "kernels": len(codes)}
        bench.write("compile", seconds=[seconds], chain=chain.name, turn=turn, values=values)
    result = d.clone()
    chain.run(arrays, d, between)
    torch.testing.assert_close(result, d)  # the two ways do the same, or the run fails
    chain.fused = compiled
    return None


def show_kernel(chain: Chain, bench: Any) -> None:
    """Write the text of the kernel, C++ or Triton, for arrays of one fixed size."""
    arrays, d, _ = chain.cut(BLOCK)
    fixed = torch.compile(lambda *given: chain.run(*given), dynamic=False)  # captured anew
    _, codes = inductor.run_and_get_code(fixed, arrays, d)
    found = re.findall(r"r?'''(.*?)'''", "\n".join(codes), re.DOTALL)
    code = next((text for text in found if "extern" in text or "@triton" in text), "")
    lines = [line.rstrip() for line in code.splitlines() if "#include" not in line]
    values = {"code": "\n".join(lines).strip() or None, "numbers": len(d)}
    bench.write("kernel", chain=chain.name, values=values)


def compare(chain: Chain, mib: float, bench: Any) -> None:
    """Time the chain at one array size, eager and fused in turn: the gain is that of each round."""
    count = int(mib * 2**20) // ITEM
    arrays, d, between = chain.cut(count)
    ways = {"eager": lambda: chain.run(arrays, d, between)}
    if chain.fused is not None:
        ways["fused"] = lambda: chain.fused(arrays, d)
    bench.stage(f"{chain.name}: {mib:.4g} MiB an array")
    times = bench.in_turn(ways)
    for name, seconds in times.items():
        fused = name == "fused"
        values = bench.launch_share(statistics.median(seconds), 1 if fused else len(chain.reads))
        if fused:
            rounds = np.divide(times["eager"], seconds)
            low, middle, high = np.percentile(rounds, [25, 50, 75])
            values |= {"gain": float(middle), "spread": float((high - low) / middle)}
        bench.write(name, seconds=seconds, bytes=chain.bytes(fused, count), values=values,
                    chain=chain.name, mib=mib)  # fmt: skip


def launches(bench: Any, lacking: str | None) -> None:
    """Time hundreds of operations on a tiny array: eager, compiled, and as a CUDA graph."""
    chain = Chain("tiny", islice(cycle(UNARY), MANY), (torch.randn(TINY, device=bench.device),))
    ways = {"eager": lambda: chain.run(chain.arrays, chain.d, chain.between)}
    if lacking is None:
        bench.stage(f"compiling {MANY} tiny operations")
        compiled = torch.compile(chain.run)
        ways["compiled"] = lambda: compiled(chain.arrays, chain.d)
    if bench.device.type == "cuda":
        ways["eager"]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()  # whose replay is one launch for all kernels
        with torch.cuda.graph(graph):
            ways["eager"]()
        ways["CUDA graph"] = graph.replay
    else:
        bench.skip("CUDA graph", "it records and replays kernels of a CUDA device; none here")
    for name, seconds in bench.in_turn(ways).items():
        bench.write("tiny", seconds=seconds, way=name, operations=MANY, numbers=TINY)


def arrays_moved(reads: list[int], write_cost: float = 1.0) -> float:
    """Count the array passes of operations that read so many arrays each and write one.

    A write costs two on a CPU with write-allocate, which reads a cache line before it stores to it
    (Intel 64 and IA-32 Optimization Reference Manual).
    """
    return sum(reads) + write_cost * len(reads)


def predicted_gain(reads: list[int], inputs: int, write_cost: float = 1.0) -> float:
    """Predict from the bytes how many times as fast one pass over all `inputs` is."""
    return arrays_moved(reads, write_cost) / arrays_moved([inputs], write_cost)


def break_even_steps(compile_s: float, eager_s: float, compiled_s: float) -> float | None:
    """Return after how many steps compiling is paid back; None where a step gains nothing."""
    saved = eager_s - compiled_s
    return compile_s / saved if saved > 0 else None


@dataclass(frozen=True)
class Gain:
    """One chain of operations: what fusing was predicted to gain, and what it gained."""

    chain: str
    array_mib: float
    predicted: float  # from the bytes as counted
    predicted_write_allocate: float  # where every write first reads
    measured: float | None  # median over the rounds; None where nothing could be compiled
    off: float | None  # measured over predicted
    noisy: bool  # the rounds differ so much that the gain means little
    past_cache: bool | None  # whether the arrays are well past it; None where unknown

    def __str__(self) -> str:
        said = f"{self.chain:12} {self.array_mib:9.4g} MiB an array: predicted {self.predicted:.2f}"
        said += f"x ({self.predicted_write_allocate:.2f}x with write-allocate), "
        if self.measured is None:
            return said + "not measured"
        said += f"measured {self.measured:.2f}x, ratio {self.off:.2f}" + " NOISY" * self.noisy
        return said + " (not past the last cache)" * (self.past_cache is False)


def gains(measured: Any) -> list[Gain]:
    """Return the gain of every chain and size in the measurements of the experiment "fusion"."""
    found = []
    for eager in measured.where("eager"):
        chain, size = eager.case["chain"], eager.case["mib"]
        fused = next((p.values for p in measured.where("fused", chain=chain, mib=size)), {})
        facts = measured.one("arrays", chain=chain).values
        said = [predicted_gain(facts["reads"], facts["inputs"], cost) for cost in (1, 2)]
        past = facts.get("past cache") if size == facts["mib"] else None
        gain, noisy = fused.get("gain"), (fused.get("spread") or 0) > NOISY
        found.append(Gain(chain, size, *said, gain, gain and gain / said[0], noisy, past))
    return found


def largest(measured: Any) -> list[Gain]:
    """Return the gains at the largest arrays: those past the caches."""
    every = gains(measured)
    size = max((gain.array_mib for gain in every), default=0)
    return [gain for gain in every if gain.array_mib == size]


@fusion.figure
def draw(measured: Any, before: Any = None) -> Any:
    """Draw predicted and measured gain at the largest arrays, and the gain by array size."""
    every, most = gains(measured), largest(measured)
    if not any(gain.measured for gain in most):
        return page(measured, [], before=before)[0]
    old = {gain.chain: gain.measured for gain in (largest(before) if before else [])}
    rows, series = [], []
    for g, colour in zip(most, style.LINES, strict=False):
        for name, value, ink in ((f"{g.chain}: predicted from the bytes", g.predicted, "#BBBBBB"),
                                 ("every write reads first", g.predicted_write_allocate, "#7F7F7F"),
                                 ("measured", g.measured or 0.0, style.LINES[2])):  # fmt: skip
            then = old.get(g.chain) if name == "measured" else None
            rows.append(primitives.Bar(name, value, f"{value:.2f}x", ink, before=then))
        mine = [each for each in every if each.chain == g.chain]
        x, y = [each.array_mib for each in mine], [each.measured for each in mine]
        series.append(primitives.Series(f"{g.chain}, measured", x, y, colour))
        said = [g.predicted] * len(x)
        series.append(primitives.Series("predicted", x, said, colour, "--", ""))
    best = max(most, key=lambda gain: gain.measured or 0)
    figure, (upper, lower) = page(
        measured, [(0.1, primitives.rows_in(len(rows))), (0.75, 1.8)],
        f"bars: arrays of {best.array_mib:.4g} MiB each", before=before, left_in=2.9,
        title=f"{best.chain} fused: {best.measured:.1f}x as fast, {best.predicted:.1f}x predicted",
    )  # fmt: skip
    primitives.hbars(upper, rows, "eager / fused, time")
    ticks = {g.array_mib: primitives.size_text(g.array_mib * 2**20) for g in every}
    primitives.lines(lower, series, "size of one array", "gain by fusing", log="xy", xticks=ticks)
    return figure


def broken(x: torch.Tensor) -> torch.Tensor:
    """Decide in Python in the middle: the tensor's value is needed to go on."""
    y = (x * 2).relu()
    if y.sum().item() > 0:
        y = y - y.mean()
    return y * 0.5


def whole(x: torch.Tensor) -> torch.Tensor:
    """Do the same as one graph: the decision is made on the device."""
    y = (x * 2).relu()
    y = (y - y.mean()).where(y.sum() > 0, y)
    return y * 0.5


@experiment("what torch.compile captures, and how often again")
def graph_breaks(job: Any, bench: Any) -> None:
    """Count the graphs and breaks of two functions, and the captures for changing lengths."""
    x = torch.randn(64, device=bench.device)
    torch.testing.assert_close(broken(x), whole(x))
    for function in (broken, whole):
        dynamo.reset()
        found = dynamo.explain(function)(x)
        said = ([line.strip() for line in why.reason.split("\n")] for why in found.break_reasons)
        reasons = [" | ".join(list(filter(None, lines))[:3])[:400] for lines in said]  # with hints
        values = {"graphs": found.graph_count, "breaks": found.graph_break_count}
        bench.write("explain", function=function.__name__, values=values | {"reasons": reasons})
    for way, dynamic, lengths in (
        ("every length its own graph (dynamic=False)", False, LENGTHS),
        ("PyTorch's default", None, LENGTHS),
        ("one graph for all (dynamic=True)", True, LENGTHS),
        ("padded to one length", None, (max(LENGTHS),) * len(LENGTHS)),
    ):
        bench.write("captures", way=way, values=captures(dynamic, lengths, bench.device))


def captures(dynamic: bool | None, lengths: tuple, device: torch.device) -> dict[str, Any]:
    """Call a captured function with batches of these lengths; count the captures.

    `eager` is how many calls ran without one, since Dynamo gives up at `recompile_limit`.
    """
    dynamo.reset()
    captured, ran, log = [], [], []

    def backend(graph: torch.fx.GraphModule, _: list) -> Callable:
        captured.append(graph)
        return lambda *inputs: ran.append(1) or graph.forward(*inputs)

    def heard(record: logging.LogRecord) -> bool:
        found = re.search(r"(tensor .*?size mismatch.*|.*?==.*)", record.getMessage())
        if "ecompil" in record.getMessage() and found:
            log.append(re.sub(r"\s*#.*", "", found.group(0)).strip()[:160])
        return True

    work = torch.compile(whole, backend=backend, dynamic=dynamic)
    torch._logging.set_logs(recompiles=True)
    logger = logging.getLogger("torch._dynamo.guards.__recompiles")
    logger.addFilter(heard)
    for length in lengths:
        work(torch.randn(length, device=device))
    logger.removeFilter(heard)
    torch._logging.set_logs()
    limit = dynamo.config.recompile_limit
    return {"captured": len(captured), "eager": len(lengths) - len(ran), "calls": len(lengths),
            "limit": limit, "log": log[:3]}  # fmt: skip
