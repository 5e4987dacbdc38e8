"""What a quarter of an hour on a lent GPU is for: the course's measurements, one after another.

    python maintain/first_gpu/quarter_hour.py --out DIR [--only NAME ...] [--dry-run]

A row of `WANTED` is a record, saved as soon as it is made: DIR/<machine>/<name>.jsonl.gz. Copied to
`labkit/records/<machine>/`, it is `lk.recorded("<machine>/<name>")`, rows to draw `beside` one's
own: arguments and columns are those of the notebooks. Run it again to make what is missing.
--dry-run takes tiny sizes and needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for a CPU comes without
    triton = None

sys.path.insert(0, str(Path(__file__).parents[1]))
from recordings import LONGEST_S, record, ship, slug

import labkit as lk

CARRIED = Path(__file__).parents[2] / "hub" / "activation"  # for a machine without a network
TINY = 64  # the largest number of a grid in a dry run
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def in_pieces(bench, pieces, memory, mib):
    """01: the same bytes to the card, in one copy or in many."""
    if memory == "pinned" and bench.device.type == "cpu":
        bench.skip("needs CUDA")
    block = torch.ones(mib * 2**18)  # float32
    block = block.pin_memory() if memory == "pinned" else block
    there = torch.ones_like(block, device=bench.device)
    size = len(block) // pieces
    pairs = list(zip(there.split(size), block.split(size), strict=True))
    bench.time(lambda: [to.copy_(of, non_blocking=True) for to, of in pairs], bytes=block.nbytes)


def passes(bench, operation, kib):
    """01: the speed of the card's memory and of its cache."""
    a, b = torch.ones(2, kib, 256, device=bench.device)  # float32
    work, flops, arrays = {  # FLOPs a number, arrays read or written
        "mul": (lambda: a.mul_(0.9999), 1, 2),
        "add": (lambda: torch.add(a, b, out=b), 1, 3),
        "softmax": (lambda: torch.softmax(a, dim=-1, out=b), 5, 2),
    }[operation]
    bench.time(work, bytes=arrays * a.nbytes, flops=flops * a.numel())
    return {"flop_byte": flops / (4 * arrays)}


def product(bench, batch, precision, n):
    """01: the roofline, in three formats."""
    weight = torch.randn(n, n, device=bench.device, dtype=DTYPES[precision])
    a = torch.randn(batch, n, device=bench.device, dtype=DTYPES[precision])
    out = torch.empty_like(a)
    bench.time(lambda: torch.mm(a, weight, out=out), flops=2 * batch * n**2)
    return {"flop_byte": 2 * batch * n**2 / (weight.nbytes + 2 * a.nbytes)}


def product_in_tf32(bench, tf32, n):
    """05: FP32 matrix products, with TF32 forbidden (PyTorch's default) and allowed."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    a, b = torch.randn(2, n, n, device=bench.device)
    bench.time(lambda: a @ b, flops=2 * n**3)
    exact = a[:64].double() @ b.double()
    return {"relative error": ((a[:64] @ b - exact).norm() / exact.norm()).item()}


def convolution_in_tf32(bench, tf32, channels):
    """05: FP32 convolutions, with TF32 forbidden and allowed (PyTorch's default)."""
    torch.backends.cudnn.allow_tf32 = tf32
    images = torch.randn(32, channels, 56, 56, device=bench.device)
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(bench.device)
    with torch.no_grad():
        bench.time(lambda: layer(images), flops=2 * images.numel() * 9 * channels)
        exact = layer.double()(images[:1].double())
        found = layer.float()(images[:1])
    return {"relative error": ((found - exact).norm() / exact.norm()).item()}


def train(bench, batch, width):
    """04: a training step by batch."""
    layers = nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.randn(batch, 256, device=bench.device)
    labels = torch.zeros(batch, device=bench.device).long()

    def step():
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    return {"samples/s": batch / bench.time(step)}


def layer(bench, batch, outputs, dtype, inputs):
    """04: a layer whose sizes are multiples of 8, of 1,024, or of neither."""
    kind = {"device": bench.device, "dtype": getattr(torch, dtype)}
    samples, weights = torch.randn(batch, inputs, **kind), torch.randn(outputs, inputs, **kind)
    bench.time(lambda: samples @ weights.T, flops=2 * batch * inputs * outputs)


def two_steps(a, b, c, between, d):
    torch.add(a, b, out=between)
    torch.add(between, c, out=d)


def eager(a, b, c, between, d):
    return a + b + c


def one_step(a, b, c, between, d):
    d.copy_(a + b + c)


def add3_kernel(a, b, c, d, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n  # the last instance reaches over the end
    total = tl.load(a + offsets, mask=mask) + tl.load(b + offsets, mask=mask)
    tl.store(d + offsets, total + tl.load(c + offsets, mask=mask), mask=mask)


def three_arrays(bench, way, mib):
    """07: d = a + b + c in two steps, as one writes it, compiled, and as a Triton kernel."""
    arrays = [torch.rand(mib * 2**18, device=bench.device) for _ in range(5)]
    work = eager if way == "eager" else two_steps
    if way in ("compiled", "triton"):
        bench.needs_compiler()
    if way == "compiled":
        work = torch.compile(one_step, dynamic=True)
    if way == "triton":
        if triton is None:
            bench.skip("needs Triton")
        kernel = triton.jit(add3_kernel)
        instances = (triton.cdiv(len(arrays[0]), 1024),)

        def work(a, b, c, between, d):
            kernel[instances](a, b, c, d, len(a), BLOCK=1024)

    work(*arrays)
    if way in ("compiled", "triton"):
        torch.testing.assert_close(arrays[4], sum(arrays[:3]))
    counted = 6 if way == "predicted" else 4  # arrays; d, a, b, c are what we want
    bench.time(lambda: work(*arrays), bytes=counted * arrays[0].nbytes, seconds=0.3)


def gelu_of(bench, way, rows):
    """07: GELU of PyTorch, and of a package from the Hub (get_kernel)."""
    x = torch.randn(rows, 4096, device=bench.device, dtype=torch.float16)
    y = torch.empty_like(x)
    work = lambda: gelu(x, approximate="tanh")  # noqa: E731
    if way == "get_kernel":
        if bench.device.type == "cpu":
            bench.skip("needs CUDA")
        try:
            import kernels

            if CARRIED.is_dir():
                activation = kernels.get_local_kernel(CARRIED)
            else:
                activation = kernels.get_kernel("kernels-community/activation", version=1)
        except Exception as why:  # no network, no build for this PyTorch
            bench.skip(f"no kernel: {type(why).__name__}")
        activation.gelu_fast(y, x)
        torch.testing.assert_close(y, work(), rtol=1e-2, atol=1e-2)
        work = lambda: activation.gelu_fast(y, x)  # noqa: E731
    bench.time(work, bytes=2 * x.nbytes)


class Block(nn.Module):
    """12: a transformer block with a KV cache."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def empty_cache(self, batch, length):
        return self.out.weight.new_zeros(2, batch, self.heads, length, 64)

    def forward(self, x, cache, at):  # x: (B, 1, width)
        parts = self.qkv(x).view(len(x), 1, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        cache[:, :, :, at : at + 1] = parts[1:]  # (2, B, H, 1, 64): keys and values
        keys, values = cache[:, :, :, : at + 1]
        seen = scaled_dot_product_attention(parts[0], keys, values)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(gelu(self.up(x)))


def seconds(bench, work, calls=5):
    work()  # warm
    bench.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        work()
    bench.synchronize()
    return (time.perf_counter() - started) / calls


def decode(bench, way, dtype, batch, context, width, depth):
    """12: a step of decode and its law, eager and as a CUDA graph."""
    kind = getattr(torch, dtype)
    with bench.device, torch.inference_mode():
        blocks = [Block(width).to(kind) for _ in range(depth)]
        caches = [block.empty_cache(batch, context).normal_() for block in blocks]
        token = torch.randn(batch, 1, width).to(kind)

        def step():
            x = token
            for block, cache in zip(blocks, caches, strict=True):
                x = block(x, cache, context - 1)

        work = recorded(bench, step) if way == "CUDA graph" else step
        took = bench.time(work)
        weights = depth * 12 * width**2
        array = torch.ones((weights * token.itemsize + sum(c.nbytes for c in caches)) // 4)
        square = token.new_ones(2 * [round((batch * weights) ** (1 / 3))])  # as many operations
        ways = {"reading": array.sum, "arithmetic": lambda: square @ square}
        terms = {name: seconds(bench, work) for name, work in ways.items()}
    limit = max(terms, key=terms.get)
    return {"limit": limit, "% of the law": 100 * terms[limit] / took, "tokens/s": batch / took}


def recorded(bench, step):
    """Return what replays a step as a CUDA graph."""
    if bench.device.type == "cpu":
        bench.skip("needs CUDA")
    step()  # warm
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


TWO = ["float32", "float16"]
PIECES = {"pieces": [1, 64, 4096, 65536], "memory": ["pageable", "pinned"], "mib": [32]}
SPEEDS = {"operation": ["mul", "add", "softmax"], "kib": [8, 128, 2048, 2**15, 2**19, 2**21]}
ROOFLINE = {"batch": [1, 8, 64, 512, 4096], "precision": [*DTYPES], "n": [8192]}
PRODUCTS = {"tf32": [False, True], "n": [256, 1024, 4096, 8192]}
CONVOLUTIONS = {"tf32": [False, True], "channels": [32, 64, 128, 256]}
BATCHES = {"batch": [2**n for n in range(11)], "width": [512, 4096]}
EDGES = {"batch": [1000, 1001, 1024, 1025, 1032], "outputs": [4096], "dtype": TWO, "inputs": [4096]}
WORDS = {"batch": [8192], "outputs": [50_257, 50_264, 50_304], "dtype": TWO, "inputs": [768]}
SUMS = {"way": ["two steps", "predicted", "eager", "compiled", "triton"], "mib": [1, 16, 256, 1024]}
GELUS = {"way": ["PyTorch", "get_kernel"], "rows": [256, 4096, 65536]}
DECODE = {"dtype": ["float32", "bfloat16"], "batch": [1, 8, 32, 128], "context": [256]}
MODEL = {"width": [4096], "depth": [8]}
CONTEXTS = {"way": ["eager", "CUDA graph"], "context": [256, 1024, 4096, 16384]}

WANTED = [  # name, function (None: a run that recordings.py lists), its grid, seconds at most
    ("copies", in_pieces, PIECES, 40),
    ("memory", passes, SPEEDS, 40),
    ("roofline", product, ROOFLINE, 40),
    ("tf32-products", product_in_tf32, PRODUCTS, 40),
    ("tf32-convolutions", convolution_in_tf32, CONVOLUTIONS, 40),
    ("batches", train, BATCHES, 60),
    ("edges", layer, EDGES, 40),
    ("vocabulary", layer, WORDS, 40),
    ("sums", three_arrays, SUMS, 60),
    ("gelu", gelu_of, GELUS, 30),
    *[(f"capstone-{fixed}", None, {}, LONGEST_S) for fixed in range(7)],
    ("decode", decode, DECODE | MODEL | {"way": ["eager"]}, 40),
    ("decode-graph", decode, DECODE | MODEL | {"way": ["CUDA graph"]}, 40),
    ("decode-context", decode, CONTEXTS | MODEL | {"dtype": ["bfloat16"], "batch": [8]}, 40),
]


def tiny(values):
    """Return the values of an argument that a dry run takes: of numbers two, and none large."""
    small = dict.fromkeys(min(each, TINY) if isinstance(each, int) else each for each in values)
    return [each for place, each in enumerate(small) if place < 2 or isinstance(each, str)]


def missing(target):
    """Return whether a record is to be made: there is none, or only a part of one."""
    return not target.exists() or lk.load(target).outcome != "finished"


def make(name, function, grid, limit_s, target):
    """Measure one record and save it; return why it is not whole, None where it is."""
    if function is None:
        return record(target.parents[1], [name]).left_out.get(name)
    deadline = time.monotonic() + limit_s
    measured = lk.measure(function, wait=False, **grid)
    measured.wait_or_raise(lambda run: run.stop() if time.monotonic() > deadline else None)
    if not len(measured) or measured.mistake:
        return measured.mistake or measured.error or "no row within its limit"
    ship(measured.path, target, name=name, title=function.__doc__)
    return None if measured.outcome == "finished" else f"{measured.outcome}: {measured.numbers}"


def main():
    """Make the records that are missing; return 1 where one is not whole, 2 where no GPU is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="the folder that the records go to")
    parser.add_argument("--only", action="append", choices=[name for name, *_ in WANTED])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on any machine")
    options = parser.parse_args()
    if options.dry_run:
        os.environ |= {"LABKIT_QUICK": "1", "TRITON_INTERPRET": "1"}
    elif lk.machine().kind != "gpu":
        print("There is no GPU that torch can use here; --dry-run rehearses without.")
        return 2
    failed = 0
    for name, function, grid, limit_s in WANTED:
        target = Path(options.out) / slug(lk.machine().name) / f"{name}.jsonl.gz"
        if name in (options.only or [name]) and missing(target):
            began = time.monotonic()
            if options.dry_run:
                grid = {argument: tiny(values) for argument, values in grid.items()}
            why = make(name, function, grid, limit_s, target)
            failed |= why is not None
            print(f"{name:20}{time.monotonic() - began:5.0f} s  {why or 'saved'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
