"""Writes the record of a run to one file."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from labkit.results import privacy, saving
from labkit.results.record import opened_record, record_file


def save_record(
    source: Path,
    path: Path,
    extra_lines: Callable[[], Iterable[str]],
    overwrite: bool,
    anonymous: bool,
) -> None:
    """Write the record `source`, and some lines more, to `path`: see `EventLogResult.save`."""
    same = path.exists() and os.path.samefile(record_file(source), path)
    if same and not anonymous:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        old = files.enter_context(opened_record(source))
        new = files.enter_context(saving.replacing(path, overwrite))
        if path.suffix == ".gz":
            new = files.enter_context(gzip.GzipFile("", "wb", fileobj=new))
        new.writelines(privacy.anonymous(old) if anonymous else old)
        new.writelines(f"{line}\n".encode() for line in extra_lines())
