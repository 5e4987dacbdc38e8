"""Grading submitted notebooks: their challenge cells are run again, their answers checked here.

A challenge in a notebook is the code cell that calls `lk.challenge("KEY").check(answer)`, with the
cells before it that are tagged "challenge" (or are nbgrader's cells for an answer) and check
nothing. Of all other cells only the import statements are done: a challenge's cells are
self-contained otherwise. Where a key is checked twice, the last cell counts.

Each challenge's cells run in a process of their own (`cell_process`), in a copy of the notebook's
folder, within limits of time, memory, output and files, and with other folders, the network and
other processes out of reach (`labkit.course.confine`). All that comes out is the answer: a Pipeline
or changes as JSON, code as a pickle that only the bench opens, confined too. What a cell prints
counts for nothing. So a submission that hangs, crashes or pries costs its own rows. Code that is
graded runs with your rights all the same, and can lie about itself in the bench: with strangers,
grade in a container.
"""

from __future__ import annotations

import contextlib
import html
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course import cell_process, tasks
from labkit.course.challenge import Challenge
from labkit.course.confine import REFUSED
from labkit.course.sealed import Sealed
from labkit.course.submission import BadNotebook, Cells, notebooks, read
from labkit.course.task import CodeTask
from labkit.process import launcher
from labkit.spec import Pipeline

TIMEOUT_S = 60.0  # for a challenge's cells, and for each run of the check
VERDICTS = (
    "passed", "not yet", "no answer", "refused", "crashed", "too long", "no notebook",
)  # fmt: skip
MAX_WHY = 300

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Row:
    """One notebook and challenge: a verdict of `VERDICTS`, what was measured, and why."""

    notebook: str
    challenge: str | None
    verdict: str
    why: str | None = None
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "notebook": self.notebook, "challenge": self.challenge, "verdict": self.verdict,
            "passed": self.verdict == "passed", "why": self.why, "lines": list(self.lines),
        }  # fmt: skip

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row as text, fit for a terminal."""
        said = self.why or "; ".join(self.lines)
        return _plain(self.notebook), _plain(self.challenge or "-"), self.verdict, _plain(said)


class Grades(tuple):
    """The rows of a grading, in the order of the notebooks; prints as a table."""

    HEAD = ("notebook", "challenge", "verdict", "why")

    @property
    def bad(self) -> list[Row]:
        """The files that are no notebooks."""
        return [row for row in self if row.verdict == "no notebook"]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {"rows": [row.to_dict() for row in self], "bad": len(self.bad)}

    def __repr__(self) -> str:
        table = [self.HEAD, *(row.cells for row in self)]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines = []
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        passed = sum(row.verdict == "passed" for row in self)
        count = f"{passed} of {len(self) - len(self.bad)} passed"
        bad = f"; {len(self.bad)} no notebook" if self.bad else ""
        return "\n".join([*lines, count + bad])

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(line(row.cells, "td") for row in self)
        return f"<table>{line(self.HEAD, 'th')}{body}</table>"


def grade(
    given: Iterable[str | os.PathLike],
    *,
    only: Iterable[str] | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> Grades:
    """Grade the challenges in submitted notebooks; return one row for each.

    Args:
        given: Notebooks, or folders with notebooks below them.
        only: Keys of the challenges to grade: a row for each of them and each notebook, whether
            it has them or not. None: those that each notebook has.
        timeout_s: For a challenge's cells, and for each run of its check, s.
        progress: Called with (done, total, what is next).

    Raises:
        ValueError: A key that there is not, a folder without notebooks, a bad timeout.
    """
    wanted = list(dict.fromkeys(only or ()))
    if unknown := [key for key in wanted if key not in tasks.TASKS]:
        raise ValueError(f"challenge {unknown[0]!r}: there are {', '.join(tasks.TASKS)}.")
    if not 0 < timeout_s <= 3600:
        raise ValueError(f"timeout {timeout_s:g}: give seconds, at most 3600.")
    rows: list[Row] = []
    found = notebooks([os.fspath(each) for each in given])
    with _surroundings():
        for done, path in enumerate(found):
            if progress is not None:
                progress(done, len(found), str(path))
            rows += _grade_notebook(path, wanted, timeout_s)
    return Grades(rows)


def _grade_notebook(path: Path, wanted: list[str], timeout_s: float) -> list[Row]:
    name = str(path)
    try:
        submission = read(path)
    except BadNotebook as bad:
        return [Row(name, None, "no notebook", str(bad))]
    has = {cells.key: cells for cells in submission.challenges}
    keys = wanted or list(has)
    if not keys:
        return [Row(name, None, "no answer", "No cell checks a challenge.")]
    return [_grade_challenge(path, key, has.get(key), timeout_s) for key in keys]


def _grade_challenge(path: Path, key: str, cells: Cells | None, timeout_s: float) -> Row:
    if cells is None:
        return Row(str(path), key, "no answer", "No cell checks it.")
    if key not in tasks.TASKS:
        return Row(str(path), key, "crashed", "There is no such challenge.")
    try:
        handed = cell_process.run(path, cells, timeout_s)
        if handed.verdict:
            return Row(str(path), key, handed.verdict, handed.why)
        return _checked(path, key, handed.answer, timeout_s)
    except Exception as error:  # one row's trouble must not cost the others theirs
        why = f"It could not be graded: {type(error).__name__}: {error}"
        return Row(str(path), key, "crashed", why[:MAX_WHY])


def _checked(path: Path, key: str, answer: Pipeline | dict | Sealed, timeout_s: float) -> Row:
    """Check an answer in the bench, as the reader's own kernel would."""
    challenge = Challenge(tasks.TASKS[key])
    if isinstance(answer, Sealed) and not isinstance(challenge.task, CodeTask):
        why = f"The answer is not code, and this is a {answer.kind}."
        return Row(str(path), key, "not yet", why)
    with _Limit(timeout_s) as limit:
        verdict = challenge.check(answer)
    found, why = ("passed" if verdict.passed else "not yet"), verdict.why
    if limit.stopped and not verdict.passed:
        found, why = "too long", f"A run was stopped after {timeout_s:g} s."
    elif why and REFUSED in why:
        found = "refused"
    elif why and why.startswith("It did not finish"):
        found = "crashed"
    return Row(str(path), key, found, why[:MAX_WHY] if why else None, verdict.lines)


class _Limit:
    """Stops every run that takes longer than it may, while it is entered."""

    def __init__(self, seconds: float):
        self.seconds, self.stopped = seconds, False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Limit:
        self._before = list(launcher.runs)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        since: dict[Any, float] = {}
        while not self._over.wait(0.1):
            for handle in list(launcher.runs):
                if handle in self._before or handle.process.poll() is not None:
                    continue
                if time.monotonic() - since.setdefault(handle, time.monotonic()) > self.seconds:
                    self.stopped = True
                    handle.stop()


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """What the check's runs find: caches and temporary files of this grading only, no score."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="labkit-grade-", ignore_cleanup_errors=True) as place:
        caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TMPDIR": ""}
        os.environ.update({name: os.path.join(place, sub) for name, sub in caches.items()})
        os.environ["LABKIT_NO_SCORE"] = "1"
        os.environ.setdefault("USER", "grader")  # /etc/passwd is out of the bench's reach
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _plain(text: str) -> str:
    """Text of a submission without what a terminal would obey; one line, not too long."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= 200 else shown[:199] + "…"
