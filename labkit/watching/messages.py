"""What watching says while it goes on, where the script's own output is not touched."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Say something on stderr; stdout is the script's."""
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr, flush=True)
