"""Writing files for the user: whole or not at all, and never unasked in the place of another."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from labkit.stamps.folder_rights import is_owned


class FileKept(FileExistsError, ValueError):
    """A file that is there is not replaced unasked; the message names the remedy."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write to, which takes the place of `path` when the block ends without error.

    Otherwise, on a full disk or an interrupt, what was at `path` stays as it was. Raises FileKept
    where `path` is a file with anything in it, OSError where nothing can be written.
    """
    if not overwrite and os.path.isfile(path) and os.path.getsize(path):
        raise FileKept(
            f"{path} is there already: give another name, or replace it with overwrite=True."
        )
    if os.path.islink(path) and not is_owned(os.lstat(path)):
        raise FileKept(f"{path} is a link that another user made: give another name.")
    path = Path(os.path.realpath(path))  # a link of one's own stays one
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with open(unfinished, "xb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def save_text(path: str | os.PathLike[str], text: str, overwrite: bool = False) -> Path:
    """Write a text; raises what `replacing` does."""
    with replacing(path, overwrite) as file:
        file.write(text.encode())
    return Path(path)
