"""Runs on_standin.py in a process that has a stand-in GPU from its start, and keeps it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="compiled by g++")
def test_on_a_stand_in_gpu():
    file = Path(__file__).with_name("on_standin.py")
    # without the plugin for notebooks, which takes seconds to import
    options = ["-q", "-o", "addopts=", "-p", "no:nbval", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, file]
    # Not as an xdist worker: it would wait for its turn, which this very test holds
    alone = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=alone)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
