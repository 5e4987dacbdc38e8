"""The same kernel as a package for the Hugging Face library `kernels`, loaded by its name.

    FOLDER/build/torch-cpu/__init__.py      the code: a copy of triton_add.py
    FOLDER/build/torch-cpu/metadata.json    what it is, and for which backend

On the Hub the folder is a repository. `LOCAL_KERNELS=name=folder` makes `get_kernel(name)` take
it from disk: no network, and the code that runs is the code you can read.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import ModuleType

NAME = "labkit/add3"
VERSION = 1


def write_package(folder: Path, backend: str) -> Path:
    """Write the package for "cpu" or "cuda"; return the folder."""
    variant = folder / "build" / f"torch-{backend}"
    variant.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("triton_add.py"), variant / "__init__.py")
    facts = {
        "name": "add3", "id": "labkit_add3", "version": VERSION, "license": "MIT",
        "python-depends": [], "backend": {"type": backend},
    }  # fmt: skip
    (variant / "metadata.json").write_text(json.dumps(facts, indent=2))
    return folder


def load_by_name(folder: Path) -> ModuleType:
    """Load the kernel as `get_kernel("labkit/add3", version=1)` does, from `folder`.

    Raises what `kernels` raises: ImportError where it is not installed.
    """
    os.environ["LOCAL_KERNELS"] = f"{NAME}={folder}"  # read by kernels, once
    from kernels import get_kernel

    return get_kernel(NAME, version=VERSION)


def on_the_hub(repository: str) -> bool:
    """Whether the Hub has a build of `repository` for this machine; no code is run."""
    from kernels import has_kernel

    return has_kernel(repository, version=VERSION)


def names_from_hub(repository: str) -> list[str]:
    """Load a kernel from the Hub, a download and then foreign code in this process; its names.

    `kernels` refuses publishers that it does not know; nothing here overrides that.
    """
    from kernels import get_kernel

    return [name for name in dir(get_kernel(repository, version=VERSION)) if name[0] != "_"]
