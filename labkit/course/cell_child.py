"""The process that runs one challenge's cells and hands over the answer: `main(FOLDER)`.

Nothing here is believed: whatever the cells do to this process, all that leaves it is an answer,
which the grader then checks itself.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

from labkit.bench.process import die_with
from labkit.course import confine

ORDER, HANDED = "order.json", "handed"
FILE = "<challenge>"
MAGIC = ("%", "!", "?")


class Caught:
    """Stands for a challenge: its check only keeps the answer."""

    answers: dict[str, Any] = {}
    start = None

    def __init__(self, key: str):
        self.key = key

    def check(self, answer: Any) -> Caught:
        """Keep the answer; the last one counts."""
        self.answers[self.key] = answer
        return self

    def solution(self) -> str:
        """There is none here."""
        return "No solutions while grading."


def main(folder: str, parent: str) -> None:
    """Run the order in `folder`, tied to the supervisor `parent`; does not return."""
    die_with(int(parent))
    place = Path(folder)
    order = json.loads((place / ORDER).read_text(encoding="utf-8"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handed = os.open(place / HANDED, flags, 0o600)
    work = order["work"]
    os.chdir(work)
    os.environ.update(HOME=work, TMPDIR=work, TEMP=work, TMP=work, LABKIT_HOME=work)
    sys.path.insert(0, work)
    confine.limit(order["seconds"])
    confine.confine(write=[work])
    header, payload = answered(order)
    line = json.dumps(header).encode() + b"\n"
    os.ftruncate(handed, 0)
    os.lseek(handed, 0, os.SEEK_SET)
    with open(handed, "wb") as file:
        file.write(line + payload)
    os._exit(0)  # threads and exit handlers of the cells end here


def answered(order: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Run the cells; return what to hand over: (header, pickled code or nothing)."""
    import labkit

    labkit.challenge = Caught
    world = types.ModuleType("__main__")  # what it defines is pickled by value
    world.__dict__["lk"] = labkit
    sys.modules["__main__"] = world
    missing = imports(order["before"], world.__dict__)
    try:
        for text in order["cells"]:
            exec(compile(without_magic(text), FILE, "exec"), world.__dict__)
    except BaseException as error:  # SystemExit included: the cells may raise anything
        if order["key"] not in Caught.answers:
            return {**failure(error), "missing": missing}, b""
    try:
        return packed(Caught.answers.get(order["key"]))
    except BaseException as error:
        return failure(error), b""


def imports(cells: list[str], names: dict[str, Any]) -> str | None:
    """Do the import statements of the notebook's other cells; return the first that failed."""
    failed = None
    for text in cells:
        try:
            tree = ast.parse(without_magic(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                try:
                    exec(compile(ast.Module([node], []), FILE, "exec"), names)
                except BaseException as error:
                    failed = failed or f"{ast.unparse(node)}: {error}"
    return failed


def without_magic(text: str) -> str:
    """Return a cell as Python: IPython's `%` and `!` lines left out, a `%%` cell altogether."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        bare = line.lstrip()
        if bare.startswith(MAGIC):
            lines[i] = line[: len(line) - len(bare)] + "pass"
    return "\n".join(lines)


def packed(answer: Any) -> tuple[dict[str, Any], bytes]:
    """Return an answer as (header, payload): a Pipeline or changes as JSON, code by value."""
    from labkit.spec import Pipeline

    if answer is None or answer is ...:
        return {"what": "none"}, b""
    if isinstance(answer, Pipeline):
        return {"what": "pipeline", "pipeline": answer.to_dict()}, b""
    if isinstance(answer, dict):
        return {"what": "changes", "changes": json.loads(json.dumps(answer, allow_nan=False))}, b""
    if isinstance(answer, type) or callable(answer):
        import cloudpickle

        for module in own_modules():
            cloudpickle.register_pickle_by_value(module)
        kind = "class" if isinstance(answer, type) else "function"
        return {"what": kind}, cloudpickle.dumps(answer)
    return {"what": "other", "type": type(answer).__name__}, b""


def own_modules() -> list[types.ModuleType]:
    """The modules that lie beside the notebook: the bench cannot import them."""
    here = os.getcwd() + os.sep
    loaded = [(str(getattr(m, "__file__", "")), m) for m in list(sys.modules.values())]
    return [module for file, module in loaded if file.startswith(here)]


def failure(error: BaseException) -> dict[str, Any]:
    """What to say of cells that raised; nbgrader's stub in an empty answer raises too."""
    if isinstance(error, NotImplementedError):
        return {"what": "none"}
    said = str(error).strip().splitlines()
    what = "refused" if isinstance(error, confine.Outside) else "crashed"
    return {"what": what, "why": f"{type(error).__name__}: {said[0] if said else ''}"[:300]}
