"""A Triton kernel of our own, checked against PyTorch, and loaded as a package by its name."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.bench import triton_package
from labkit.bench.resolve_config import compile_lacks
from labkit.bench.workbench import Workbench

INSTALL = "pip install 'labkit[kernels]'"
SIZES = (1, 1000, 1024, 100_003)  # less than a block, a whole one, and a rest
BIG = 1 << 26  # numbers, for timing on a GPU: 256 MiB an array


def measure(job: Any, bench: Workbench) -> None:
    """Check the kernel and the package against a + b + c; on a GPU, time it too."""
    if importlib.util.find_spec("triton") is None:
        bench.skip("triton kernel", f"triton is not installed: {INSTALL} (Linux)")
        bench.skip("local package", f"its kernel needs triton: {INSTALL} (Linux)")
    elif bench.device.type == "cuda" and (why := compile_lacks("default", bench.device)):
        bench.skip("triton kernel", why)
        bench.skip("local package", why)
    else:
        interpreted = bench.device.type != "cuda"
        if interpreted:
            os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is defined
        from labkit.bench.triton_add import add3

        check("triton kernel", add3, bench, {"interpreted": interpreted})
        if not interpreted:
            time_it(add3, bench)
        local_package(bench)
    hub(job.hub, job.load, bench)


def check(what: str, add3: Callable, bench: Workbench, facts: dict[str, Any]) -> None:
    """Compare with PyTorch at sizes that fill a block, and that do not."""
    for n in SIZES:
        a, b, c = (torch.randn(n, device=bench.device) for _ in range(3))
        worst = (add3(a, b, c) - (a + b + c)).abs().max().item()
        bench.write(what, n=n, values={"largest difference": worst, **facts})


def time_it(add3: Callable, bench: Workbench) -> None:
    """Time the kernel against PyTorch's two operations. Bytes: 4 passes, and 6."""
    a, b, c = (torch.randn(BIG, device=bench.device) for _ in range(3))
    bench.time(lambda: a + b + c, of="time", way="PyTorch", bytes=6 * 4 * BIG)
    bench.time(lambda: add3(a, b, c), of="time", way="our kernel", bytes=4 * 4 * BIG)


def local_package(bench: Workbench) -> None:
    """Write the package, load it by name, check it like the kernel itself."""
    if importlib.util.find_spec("kernels") is None:
        bench.skip("local package", f"the library kernels is not installed: {INSTALL}")
        return
    with tempfile.TemporaryDirectory() as folder:
        root = triton_package.write_package(Path(folder), bench.device.type)
        files = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
        module = triton_package.load_by_name(root)
        facts = {"name": triton_package.NAME, "module": module.__name__, "files": files}
        check("local package", module.add3, bench, facts)


def hub(repository: str, load: bool, bench: Workbench) -> None:
    """Look a kernel up on the Hub, and load it where that was asked for; else say why not."""
    if importlib.util.find_spec("kernels") is None:
        bench.skip("hub kernel", f"the library kernels is not installed: {INSTALL}")
        return
    try:
        there = triton_package.on_the_hub(repository)
        names = triton_package.names_from_hub(repository) if load else None
    except Exception as error:  # no network, no such build, publisher not trusted: all said
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        bench.skip("hub kernel", f"no network, or the Hub does not vouch for the publisher: {said}")
        return
    values = {"a build for this machine": there, "loaded": load, "names": names}
    bench.write("hub kernel", repository=repository, values=values)
