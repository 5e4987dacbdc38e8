"""Grade submitted notebooks: their challenge cells run in a clean notebook, their answers checked.

A challenge in a notebook is the code cell that calls `lk.challenge("KEY").check(answer)`, with the
cells before it that are tagged "challenge" (or are nbgrader's cells for an answer) and check
nothing. For each of them a clean notebook is made: the import statements of all cells before, then
those cells, then a check of ours. So cells must not rely on variables made elsewhere. Where a key
is checked twice, the last cell counts.

nbclient runs it in a kernel of its own, in a copy of the notebook's folder, without keys in its
environment, within limits of time and memory; all its processes are ended afterwards. While the
submitted cells run, `lk.challenge` only collects answers: what they print or compare counts for
nothing. This guards against accidents. It is not a sandbox: strangers' code belongs in a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import labkit
from labkit.course.challenge import REPEATS, Challenge
from labkit.course.submission import BadNotebook, Cells, notebooks, read
from labkit.course.task import all_tasks
from labkit.process import family
from labkit.results.result import Result
from labkit.results.table import Table

TIMEOUT_S = 60.0  # for each cell of a challenge, and for each run of the check
MEMORY_BYTES = 4 * 2**30  # for a challenge's cells (RLIMIT_DATA)
MAX_FOLDER_BYTES = 64 * 2**20  # of what lies beside it
OURS = "labkit"  # in the metadata of cells that were not submitted


@dataclass(frozen=True)
class Row:
    """A notebook and a challenge: the verdict, what was measured, and why.

    `verdict` is "passed", "not yet", "no answer", "crashed", "timed out" or "not a notebook".
    """

    notebook: str
    challenge: str | None
    verdict: str
    why: str | None = None
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {**asdict(self), "passed": self.verdict == "passed", "lines": list(self.lines)}


class Grades(Result, tuple):
    """The rows of a grading, in the order of the notebooks; prints as a table."""

    @property
    def bad(self) -> list[Row]:
        """The files that are not notebooks."""
        return [row for row in self if row.verdict == "not a notebook"]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"rows": [row.to_dict() for row in self], "bad": len(self.bad)}

    def table(self) -> Table:
        """A row for each notebook and challenge, fit for a terminal."""
        rows = [
            (row.notebook, row.challenge, row.verdict, row.why or "; ".join(row.lines))
            for row in self
        ]
        passed = sum(row.verdict == "passed" for row in self)
        bad = f"; {len(self.bad)} not a notebook" if self.bad else ""
        return Table(
            [[cell and _plain(cell) for cell in row] for row in rows],
            ("notebook", "challenge", "verdict", "why"),
            foot=(f"{passed} of {len(self) - len(self.bad)} passed{bad}",),
            left=range(4),
        )


def grade(
    given: Iterable[str | os.PathLike],
    *,
    only: Iterable[str] | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[int, int, str], None] | None = None,
) -> Grades:
    """Grade the challenges in submitted notebooks; return one row for each.

    Args:
        given: Notebooks, or folders with notebooks below them.
        only: Keys of the challenges to grade: a row for each of them and each notebook, whether
            it has them or not. None: those that each notebook has.
        timeout_s: For each cell of a challenge, and for each run of its check, s.
        progress: Called with (done, total, what is next).

    Raises:
        ValueError: An unknown key, a folder without notebooks, a bad timeout.
    """
    wanted, tasks = list(dict.fromkeys(only or ())), all_tasks()
    if unknown := [key for key in wanted if key not in tasks]:
        raise ValueError(f"Unknown challenge {unknown[0]!r}; available: {', '.join(tasks)}.")
    if importlib.util.find_spec("nbclient") is None:
        raise RuntimeError("Grading needs nbclient: pip install 'labkit[notebooks]'.")
    if not 0 < timeout_s <= 3600:
        raise ValueError(f"timeout {timeout_s:g}: give seconds, at most 3600.")
    rows: list[Row] = []
    found = notebooks(map(Path, given))
    for done, path in enumerate(found):
        if progress is not None:
            progress(done, len(found), str(path))
        try:
            has = {cells.key: cells for cells in read(path)}
        except BadNotebook as bad:
            rows.append(Row(str(path), None, "not a notebook", str(bad)))
            continue
        rows += [
            _graded(path, key, has.get(key), timeout_s) for key in wanted or has
        ] or [Row(str(path), None, "no answer", "No cell checks a challenge.")]  # fmt: skip
    return Grades(rows)


def _graded(path: Path, key: str, cells: Cells | None, timeout_s: float) -> Row:
    if cells is None:
        return Row(str(path), key, "no answer", "No cell checks it.")
    if key not in all_tasks():
        return Row(str(path), key, "crashed", "Unknown challenge.")
    try:
        return Row(str(path), key, **_run(path, cells, timeout_s))
    except Exception as error:  # one row's trouble must not cost the others theirs
        why = f"It could not be graded: {type(error).__name__}: {error}"
        return Row(str(path), key, "crashed", why[:300])


def _plain(text: str) -> str:
    """Return text of a submission on one line, without what a terminal would obey."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= 200 else shown[:199] + "…"


# -- running it ------------------------------------------------------------------------------------


def _run(path: Path, cells: Cells, timeout_s: float) -> dict[str, Any]:
    """Run a challenge's cells and check their answer; return the fields of its row."""
    from nbclient.client import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    with tempfile.TemporaryDirectory(prefix="labkit-grade-", ignore_cleanup_errors=True) as place:
        work, result = Path(place, "work"), Path(place, "verdict.json")
        _copy(path.resolve().parent, work)
        notebook = _clean_notebook(cells, result, timeout_s)
        checking_s = 60 + 2 * REPEATS * timeout_s  # the check's runs are limited one by one
        client = NotebookClient(
            notebook, kernel_name="python3", allow_errors=True,
            timeout_func=lambda cell: checking_s if OURS in cell.metadata else timeout_s,
            shutdown_kernel="immediate", resources={"metadata": {"path": str(work)}},
            log=logging.Logger("quiet", logging.CRITICAL + 1),
        )  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with ThreadPoolExecutor(1) as thread:  # in the main one nbclient would keep Ctrl-C
            execute = client.async_execute(env=_environment(place), **quiet)
            done = thread.submit(asyncio.run, execute)
            try:
                done.result()
            except CellTimeoutError:
                return {"verdict": "timed out", "why": f"Stopped after {timeout_s:g} s."}
            except DeadKernelError:
                pass  # then there is no result
            finally:
                family.end_marked(place)  # what the cells started, wherever it went
        error = _error(notebook)
        if not result.exists():
            return {"verdict": "crashed", "why": error or "Its process ended."}
        found = json.loads(result.read_text(encoding="utf-8"))
        if found["verdict"] == "no answer" and error and not error.startswith("NotImplemented"):
            return {"verdict": "crashed", "why": error}  # else nbgrader's stub of an empty answer
        return {**found, "lines": tuple(found["lines"])}


def _clean_notebook(cells: Cells, result: Path, timeout_s: float) -> Any:
    """Return a notebook with imports, the submitted cells, and around them cells of ours."""
    from nbformat import v4

    def ours(text: str) -> Any:
        return v4.new_code_cell(text, metadata={OURS: True})

    module = "from labkit.course import grading as labkit_grading"
    check = f"labkit_grading.judge({cells.key!r}, {str(result)!r}, {timeout_s!r})"
    return v4.new_notebook(
        cells=[
            ours(f"{module}\nlabkit_grading.collect()\nimport labkit as lk"),
            *map(ours, cells.imports()),
            *map(v4.new_code_cell, cells.cells),
            ours(f"{module}\n{check}"),
        ]
    )


def _error(notebook: Any) -> str | None:
    """Return what the submitted cells raised first, and the first import that failed."""
    raised = {True: [], False: []}
    for cell in notebook.cells:
        for output in cell.outputs:
            if output.output_type == "error":
                said = (output.evalue.strip().splitlines() or [""])[0]
                raised[OURS in cell.metadata].append(f"{output.ename}: {said}"[:300])
    missing = f" ({raised[True][0][:200]})" if raised[True] else ""
    return raised[False][0] + missing if raised[False] else None


def _environment(place: str) -> dict[str, str]:
    root = str(Path(labkit.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return family.without_keys(os.environ) | {
        "PYTHONPATH": os.pathsep.join(paths),
        "IPYTHONDIR": os.path.join(place, "ipython"),  # no start-up files of the grader's
        "LABKIT_NO_SCORE": "1",
        "LABKIT_WARM": "0",
        family.MARK: place,
    }


def _copy(folder: Path, work: Path) -> None:
    """Copy what lies beside a notebook: no notebooks (others' may), links or hidden files."""

    def skipped(_place: str, names: list[str]) -> list[str]:
        place = Path(_place)
        return [
            n
            for n in names
            if n[0] == "." or n.endswith(".ipynb") or place.joinpath(n).is_symlink()
        ]

    files = (p for p in folder.rglob("*") if p.is_file() and not skipped(str(p.parent), [p.name]))
    room = MAX_FOLDER_BYTES
    for file in files:
        room -= file.stat().st_size
        if room < 0:
            raise ValueError(
                f"there are more than {MAX_FOLDER_BYTES // 2**20} MiB beside the notebook; give "
                "each submission a folder of its own."
            )
    shutil.copytree(folder, work, ignore=skipped)


# -- in the kernel of the clean notebook -----------------------------------------------------------


class Collector:
    """Stands in for a challenge while submitted cells run: its check only keeps the answer."""

    answers: dict[str, Any] = {}
    start = None

    def __init__(self, key: str):
        self.key = key

    def check(self, answer: Any) -> Collector:
        """Keep the answer; the last one counts."""
        self.answers[self.key] = answer
        return self

    def solution(self) -> str:
        """Return none."""
        return "No solutions while grading."


def collect() -> None:
    """Collect answers from now on, drop what is printed, and limit memory."""
    labkit.challenge = Collector
    sys.stdout = sys.stderr = open(os.devnull, "w")
    _limit_memory(MEMORY_BYTES)


def judge(key: str, result: str, timeout_s: float) -> None:
    """Check the answer that was collected; write {verdict, why, lines} into `result`."""
    _limit_memory(None)  # the check's runs are ours
    verdict = Challenge(all_tasks()[key], limit_s=timeout_s).check(Collector.answers.get(key))
    found = {"verdict": verdict.kind, "why": verdict.why, "lines": verdict.lines}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def _limit_memory(most: int | None) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has none
        import resource

        # Not RLIMIT_AS: CUDA reserves address space that it never touches
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard if most is None else most, hard))
