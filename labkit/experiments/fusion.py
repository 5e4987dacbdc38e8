"""Elementwise chains one operation at a time and fused by torch.compile: bytes, time, code."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from labkit.bench.caches import is_past_cache, past_cache_elements, random_array
from labkit.bench.in_turn import in_turn, paired_gain
from labkit.bench.resolve_config import compile_lacks
from labkit.bench.workbench import Workbench

SMALL_MIB = (1 / 256, 1 / 16, 1, 16)
ITEM = 4  # bytes of a float
LEAST = 1 << 24  # numbers in a large array: 64 MiB
BLOCK = 1 << 20  # numbers with which a chain is compiled and checked
TINY, MANY = 256, 200  # numbers in an array, operations on it: what launches cost

UNARY = (
    lambda x, out: torch.mul(x, 1.5, out=out),
    lambda x, out: torch.add(x, 1.0, out=out),
    lambda x, out: torch.clamp(x, min=-1.0, out=out),
    lambda x, out: torch.sub(x, 0.25, out=out),
    lambda x, out: torch.mul(x, 0.5, out=out),
    lambda x, out: torch.neg(x, out=out),
)


def measure(job: Any, bench: Workbench) -> None:
    """Time d = a + b + c and a chain of `length` operations, eager and fused, by array size.

    Bytes: 4 for every number that an operation reads or writes, the arrays in between included
    where there are any. All arrays are there before the clock runs: neither side pays for memory.
    "as written" is `a + b + c` as one writes it, where each result is a new array.
    """
    # on a CPU each array as large as the last-level cache: an operation touches two to four
    shared = 2 if bench.device.type == "cpu" else 1
    chosen = max(past_cache_elements(bench.device) // shared, LEAST)
    count = int(job.mib * 2**20) // ITEM if job.mib else chosen
    largest = count * ITEM / 2**20
    a, b, c = (random_array(count, bench.device) for _ in range(3))
    between, d = torch.ones_like(a), torch.ones_like(a)
    sums = Chain("a + b + c", [2, 2], 3, eager_sum, fused_sum, (a, b, c), between, d)
    unary = Chain(f"{job.length} operations", [1] * job.length, 1, *unary_of(job.length), (a,),
                  between, d)  # fmt: skip
    lacking = compile_lacks("default", bench.device)
    for chain in (sums, unary):
        touched = (chain.inputs + 1) * count * ITEM  # by the fused pass; the eager ones touch more
        facts = {"reads": chain.reads, "inputs": chain.inputs, "mib": largest}
        facts["past cache"] = is_past_cache(touched, bench.device)
        bench.write("arrays", chain=chain.name, values=facts)
        lacking = lacking or compile_it(chain, bench)
    if lacking:
        bench.skip("fused", lacking)
    else:
        show_kernel(sums, bench)
    for mib in sorted({*SMALL_MIB, largest}):
        for chain in (sums, unary) if mib <= largest else ():
            compare(chain, mib, bench)
    as_written(sums, largest, bench)
    launches(bench, lacking)


class Chain:
    """An elementwise expression, eager and compiled, over arrays that exist already."""

    def __init__(
        self,
        name: str,
        reads: list[int],
        inputs: int,
        eager: Callable,
        plain: Callable,
        arrays: tuple,
        between: torch.Tensor,
        d: torch.Tensor,
    ):
        self.name, self.reads, self.inputs = name, reads, inputs
        self.eager, self.plain, self.fused = eager, plain, None
        self.arrays, self.between, self.d = arrays, between, d

    def bytes(self, fused: bool, count: int) -> int:
        """Count the bytes moved for arrays of `count` numbers."""
        passes = self.inputs + 1 if fused else sum(self.reads) + len(self.reads)
        return passes * count * ITEM

    def cut(self, count: int) -> tuple[tuple, torch.Tensor, torch.Tensor]:
        """The first `count` numbers of every array."""
        return tuple(x[:count] for x in self.arrays), self.between[:count], self.d[:count]


def eager_sum(arrays: tuple, between: torch.Tensor, d: torch.Tensor) -> None:
    """Add three arrays: two operations, the first one's result is written and read again."""
    a, b, c = arrays
    torch.add(a, b, out=between)
    torch.add(between, c, out=d)


def fused_sum(arrays: tuple, d: torch.Tensor) -> None:
    """Add three arrays, as the compiler sees it: it is free to do all in one pass."""
    a, b, c = arrays
    d.copy_(a + b + c)


def unary_of(length: int) -> tuple[Callable, Callable]:
    """A chain of cheap operations on one array: one by one between two buffers, and plain."""
    steps = [UNARY[i % len(UNARY)] for i in range(length)]

    def eager(arrays: tuple, between: torch.Tensor, d: torch.Tensor) -> None:
        x = arrays[0]
        for i, step in enumerate(steps):
            out = d if (length - 1 - i) % 2 == 0 else between  # the last one writes d
            x = step(x, out)

    def plain(arrays: tuple, d: torch.Tensor) -> None:
        x = arrays[0]
        for step in steps:
            x = step(x, None)
        d.copy_(x)

    return eager, plain


def compile_it(chain: Chain, bench: Workbench) -> str | None:
    """Compile the chain and write how long that took, the code, and whether it is right.

    Returns why it could not be compiled, or None. A second compilation finds the first one's
    result in Inductor's cache on disk; so does the first where an earlier run left it there.
    """
    from torch._dynamo.utils import counters
    from torch._inductor.utils import run_and_get_code

    bench.stage(f"compiling {chain.name}")
    arrays, between, d = chain.cut(BLOCK)
    for turn in ("first", "again"):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(chain.plain, dynamic=True)
        start = time.perf_counter()
        try:
            _, codes = run_and_get_code(compiled, arrays, d)
        except Exception as error:
            return f"torch.compile failed: {str(error).strip().splitlines()[0][:200]}"
        seconds = time.perf_counter() - start
        if not codes:  # torch.compile switched off, for one: what ran was eager
            return "torch.compile produced no kernel: is it switched off (TORCH_COMPILE_DISABLE)?"
        cached = bool(counters["inductor"]["fxgraph_cache_hit"])
        values = {"from cache": cached, "kernels": len(codes)}
        bench.write("compile", seconds=[seconds], chain=chain.name, turn=turn, values=values)
    result = d.clone()
    chain.eager(arrays, between, d)
    torch.testing.assert_close(result, d)  # the two ways do the same, or the run fails
    chain.fused = compiled
    return None


def show_kernel(chain: Chain, bench: Workbench) -> None:
    """Write the kernel for arrays of one fixed size: the same loop, without code for a rest."""
    from torch._inductor.utils import run_and_get_code

    def fixed(arrays: tuple, d: torch.Tensor) -> None:  # a function of its own: captured anew
        chain.plain(arrays, d)

    arrays, _, d = chain.cut(BLOCK)
    _, codes = run_and_get_code(torch.compile(fixed, dynamic=False), arrays, d)
    bench.write("kernel", chain=chain.name, values={"code": kernel_of(codes), "numbers": len(d)})


def kernel_of(codes: list[str]) -> str | None:
    """The kernel's own text in what Inductor generated: C++ or Triton, without the frame."""
    for text in re.findall(r"r?'''(.*?)'''", "\n".join(codes), re.DOTALL):
        if "extern" in text or "@triton" in text:
            lines = [line for line in text.strip().splitlines() if "#include" not in line]
            return "\n".join(line.rstrip() for line in lines).strip()
    return None


def compare(chain: Chain, mib: float, bench: Workbench) -> None:
    """Time the chain at one array size, eager and fused in turn."""
    count = int(mib * 2**20) // ITEM
    arrays, between, d = chain.cut(count)
    ways = {"eager": lambda: chain.eager(arrays, between, d)}
    if chain.fused is not None:
        ways["fused"] = lambda: chain.fused(arrays, d)
    bench.stage(f"{chain.name}: {mib:.4g} MiB an array")
    times = in_turn(ways, bench)
    for name, seconds in times.items():
        moved = chain.bytes(name == "fused", count)
        values = paired_gain(times["eager"], seconds) if name == "fused" else {}
        operations = 1 if name == "fused" else len(chain.reads)
        values |= bench.launch_share(statistics.median(seconds), operations)
        bench.write(name, seconds=seconds, bytes=moved, values=values, chain=chain.name, mib=mib)


def as_written(sums: Chain, mib: float, bench: Workbench) -> None:
    """Time `a + b + c` with new arrays for the results, as the reader would write it."""
    a, b, c = sums.arrays
    seconds = in_turn({"as written": lambda: a + b + c}, bench)["as written"]
    bench.write("as written", seconds=seconds, chain=sums.name, mib=mib,
                bytes=sums.bytes(False, a.numel()))  # fmt: skip


def launches(bench: Workbench, lacking: str | None) -> None:
    """Time hundreds of operations on a tiny array: eager, compiled, and as a CUDA graph."""
    eager, plain = unary_of(MANY)
    x = (torch.randn(TINY, device=bench.device),)
    between, d = torch.empty_like(x[0]), torch.empty_like(x[0])
    ways = {"eager": lambda: eager(x, between, d)}
    if lacking is None:
        bench.stage(f"compiling {MANY} tiny operations")
        compiled = torch.compile(plain)
        with contextlib.suppress(RuntimeError):  # then it stays out of the picture
            compiled(x, d)
            ways["compiled"] = lambda: compiled(x, d)
    if bench.device.type == "cuda":
        ways["CUDA graph"] = cuda_graph(ways["eager"], bench)
    else:
        bench.skip("CUDA graph", "it records and replays kernels of a CUDA device; none here")
    for name, seconds in in_turn(ways, bench).items():
        bench.write("tiny", seconds=seconds, way=name, operations=MANY, numbers=TINY)


def cuda_graph(work: Callable, bench: Workbench) -> Callable:
    """Record `work` as a CUDA graph and return its replay: one launch for all kernels."""
    work()
    bench.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
