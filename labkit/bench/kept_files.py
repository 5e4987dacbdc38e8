"""Small files of what was found out about this machine, for later runs."""

from __future__ import annotations

import os
from pathlib import Path


def keep(path: Path, text: str) -> None:
    """Write `text` at once: another run on another card may be writing the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.replace(path)
