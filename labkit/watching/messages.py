"""What watching says while it goes on, where the script's own output is not touched."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Say something on stderr, where there is one; stdout is the script's."""
    if sys.stderr is None:  # then `print` would take stdout
        return
    with contextlib.suppress(Exception):  # it may be closed
        print(f"labkit.watch: {text}", file=sys.stderr, flush=True)
