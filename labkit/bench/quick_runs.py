"""Quick runs, as the tests of notebooks ask for them by LABKIT_QUICK=1."""

from __future__ import annotations

import os

QUICK_SHARE = 0.25  # of its time limit that a quick run takes; without one, of its steps


def quick_run() -> bool:
    """Return whether LABKIT_QUICK=1 asks for short runs and few repeats."""
    return os.environ.get("LABKIT_QUICK") == "1"
