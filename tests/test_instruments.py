"""The meters of a CPU: what a process and its workers use, and how long a thread is in line."""

import os
import subprocess
import sys
import time

import pytest

from labkit.instruments.telemetry import CpuMeter


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the time in line is Linux's schedstat")
def test_a_thread_that_shares_its_core_stands_in_line():
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        time.sleep(0.5)
        meter = CpuMeter(both[0].pid)
        assert meter.read()["launch_line"] is None  # nothing to compare with yet
        time.sleep(0.5)
        assert 0.2 < meter.read()["launch_line"] <= 1.0
    finally:
        for process in both:
            process.kill()
            process.wait()
