"""What a quarter of an hour on a lent GPU is for: the course's measurements, one after another.

    python maintain/first_gpu/quarter_hour.py --out DIR [--only NAME ...] [--dry-run]

A row of `WANTED` is a record, saved as soon as it is made: DIR/<machine>/<name>.jsonl.gz. Copied to
`labkit/records/<machine>/`, it is `lk.recorded("<machine>/<name>")`, rows to draw `beside` one's
own: most functions are the notebooks' own, taken from their cells. Run it again to make what is
missing. --dry-run takes tiny sizes and needs no GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import gelu

try:
    import triton
    import triton.language as tl
except ImportError:  # a dry run elsewhere
    triton = None

sys.path.insert(0, str(Path(__file__).parents[1]))
from recordings import LONGEST_S, record, ship, slug

import labkit as lk

ROOT = Path(__file__).parents[2]
CARRIED = ROOT / "hub" / "activation"  # for a machine without a network
TINY = 64  # the largest number of a grid in a dry run
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def of_notebook(number, name, **known):
    """Return a function of a notebook, in whose cells these names are `known` too."""
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    [cell] = [source for source in sources if f"def {name}(bench" in source]
    is_gpu = lk.machine().kind == "gpu"
    scope = {"__name__": "__main__", "gpu": is_gpu, "on_gpu": is_gpu} | known
    for source in [*sources[: sources.index(cell)], cell]:
        for node in ast.parse(source).body:
            constant = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()
            if constant or isinstance(node, DEFINITIONS):
                exec(compile(ast.Module([node], []), path.name, "exec"), scope)
    return scope[name]


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


def add3_kernel(a, b, c, d, n, BLOCK):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n  # the last instance reaches over the end
    total = tl.load(a + offsets, mask=mask) + tl.load(b + offsets, mask=mask)
    tl.store(d + offsets, total + tl.load(c + offsets, mask=mask), mask=mask)


def sum_in_triton(bench, mib):
    """07: d = a + b + c by a Triton kernel."""
    if triton is None:
        bench.skip("needs Triton")
    bench.needs_compiler()
    add3_kernel.__annotations__["BLOCK"] = tl.constexpr
    kernel = triton.jit(add3_kernel)
    a, b, c, d = torch.rand(4, mib * 2**18, device=bench.device)
    instances = (triton.cdiv(len(a), 1024),)
    work = lambda: kernel[instances](a, b, c, d, len(a), BLOCK=1024)  # noqa: E731
    work()
    torch.testing.assert_close(d, a + b + c)
    bench.time(work, bytes=4 * a.nbytes, seconds=0.3)


def gelu_of(bench, way, rows):
    """07: GELU of PyTorch, and of a package from the Hub (get_kernel)."""
    x = torch.randn(rows, 4096, device=bench.device, dtype=torch.float16)
    y = torch.empty_like(x)
    work = lambda: gelu(x, approximate="tanh")  # noqa: E731
    if way == "get_kernel":
        if bench.device.type == "cpu":
            bench.skip("needs CUDA")
        from kernels import get_kernel, get_local_kernel

        here = CARRIED.is_dir()
        name = "kernels-community/activation"
        activation = get_local_kernel(CARRIED) if here else get_kernel(name, version=1)
        activation.gelu_fast(y, x)
        torch.testing.assert_close(y, work(), rtol=1e-2, atol=1e-2)
        work = lambda: activation.gelu_fast(y, x)  # noqa: E731
    bench.time(work, bytes=2 * x.nbytes)


PIECES = {"pieces": [1, 64, 4096, 65536], "memory": ["pageable", "pinned"]}
SPEEDS = {"operation": ["mul", "add", "softmax"], "kib": [8, 128, 2048, 2**15, 2**19, 2**21]}
ROOFLINE = {"batch": [1, 8, 64, 512, 4096], "precision": ["fp32", "fp16", "bf16"], "n": [8192]}
PRODUCTS = {"precision": ["fp32", "tf32", "fp16", "bf16"], "n": [1024, 4096, 8192]}
CONVOLUTIONS = {"tf32": [False, True], "channels": [32, 64, 128, 256]}
BATCHES = {"batch": [2**n for n in range(11)], "width": [512, 4096]}
EDGES = {"batch": [1000, 1024, 1032, 8192], "outputs": [4096, 50_257, 50_304], "dtype": ["float16"]}
SUMS = {"way": ["two steps", "predicted", "compiled"], "mib": [1, 16, 256, 1024]}
GELUS = {"way": ["PyTorch", "get_kernel"], "rows": [256, 4096, 65536]}
DECODE = {"dtype": ["float32", "bfloat16"], "batch": [1, 8, 32, 128], "context": [256, 4096]}

WANTED = [  # name, notebook, function (None: a run that recordings.py lists), grid, seconds at most
    ("copies", "01", "in_pieces", PIECES, 40),
    ("memory", "01", "passes", SPEEDS, 40),
    ("roofline", "01", "product", ROOFLINE, 40),
    ("products", "05", "product", PRODUCTS, 40),
    ("convolutions", None, convolution_in_tf32, CONVOLUTIONS, 40),
    ("batches", "04", "train", BATCHES, 60),
    ("edges", "04", "layer", EDGES, 40),
    ("sums", "07", "three_arrays", SUMS, 60),
    ("sums-triton", None, sum_in_triton, {"mib": SUMS["mib"]}, 40),
    ("gelu", None, gelu_of, GELUS, 30),
    *[(f"capstone-{fixed}", "08", None, {}, LONGEST_S) for fixed in range(7)],
    ("decode", "12", "decode", DECODE, 60),
]
KNOWN = {"decode": {"width": 4096, "depth": 8}}  # names that a notebook sets for itself


def tiny(values):
    """Return the values of an argument that a dry run takes: of numbers two, and none large."""
    small = dict.fromkeys(min(each, TINY) if isinstance(each, int) else each for each in values)
    return [each for place, each in enumerate(small) if place < 2 or isinstance(each, str)]


def make(name, notebook, function, grid, limit_s, target):
    """Measure one record and save it; return why it is not whole, None where it is."""
    if function is None:
        return record(target.parents[1], [name])[name]
    if notebook:
        function = of_notebook(notebook, function, **KNOWN.get(name, {}))
    deadline = time.monotonic() + limit_s
    measured = lk.measure(function, wait=False, **grid)
    measured.wait_or_raise(lambda run: run.stop() if time.monotonic() > deadline else None)
    if not len(measured) or measured.mistake:
        return measured.mistake or measured.error or "no row within its limit"
    ship(measured.path, target, name=name, title=f"{function.__name__} of {notebook or 'our own'}")
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
        KNOWN["decode"] = {"width": 256, "depth": 1}
    elif lk.machine().kind != "gpu":
        print("There is no GPU that torch can use here; --dry-run rehearses without.")
        return 2
    failed = 0
    for name, notebook, function, grid, limit_s in WANTED:
        target = Path(options.out) / slug(lk.machine().name) / f"{name}.jsonl.gz"
        is_whole = target.exists() and lk.load(target).outcome == "finished"
        if is_whole or name not in (options.only or [name]):
            continue
        began = time.monotonic()
        if options.dry_run:
            grid = {argument: tiny(values) for argument, values in grid.items()}
        why = make(name, notebook, function, grid, limit_s, target)
        failed |= why is not None
        print(f"{name:20}{time.monotonic() - began:5.0f} s  {why or 'saved'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
