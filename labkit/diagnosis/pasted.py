"""Code to paste: it names what the script has, or brings the import; else it is an example."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Collection
from types import CodeType

DATA = "from torch.utils.data import"
IMPORTS = {
    "torch": "import torch",
    "os": "import os",
    "shutil": "import shutil",
    "np": "import numpy as np",
    "nn": "from torch import nn",
    "Image": "from PIL import Image",
    "BatchSampler": f"{DATA} BatchSampler",
    "DataLoader": f"{DATA} DataLoader",
    "RandomSampler": f"{DATA} RandomSampler",
}


def ready_to_paste(code: str, names: Collection[str]) -> str:
    """Return `code` as it runs in a script that is known to have `names`.

    What it uses beyond them is imported. Where some of it is a name of the script that is not
    known, the code is an example, in comments; "" of what is no code, as a record may hold.
    """
    try:
        lacking = names_read(code).difference(names)
    except SyntaxError:
        return ""
    if not lacking <= IMPORTS.keys():
        lines = [
            line if line.startswith("#") else f"# {line}".rstrip() for line in code.splitlines()
        ]
        return "".join(f"{line}\n" for line in lines)
    imports = "".join(f"{line}\n" for line in sorted(map(IMPORTS.__getitem__, lacking)))
    return f"{imports}\n{code}" if imports else code


def names_read(code: str | CodeType) -> set[str]:
    """Return the names that code reads before it gives them a value, Python's own left out."""
    made = set(vars(builtins))
    found: set[str] = set()
    for step in dis.Bytecode(code):
        if step.opname == "STORE_NAME":
            made.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            found |= {step.argval} - made
        elif isinstance(step.argval, CodeType):  # of a function, of a class
            found |= names_read(step.argval) - made
    return found
