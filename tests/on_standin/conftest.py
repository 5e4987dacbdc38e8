"""Tests on a stand-in GPU. A process keeps it for good, so test_on_standin.py gives them one."""

import os
import sys
from pathlib import Path

import pytest

if not os.environ.get("LABKIT_ON_STANDIN"):
    collect_ignore_glob = ["*"]
sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def cards():
    """Install cards by name, on a clock of their own: `gpu = cards("H200", "T4")`."""
    import contextlib

    import standin_gpu

    with contextlib.ExitStack() as held:

        def install(*names, **settings):
            found = [standin_gpu.CARDS[name] for name in names]
            return held.enter_context(standin_gpu.installed(*found, **settings))

        yield install
