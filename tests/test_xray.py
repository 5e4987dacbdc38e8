"""The x-ray: what it sees, that it stays out of the statistics, and that its trace is kept."""

import numpy as np
import pytest
from recordings import ship

from labkit import load
from labkit.api import launch
from labkit.traces.read import xray_of


@pytest.mark.slow
def test_its_steps_enter_no_statistics_and_its_trace_is_kept_in_a_record(tiny, tmp_path):
    run = launch(tiny.but(steps=40)).wait()
    seen = run.xray_facts
    assert run.steps == len(run.loss) == 40, run.error
    assert 0 < seen["gap_us"] < seen["window_us"]
    trace = xray_of(run.data)
    assert trace.utilization == trace.cpu_exec_us / trace.step_us > 0
    assert "No device activity" in repr(trace)
    saved = load(run.save(tmp_path / "run.jsonl.gz"))
    assert saved.xray_facts == seen and xray_of(saved) == trace  # the trace stays in the folder
    shipped = tmp_path / "shipped.jsonl.gz"
    ship(tmp_path / "run.jsonl.gz", shipped, name="run", title="a run with an x-ray")
    assert xray_of(load(shipped)) == trace
    assert np.isfinite(run.each("cpu")).sum() >= 2  # the thread's time is read now and then
