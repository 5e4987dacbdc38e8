"""What watching says while it goes on, where the script's own output is not touched."""

from __future__ import annotations

import contextlib
import sys


def say(text: str, by: str = "labkit.watch") -> None:
    """Say something on stderr, where that is open; stdout is the script's."""
    if sys.stderr is not None:  # else it would be printed on stdout
        with contextlib.suppress(Exception):  # it may be closed by now
            print(f"{by}: {text}", file=sys.stderr, flush=True)
