"""Running a challenge's cells apart from everything: what they answer, or how they failed.

The cells run in a process of their own, in a temporary copy of the submission's folder, kept by a
supervisor as a run is: its output is capped, its time limited, and whatever it started is ended,
wherever it went. It hands over the answer in one file, read here when all its processes are gone.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course import cell_child
from labkit.course.attempt import MAX_BYTES
from labkit.course.sealed import Sealed
from labkit.course.submission import Cells
from labkit.process.family import exit_name
from labkit.results import launch as launcher
from labkit.results.event_log import EventLogResult
from labkit.spec import Pipeline

MAX_HEADER = 64 * 1024
MAX_FOLDER_BYTES, MAX_FILES = 64 * 2**20, 2000  # of a submission's folder
MAX_GROWTH_BYTES = 256 * 2**20  # what the cells may write
LOOK_S = 0.5  # between two looks at what they have written


@dataclass(frozen=True)
class Handed:
    """What came of a challenge's cells: `answer`, or a `verdict` and why."""

    verdict: str = ""  # "no answer", "refused", "crashed" or "too long"; "" with an answer
    why: str | None = None
    answer: Any = None  # a Pipeline, a dict of changes, or Sealed code


def run(path: Path, cells: Cells, seconds: float) -> Handed:
    """Run the challenge `cells` of the notebook at `path`, for `seconds` at the longest."""
    with _temporary() as place:
        keeper, work = place / "keeper", place / "work"
        keeper.mkdir()
        try:
            copy_folder(path, work)
        except (OSError, ValueError) as error:
            return Handed("crashed", f"The folder cannot be copied: {error}")
        order = {"key": cells.key, "cells": cells.cells, "before": cells.before}
        order |= {"work": str(work), "seconds": seconds}
        (keeper / cell_child.ORDER).write_text(json.dumps(order), encoding="utf-8")
        code, stopped = _run_in(keeper, work, seconds)
        if stopped:
            return stopped
        return _handed(keeper / cell_child.HANDED, code)


def copy_folder(notebook: Path, work: Path) -> None:
    """Copy the notebook's folder, without its notebooks, links and hidden files.

    Others' notebooks may lie in the same folder. Raises ValueError where it is too large.
    """
    work.mkdir()
    room, files = MAX_FOLDER_BYTES, MAX_FILES
    source = notebook.resolve().parent
    for folder, below, names in os.walk(source):
        below[:] = [name for name in below if not name.startswith(".")]
        target = work / Path(folder).relative_to(source)
        target.mkdir(exist_ok=True)
        for name in names:
            file = Path(folder, name)
            about = file.lstat()
            if name.startswith(".") or name.endswith(".ipynb") or not stat.S_ISREG(about.st_mode):
                continue
            room, files = room - about.st_size, files - 1
            if room < 0 or files < 0:
                raise ValueError(
                    f"more than {MAX_FILES} files or {MAX_FOLDER_BYTES // 2**20} MiB beside the "
                    "notebook; give each submission a folder of its own."
                )
            shutil.copyfile(file, target / name, follow_symlinks=False)


def _run_in(keeper: Path, work: Path, seconds: float) -> tuple[Any, Handed | None]:
    """Run the order in `keeper`; return its exit code, and why it was stopped where it was."""
    code = (
        f"import sys; from labkit.course.cell_child import main; main({str(keeper)!r}, sys.argv[1])"
    )
    command = [sys.executable, "-u", "-c", code]
    handle = launcher.supervised(keeper, command)
    log = EventLogResult(keeper, process=handle)
    begin = last = time.monotonic()
    stopped = []

    def look(_log: EventLogResult) -> None:
        nonlocal last
        now = time.monotonic()
        if now - begin > seconds:
            stopped.append(Handed("too long", f"Stopped after {seconds:g} s."))
        elif now - last > LOOK_S:
            last = now
            if _size(work) > MAX_FOLDER_BYTES + MAX_GROWTH_BYTES:
                limit = f"{MAX_GROWTH_BYTES // 2**20} MiB"
                stopped.append(Handed("refused", f"It wrote more than {limit}."))
        if stopped:
            handle.stop()

    try:
        log.wait(look)
    finally:
        handle.stop()
    end = log.event("end") or {}
    return end.get("code"), (stopped[0] if stopped else None)


def _handed(file: Path, code: Any) -> Handed:
    """Read what was handed over; nothing in it is trusted."""
    data = _bounded(file)
    if not data:
        if code in (-24, 152):  # SIGXCPU
            return Handed("too long", "It used up its CPU time.")
        return Handed("crashed", f"The process ended with {exit_name(code)}.")
    line, _, payload = data.partition(b"\n")
    try:
        header = json.loads(line) if len(line) <= MAX_HEADER else None
        return _read(header if isinstance(header, dict) else {}, payload)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Handed("crashed", f"What it handed over is no answer: {str(error)[:200]}")


def _read(header: dict[str, Any], payload: bytes) -> Handed:
    what, why = header.get("what"), str(header.get("why"))[:300]
    if what == "none":
        return Handed("no answer", "No answer yet.")
    if what in ("refused", "crashed"):
        missing = header.get("missing")
        return Handed(what, why + (f" ({str(missing)[:200]})" if missing else ""))
    if what == "pipeline":
        return Handed(answer=Pipeline(**header["pipeline"]))
    if what == "changes" and isinstance(header.get("changes"), dict):
        changes = header["changes"].items()  # JSON has no tuples
        return Handed(answer={n: tuple(v) if isinstance(v, list) else v for n, v in changes})
    if what in ("function", "class") and payload:
        return Handed(answer=Sealed(payload, what))
    if what == "other":
        kind = str(header.get("type"))[:60]
        return Handed("not yet", f"An answer is a Pipeline, dict, function or class; not {kind}.")
    raise ValueError("nothing in it")


def _bounded(file: Path) -> bytes:
    """The file's bytes; b"" where there is none, or one that is too large or no file."""
    most = MAX_BYTES + MAX_HEADER
    try:
        with open(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                return b""
            data = opened.read(most + 1)
    except OSError:
        return b""
    return data if len(data) <= most else b"{}\n"


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


@contextmanager
def _temporary() -> Iterator[Path]:
    """A folder that is gone afterwards, whatever was done to what is in it."""
    place = Path(tempfile.mkdtemp(prefix="labkit-grade-")).resolve()
    try:
        yield place
    finally:
        for folder, below, _ in os.walk(place):
            for name in below:
                inside = os.path.join(folder, name)
                if not os.path.islink(inside):
                    os.chmod(inside, 0o700)
        shutil.rmtree(place, ignore_errors=True)
