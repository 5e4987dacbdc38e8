"""Code to paste: it names what the script has, or brings the import; else it is an example."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection

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
    "Sampler": f"{DATA} Sampler",
    "SequentialSampler": f"{DATA} SequentialSampler",
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
        lines = (
            line if line.startswith("#") else f"# {line}".rstrip() for line in code.splitlines()
        )
        return "".join(f"{line}\n" for line in lines)
    imports = "".join(f"{line}\n" for line in sorted(map(IMPORTS.__getitem__, lacking)))
    return f"{imports}\n{code}" if imports else code


def names_made(code: str) -> set[str]:
    """Return the names that code gives a value."""
    return {name for node in ast.walk(ast.parse(code)) for name in _made_by(node)}


def names_read(code: str) -> set[str]:
    """Return the names that code reads before it gives them a value, Python's own left out."""
    found: set[str] = set()
    made = set(vars(builtins))
    for statement in ast.parse(code).body:
        read: set[str] = set()
        given: set[str] = set()
        for node in ast.walk(statement):
            given.update(_made_by(node))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
        if isinstance(statement, ast.AugAssign):
            read |= given
        # What a block makes may be read in it; an assignment reads first
        if not isinstance(statement, (ast.Assign, ast.AugAssign)):
            read -= given
        found |= read - made
        made |= given
    return found


def _made_by(node: ast.AST) -> list[str]:
    """Return the names that a node of code gives a value."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
