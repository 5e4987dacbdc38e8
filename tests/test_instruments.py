"""The meters of a CPU: what a process and its workers use, and how long a thread is in line."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from labkit.bench.telemetry import CpuMeter


@pytest.mark.slow
def test_a_worker_that_ends_while_it_is_read_is_a_gap_and_not_an_idle_core(monkeypatch):
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter = CpuMeter(os.getpid())
        cpu_times = psutil.Process.cpu_times
        assert meter.read()["rss_gib"] > 0 and worker.pid in {p.pid for p in meter._family()}

        def gone(process):
            if process.pid == worker.pid:
                raise psutil.NoSuchProcess(process.pid)
            return cpu_times(process)

        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "cpu_times", gone)
            assert meter.read()["own_cpu"] is None
        time.sleep(0.3)
        assert meter.read()["own_cpu"] > 0.05  # what it used meanwhile is not lost
    finally:
        worker.kill()
        worker.wait()


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
