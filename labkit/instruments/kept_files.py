"""Small files of what was found out about this machine, for later runs."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.stamps.events import private


def keep(path: Path, text: str) -> None:
    """Write `text` at once: another run on another card may be writing the same."""
    part = path.with_suffix(f".{os.getpid()}")
    with open(part, "w", opener=private) as file:
        file.write(text)
    part.replace(path)
