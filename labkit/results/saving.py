"""Writing files for the user: whole or not at all, and never in the place of anybody's work.

A file is replaced unasked only if it is, to the byte, what labkit wrote once, or writes now: a list
of digests in the cache folder tells.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from labkit.process import folders
from labkit.stamps.folder_rights import is_owned, private, text_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN = "written"  # in the cache folder: the digest of each file, on a line
FIGURES = (".png", ".svg", ".pdf")


class FileKept(FileExistsError, ValueError):
    """A file with anybody's work in it is not replaced unasked; the message names the remedy."""


def check(path: str | os.PathLike[str], overwrite: bool, new: str | None = None) -> None:
    """Raise FileKept where `path` is a file that is not as labkit wrote it.

    `new` is the digest of what is written now.
    """
    path = Path(path)
    if overwrite or not path.is_file() or path.stat().st_size == 0:
        return
    known = text_of(folders.home() / WRITTEN).split()
    if _digest(path) not in (new, *known):
        raise FileKept(
            f"{path} is there already and not as labkit wrote it: give another name, or replace it "
            "with overwrite=True."
        )


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write to, which takes the place of `path` when the block ends without error.

    Otherwise, on a full disk or an interrupt, what was at `path` stays as it was. Raises FileKept
    where `check` does, OSError where nothing can be written.
    """
    if os.path.islink(path) and not is_owned(os.lstat(path)):
        raise FileKept(f"{path} is a link that another user made: give another name.")
    path = Path(os.path.realpath(path))  # a link of one's own stays one
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with open(unfinished, "xb") as file:
            yield file
        digest = _digest(unfinished)
        check(path, overwrite, digest)
        with (  # where it cannot be noted, it is asked about another time
            contextlib.suppress(OSError),
            open(folders.home() / WRITTEN, "a", opener=private) as ledger,
        ):
            ledger.write(f"{digest}\n")
        if path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def save_figure(figure: Figure, path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Write a matplotlib Figure in the format of the path's suffix; raises what `replacing` does.

    ValueError: the suffix is not known.
    """
    path = Path(path)
    with replacing(path, overwrite) as file:
        figure.savefig(file, format=path.suffix.lower().lstrip(".") or "png")
    return path


def save_text(path: str | os.PathLike[str], text: str, overwrite: bool = False) -> Path:
    """Write a text; raises what `replacing` does."""
    with replacing(path, overwrite) as file:
        file.write(text.encode())
    return Path(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
