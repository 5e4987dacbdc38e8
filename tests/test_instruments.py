"""Every instrument is held against the true intervals, and its error follows by hand."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import labkit as lk
from labkit.bench.telemetry import CpuMeter
from labkit.diagnosis.instruments import instruments


def by_name(part, period_s=0.06, busy_s=0.01, telemetry=()):
    """The reading of a run of 40 s whose device works at the end of each period."""
    ends = np.arange(period_s, 40.0, period_s)
    run = SimpleNamespace(
        busy=np.column_stack([ends - busy_s, ends]),
        length_s=ends[-1],
        telemetry=telemetry,
        xray=None,
        launches_only=False,
        seconds=lambda t_ns: t_ns / 1e9,
        machine=SimpleNamespace(kind="gpu"),
    )
    return next(reading for reading in instruments(run) if part in reading.name)


def test_the_true_intervals_are_off_by_nothing_and_a_one_second_window_shows_no_teeth():
    true = by_name("true intervals")
    window = by_name("nvidia-smi -l 1")
    assert true.distance_pp == pytest.approx(0, abs=1e-6) and true.shows_teeth
    assert window.mean_error_pp == pytest.approx(0, abs=1)
    assert window.distance_pp == pytest.approx(100 * 2 * (1 / 6) * (5 / 6), abs=1)
    assert window.shows_teeth is False and window.source.startswith("computed")
    assert by_name("nvidia-smi -l 1", period_s=8.0, busy_s=4.0).shows_teeth
    assert len(by_name("W&B").shares) == 3  # every 15 s: a few unrelated points


def test_a_run_tells_what_its_instruments_showed():
    views = lk.recorded("stall-2").instruments()
    assert [view.shows_teeth for view in views if "true intervals" in view.name] == [True]
    assert "nvidia-smi -l 1" in repr(views)


def test_a_metric_that_was_not_read_is_missing_and_buffered_samples_have_their_own_stamps():
    unread = [{"t_ns": 10**9 * k, "gpu_now": None, "gpu": None} for k in range(10)]
    reading = by_name("as NVML tells it", telemetry=unread)
    assert len(reading.shares) == 0 and reading.mean_error_pp is None
    buffered = [{"t_ns": 0, "gpu": [[2 * 10**9, 0.5], [3 * 10**9, 0.25]]}]
    reading = by_name("driver's own samples", telemetry=buffered)
    assert reading.times_s.tolist() == [2, 3] and reading.shares.tolist() == [0.5, 0.25]
    with pytest.raises(ValueError, match="0 steps"):
        instruments(SimpleNamespace(busy=np.empty((0, 2))))


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
