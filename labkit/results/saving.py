"""Writing files for the user: whole or not at all, and never in the place of somebody else's."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By a figure's suffix: matplotlib's key for the program that drew it, and what that writes
MARKS = {
    ".png": ("Software", b"Software\0labkit"),
    ".svg": ("Creator", b"<dc:title>labkit<"),
    ".pdf": ("Creator", b"/Creator (labkit)"),
}


class FileKept(FileExistsError, ValueError):
    """A file that is not labkit's own is not replaced unasked; the message names the remedy."""


def check(path: str | os.PathLike[str], ours: Callable[[Path], bool], overwrite: bool) -> None:
    """Raise FileKept where `path` is a file that has something in it and is not `ours`."""
    path = Path(path)
    if overwrite or not path.is_file() or path.stat().st_size == 0 or ours(path):
        return
    raise FileKept(
        f"{path} is there already and not what would be written: give another name, or replace it "
        "with overwrite=True (in the terminal: --force)."
    )


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Give a file to write to, which takes the place of `path` when the block ends without error.

    Otherwise, on a full disk or an interrupt, what was at `path` stays as it was. Raises OSError.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not path.is_file():  # /dev/stdout
        with open(path, "wb") as file:
            yield file
        return
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with open(unfinished, "xb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def save_figure(figure: Figure, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a matplotlib Figure to `path`, in the format of its suffix; return the path.

    Raises FileKept where another program's file is there, ValueError on an unknown suffix.
    """
    path = Path(path)
    check(path, is_figure, overwrite)
    suffix = path.suffix.lower()
    metadata = {MARKS[suffix][0]: "labkit"} if suffix in MARKS else None
    with replacing(path) as file:
        figure.savefig(file, format=suffix.lstrip(".") or "png", metadata=metadata)
    return path


def is_figure(path: Path) -> bool:
    """Return whether `save_figure` wrote the file; False for formats that hold no mark of it."""
    suffix = path.suffix.lower()
    return suffix in MARKS and MARKS[suffix][1] in path.read_bytes()
