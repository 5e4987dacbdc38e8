"""The x-ray: what it sees, that it stays out of the statistics, and that its trace is kept."""

import numpy as np
import pytest
from recordings import ship

from labkit import load
from labkit.api import launch


@pytest.mark.slow
def test_its_steps_enter_no_statistics_and_its_trace_is_kept_in_a_record(tiny, tmp_path):
    run = launch(tiny.but(steps=40)).wait()
    seen = run.xray_facts
    assert run.steps == len(run.loss) == 40, run.error
    assert 0 < seen["gap_us"] < seen["window_us"]
    assert run.xray.utilization == run.xray.cpu_exec_us / run.xray.step_us > 0
    assert "No device activity" in repr(run.xray)
    saved = load(run.save(tmp_path / "run.jsonl.gz"))
    assert saved.xray_facts == seen and saved.xray == run.xray  # the trace stays in the folder
    shipped = tmp_path / "shipped.jsonl.gz"
    ship(tmp_path / "run.jsonl.gz", shipped, name="run", title="a run with an x-ray")
    assert load(shipped).xray == run.xray
    assert np.isfinite(run.each("cpu")).sum() >= 2  # the thread's time is read now and then
