"""A Triton kernel of our own, checked against PyTorch, and loaded by name (Hugging Face `kernels`).

`LOCAL_KERNELS=name=folder` makes `get_kernel(name)` take from disk what on the Hub is a repository.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import labkit
from labkit.experiments.measure import torch
from labkit.spec import experiment, knob

INSTALL = "pip install 'labkit[kernels]'"
SIZES = (1, 1000, 1024, 100_003)  # less than a block, a whole one, and a rest
BIG = 1 << 26  # numbers, for timing on a GPU: 256 MiB an array
NAME, VERSION = "labkit/add3", 1


@experiment(
    "a Triton kernel of our own, checked, and loaded by name",
    hub=knob("kernels-community/activation", "repository on the Hub that is looked up"),
)
def own_kernel(job: Any, bench: Any) -> None:
    """Check the kernel and the package against a + b + c; on a GPU, time it too."""
    on_card = bench.device.type == "cuda"
    why = bench.compile_lacks() if on_card else None
    if importlib.util.find_spec("triton") is None:
        why = f"it needs triton: {INSTALL} (Linux)"
    if why:
        bench.skip("triton kernel", why)
        bench.skip("local package", why)
    else:
        if not on_card:
            os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is defined
        from labkit.bench.triton_add import add3

        check("triton kernel", add3, bench, {"interpreted": not on_card})
        if on_card:  # against PyTorch's two operations: 4 passes over memory, and 6
            a, b, c = (torch.randn(BIG, device=bench.device) for _ in range(3))
            bench.time(lambda: a + b + c, of="time", way="PyTorch", bytes=6 * 4 * BIG)
            bench.time(lambda: add3(a, b, c), of="time", way="our kernel", bytes=4 * 4 * BIG)
        local_package(bench)
    hub(job.hub, bench)


def check(what: str, add3: Callable, bench: Any, facts: dict[str, Any]) -> None:
    """Compare with PyTorch at sizes that fill a block, and that do not."""
    for n in SIZES:
        a, b, c = (torch.randn(n, device=bench.device) for _ in range(3))
        worst = (add3(a, b, c) - (a + b + c)).abs().max().item()
        bench.write(what, n=n, values={"largest difference": worst, **facts})


def kernels_of(what: str, bench: Any) -> Any:
    """Return the library `kernels`, or None where it is not installed, which is said."""
    if importlib.util.find_spec("kernels"):
        return importlib.import_module("kernels")
    return bench.skip(what, f"the library kernels is not installed: {INSTALL}")


def local_package(bench: Any) -> None:
    """Write the package (see above), load it by name, check it like the kernel itself."""
    backend = bench.device.type
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCAL_KERNELS"] = f"{NAME}={folder}"  # read by kernels, once
        if not (kernels := kernels_of("local package", bench)):
            return
        variant = Path(folder) / "build" / f"torch-{backend}"
        variant.mkdir(parents=True)
        code = Path(labkit.__file__).with_name("bench") / "triton_add.py"
        shutil.copyfile(code, variant / "__init__.py")
        (variant / "metadata.json").write_text(json.dumps({
            "name": "add3", "id": "labkit_add3", "version": VERSION, "license": "MIT",
            "python-depends": [], "backend": {"type": backend},
        }))  # fmt: skip
        module = kernels.get_kernel(NAME, version=VERSION)
        files = sorted(f"build/{variant.name}/{file.name}" for file in variant.iterdir())
        facts = {"name": NAME, "module": module.__name__, "files": files}
        check("local package", module.add3, bench, facts)


def hub(repository: str, bench: Any) -> None:
    """Look a kernel up on the Hub; it is not loaded: that is foreign code in this process."""
    if not (kernels := kernels_of("hub kernel", bench)):
        return
    try:
        there = kernels.has_kernel(repository, version=VERSION)
    except Exception as error:  # no network, publisher not trusted: all said
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        bench.skip("hub kernel", f"no network, or the Hub does not vouch for the publisher: {said}")
    else:
        values = {"a build for this machine": there, "loaded": False}
        bench.write("hub kernel", repository=repository, values=values)
