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
from labkit.results.timeline import busy_until


def a_run(period_s=0.06, busy_s=0.01, seconds=40.0, telemetry=()):
    """A stand-in for a Run whose device works at the end of each period."""
    ends = np.arange(period_s, seconds, period_s)
    return SimpleNamespace(
        busy=np.column_stack([ends - busy_s, ends]),
        telemetry=list(telemetry),
        seconds=lambda t_ns: t_ns / 1e9,
        machine=SimpleNamespace(kind="gpu"),
        xray=None,
    )


def by_name(run, part):
    return next(reading for reading in lk.instruments(run) if part in reading.name)


def test_the_true_intervals_are_off_by_nothing_and_a_one_second_window_shows_no_teeth():
    true = by_name(a_run(), "true intervals")
    assert true.distance_pp == pytest.approx(0, abs=1e-6)
    assert true.shows_teeth
    window = by_name(a_run(), "nvidia-smi -l 1")
    assert window.mean_error_pp == pytest.approx(0, abs=1)
    assert window.distance_pp == pytest.approx(100 * 2 * (1 / 6) * (5 / 6), abs=1)
    assert window.shows_teeth is False and window.source.startswith("computed")
    assert by_name(a_run(period_s=8.0, busy_s=4.0), "nvidia-smi -l 1").shows_teeth
    assert len(by_name(a_run(), "W&B").shares) == 3  # every 15 s: a few unrelated points


def test_a_metric_that_was_not_read_is_missing_and_buffered_samples_have_their_own_stamps():
    run = a_run(telemetry=[{"t_ns": 10**9 * k, "gpu_now": None, "gpu": None} for k in range(10)])
    reading = by_name(run, "as NVML tells it")
    assert len(reading.shares) == 0 and reading.mean_error_pp is None
    assert "none in this run" in repr(lk.instruments(run))
    run = a_run(telemetry=[{"t_ns": 0, "gpu": [[2 * 10**9, 0.5], [3 * 10**9, 0.25]]}])
    reading = by_name(run, "driver's own samples")
    assert reading.times_s.tolist() == [2, 3] and reading.shares.tolist() == [0.5, 0.25]


def test_busy_time_adds_up_inside_and_between_intervals_and_no_steps_are_refused():
    busy = np.array([[1.0, 2.0], [4.0, 6.0]])
    moments = np.array([0.0, 1.5, 3.0, 5.0, 9.0])
    assert busy_until(busy, moments).tolist() == [0, 0.5, 1, 2, 3]
    with pytest.raises(ValueError, match="0 steps"):
        lk.instruments(SimpleNamespace(busy=np.empty((0, 2))))


def test_the_figure_has_a_row_for_each_instrument_that_read_something():
    views = lk.instruments(lk.recorded("batch-16"))
    shown = [reading for reading in views if len(reading.shares)]
    assert len(views.plot().axes) == len(shown) >= 2
    assert "W&amp;B" in views._repr_html_()


@pytest.mark.slow
def test_a_worker_that_ends_while_it_is_read_is_a_gap_and_not_an_idle_core(monkeypatch):
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter, cpu_times = CpuMeter(os.getpid()), psutil.Process.cpu_times
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
