"""Grade submitted notebooks: their challenge cells run in a clean notebook, their answers checked.

A challenge is the code cell that calls `lk.challenge("KEY").check(answer)`, with the cells before
it that are tagged "challenge" (or are nbgrader's); of other cells only imports count. It runs in a
kernel of its own, in a copy of the folder, without keys, within limits: against accidents. It is no
sandbox: strangers' code belongs in a container.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import labkit
from labkit.course.challenge import REPEATS, Challenge
from labkit.course.task import all_tasks
from labkit.knobs import check_names
from labkit.process import family
from labkit.process.keys import without_keys
from labkit.results.result import Result, Table

MEMORY_BYTES = 4 * 2**30  # for a challenge's cells (RLIMIT_DATA)
FILE_BYTES = 256 * 2**20  # of each file they write (RLIMIT_FSIZE)
MAX_FOLDER_BYTES = 64 * 2**20  # of what lies beside a notebook
OURS = "labkit"  # in the metadata of cells that were not submitted
CHECK = re.compile(r"""challenge\(\s*["']([\w.-]{1,40})["']\s*\)\s*\.\s*check\s*\(""")

Cells = tuple[list[str], list[str]]  # the imports of the code cells before, and a challenge's cells


@dataclass(frozen=True)
class Row:
    """A notebook and a challenge: a Verdict's kind or "not a notebook", why, what was measured."""

    notebook: str
    challenge: str | None
    verdict: str
    why: str | None = None
    lines: tuple[str, ...] = ()


class Grades(Result, tuple):
    """The rows of a grading, in the order of the notebooks; prints as a table."""

    @property
    def bad(self) -> list[Row]:
        """The files that are not notebooks."""
        return [row for row in self if row.verdict == "not a notebook"]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        rows = [{**asdict(row), "passed": row.verdict == "passed"} for row in self]
        return {"rows": rows, "bad": len(self.bad)}

    def table(self) -> Table:
        """Return a row for each notebook and challenge, without what a terminal would obey."""
        cells = [(r.notebook, r.challenge, r.verdict, r.why or "; ".join(r.lines)) for r in self]
        shown = [
            ["".join(c if c.isprintable() else " " for c in cell or "-")[:200] for cell in row]
            for row in cells
        ]
        passed = sum(row.verdict == "passed" for row in self)
        bad = f"; {len(self.bad)} not a notebook" if self.bad else ""
        foot = f"{passed} of {len(self) - len(self.bad)} passed{bad}"
        head = ("notebook", "challenge", "verdict", "why")
        return Table(shown, head, foot=(foot,), left=range(4))


def grade(
    given: Iterable[str | os.PathLike],
    *,
    only: Iterable[str] | None = None,
    timeout_s: float = 60.0,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Grades:
    """Grade the challenges in notebooks, or in those below folders; return a row for each.

    With `only`, a row for each of these keys and each notebook, whether it has them or not.
    `timeout_s` is for each cell of a challenge and each run of its check; `progress` is called with
    (done, total, what is next). Raises ValueError for an unknown key, no notebook, a bad timeout.
    """
    wanted, tasks, rows = list(dict.fromkeys(only or ())), all_tasks(), []
    check_names(wanted, tasks, "challenge")
    if importlib.util.find_spec("nbclient") is None:
        raise RuntimeError("Grading needs nbclient: pip install 'labkit[notebooks]'.")
    if not 0 < timeout_s <= 3600:
        raise ValueError(f"timeout {timeout_s:g}: give seconds, at most 3600.")
    found: dict[Path, None] = {}  # without repetitions
    for place in map(Path, given):  # all below a folder, as nbgrader's submitted/
        below = sorted(place.rglob("*.ipynb")) if place.is_dir() else [place]
        if not below:
            raise ValueError(f"{place}: no notebook below this folder.")
        found |= dict.fromkeys(p for p in below if ".ipynb_checkpoints" not in p.parts)
    for done, path in enumerate(found):
        progress(done, len(found), str(path))
        try:
            has = read(path)
            keys = wanted or has or [None]
            rows += [Row(str(path), key, *_graded(path, key, has, timeout_s)) for key in keys]
        except ValueError as bad:
            rows.append(Row(str(path), None, "not a notebook", str(bad)))
    return Grades(rows)


def _graded(path: Path, key: str | None, has: dict[str, Cells], timeout_s: float) -> tuple:
    """Return the verdict of a challenge, why, and what was measured."""
    if key not in has:
        return "no answer", "No cell checks it." if key else "No cell checks a challenge."
    if key not in all_tasks():
        return "crashed", "Unknown challenge."
    try:
        return _run(path, key, has[key], timeout_s)
    except Exception as error:  # one row's trouble must not cost the others theirs
        return "crashed", f"It could not be graded: {type(error).__name__}: {error}"[:300]


def read(path: Path) -> dict[str, Cells]:
    """Return a notebook's challenges by key, none run; raises ValueError where it is not one."""
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    try:
        cells = json.loads(path.read_bytes())["cells"]
        code = [(cell, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]
        return _challenges(code)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        what = "it is not JSON" if isinstance(error, ValueError) else "it has no list of cells"
        raise ValueError(f"not a notebook of format 4: {what}") from None


def _challenges(code: list[tuple[dict[str, Any], str]]) -> dict[str, Cells]:
    from IPython.core.inputtransformer2 import TransformerManager

    imports: list[str] = []
    pending: list[str] = []
    found: dict[str, Cells] = {}
    for cell, text in code:
        keys = CHECK.findall(text)
        metadata = cell.get("metadata") or {}
        nbgrader = metadata.get("nbgrader") or {}
        # An "Autograded answer" of nbgrader's; one that is graded by hand stands for itself
        answer = nbgrader.get("solution") is True and nbgrader.get("grade") is not True
        if keys or answer or "challenge" in metadata.get("tags", ()):
            pending.append(text)
        for key in keys:  # where a key is checked twice, the last cell counts
            found.pop(key, None)
            found[key] = (list(imports), pending)
        if keys or nbgrader.get("grade") is True:  # what came before was for this check
            pending = []
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            body = ast.parse(TransformerManager().transform_cell(text)).body  # without magics
            # One by one: an import that fails costs no other
            imports += [ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    return found


def _run(path: Path, key: str, cells: Cells, timeout_s: float) -> tuple:
    """Run a challenge's cells and check their answer; return its verdict, why, and the lines."""
    from nbclient.client import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from nbformat import v4

    def ours(text: str) -> Any:
        return v4.new_code_cell(text, metadata={OURS: True})

    module = "from labkit.course import grading as labkit_grading"
    with tempfile.TemporaryDirectory(prefix="labkit-grade-", ignore_cleanup_errors=True) as place:
        work, result = Path(place, "work"), Path(place, "verdict.json")
        _copy(path.resolve().parent, work)
        notebook = v4.new_notebook(cells=[
            ours(f"{module}\nlabkit_grading.collect()\nimport labkit as lk"),
            *map(ours, cells[0]),
            *map(v4.new_code_cell, cells[1]),
            ours(f"{module}\nlabkit_grading.judge({key!r}, {str(result)!r}, {timeout_s!r})"),
        ])  # fmt: skip
        checking_s = 60 + 2 * REPEATS * timeout_s  # the check's runs are limited one by one
        client = NotebookClient(
            notebook, kernel_name="python3", allow_errors=True,
            timeout_func=lambda cell: checking_s if OURS in cell.metadata else timeout_s,
            shutdown_kernel="immediate", resources={"metadata": {"path": str(work)}},
            log=logging.Logger("quiet", logging.CRITICAL + 1),
        )  # fmt: skip
        root = str(Path(labkit.__file__).parents[1])
        environment = without_keys(os.environ) | {
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            "IPYTHONDIR": os.path.join(place, "ipython"),  # no start-up files of the grader's
            "LABKIT_NO_SCORE": "1", "LABKIT_WARM": "0", family.MARK: place,
        }  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with ThreadPoolExecutor(1) as thread:  # in the main one nbclient would keep Ctrl-C
            execute = client.async_execute(env=environment, **quiet)
            try:
                thread.submit(asyncio.run, execute).result()
            except CellTimeoutError:
                return "timed out", f"Stopped after {timeout_s:g} s."
            except DeadKernelError:
                pass  # then there is no result
            finally:
                family.end_marked(place)  # what the cells started, wherever it went
        cells = [cell for cell in notebook.cells if OURS not in cell.metadata]
        raised = [o for cell in cells for o in cell.outputs if o.output_type == "error"]
        error = raised[0].evalue.strip().partition("\n")[0] if raised else ""
        error = raised and f"{raised[0].ename}: {error}"[:300]
        if not result.exists():
            return "crashed", error or "Its process ended."
        verdict, why, lines = json.loads(result.read_text(encoding="utf-8"))
        if verdict == "no answer" and error and not error.startswith("NotImplemented"):
            return "crashed", error  # else nbgrader's stub of an empty answer
        return verdict, why, tuple(lines)


def _copy(folder: Path, work: Path) -> None:
    """Copy what lies beside a notebook: no notebooks (others' may), links or hidden files."""
    room = MAX_FOLDER_BYTES

    def copied(source: str, target: str) -> None:
        nonlocal room
        room -= os.path.getsize(source)
        if room < 0:
            raise ValueError(
                f"there are more than {MAX_FOLDER_BYTES // 2**20} MiB beside the notebook; give "
                "each submission a folder of its own."
            )
        shutil.copy2(source, target)

    def left_out(place: str, names: list[str]) -> set[str]:
        links = {name for name in names if os.path.islink(os.path.join(place, name))}
        return links | {name for name in names if name[0] == "." or name.endswith(".ipynb")}

    shutil.copytree(folder, work, ignore=left_out, copy_function=copied)


# In the kernel of the clean notebook

_answers: dict[str, Any] = {}  # by key; the last one counts


def collect() -> None:
    """Let checks only keep the answer from now on, drop what is printed, limit memory and files."""

    def posed(key: str) -> SimpleNamespace:
        def check(answer: Any) -> bool:
            _answers[key] = answer
            return True

        return SimpleNamespace(check=check, solution=lambda: "None while grading.")

    labkit.challenge = posed
    sys.stdout = sys.stderr = open(os.devnull, "w")
    _limit(MEMORY_BYTES, FILE_BYTES)


def judge(key: str, result: str, timeout_s: float) -> None:
    """Check the answer that was collected; write [verdict, why, lines] into `result`."""
    _limit()  # the check's runs are ours
    verdict = Challenge(all_tasks()[key], limit_s=timeout_s).check(_answers.get(key))
    found = [verdict.kind, verdict.why, verdict.lines]
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def _limit(memory: int | None = None, file: int | None = None) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has none
        import resource

        # Not RLIMIT_AS: CUDA reserves address space that it never touches
        for what, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, file)):
            hard = resource.getrlimit(what)[1]
            resource.setrlimit(what, (hard if most is None else most, hard))
