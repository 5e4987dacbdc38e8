"""`labkit lab [FOLDER]`: the course of the installed version, copied to a folder, opened there."""

from __future__ import annotations

import filecmp
import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from labkit.results.result import Result, Table
from labkit.watching.run_folders import run_in_foreground

PACKAGE = Path(__file__).parents[1]
NOT_COPIED = ("conftest.py", "__pycache__", ".*", "*.gif")
FIRST = "00_start_here.ipynb"


@dataclass(frozen=True, repr=False)
class Lab(Result):
    """The course in a folder of the reader's: its files that are new there, and those kept."""

    folder: str
    copied: list[str]
    kept: list[str]  # the reader's own, other than the course's

    def table(self) -> Table:
        """Return what was copied, in one line, and what was not."""
        kept = [f"kept as you have it: {name}" for name in self.kept]
        return Table((), title=f"{self.folder}: {len(self.copied)} files copied", foot=kept)


def course() -> Path:
    """Return the folder of the notebooks: in an installed package, or beside it in a clone."""
    installed = PACKAGE / "notebooks"
    return installed if installed.is_dir() else PACKAGE.parent / "notebooks"


def copy_course(folder: str | os.PathLike[str]) -> Lab:
    """Copy the course to `folder`; a file that is there is never replaced.

    Raises OSError where nothing can be written there.
    """
    lab = Lab(os.path.abspath(folder), [], [])

    def copy(source: str, target: str) -> None:
        name = os.path.relpath(target, folder)
        if not os.path.exists(target):
            shutil.copyfile(source, target)
            lab.copied.append(name)
        elif not filecmp.cmp(source, target, shallow=False):
            lab.kept.append(name)

    ignored = shutil.ignore_patterns(*NOT_COPIED)
    shutil.copytree(course(), folder, ignore=ignored, copy_function=copy, dirs_exist_ok=True)
    return lab


def open_lab(folder: str | os.PathLike[str]) -> int:
    """Open a copied course in JupyterLab, until that ends; return its exit code.

    Raises ValueError where JupyterLab is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise ValueError("JupyterLab is not installed: pip install 'gpu-labkit[notebooks]'.")
    first = os.path.join(folder, FIRST)
    command = [sys.executable, "-m", "jupyterlab", first]
    return run_in_foreground(command, dict(os.environ), stdout=None)
