"""The x-ray: what it sees, that it stays out of the statistics, and when there is none."""

import time

import numpy as np
import pytest
import torch
from recordings import ship
from torch.autograd.profiler import profile, record_function

from labkit.bench import xray
from labkit.results.launch import launch
from labkit.results.library import load


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
    assert np.isfinite(run.thread_s).sum() >= 2  # the thread's time is read now and then


@pytest.mark.slow
def test_it_says_why_there_is_none(tiny):
    run = launch(tiny.but(steps=10)).wait()
    assert run.outcome == "finished" and run.xray_facts is None and "10 steps" in run.no_xray


def events_of(work):
    """Return the profiler's events of `work` as a step."""
    with profile(record_shapes=True, use_kineto=True) as recorded, record_function(xray.WINDOW):
        work()
    return list(recorded.function_events)


def test_time_in_python_is_a_gap_and_neither_inner_operators_nor_marks_count_twice():
    def step():
        layer(images)
        time.sleep(0.02)
        with record_function("Optimizer.step#AdamW.step"):
            layer(images)

    layer = torch.nn.Linear(4, 4)
    images = torch.ones(2, 4)
    found = xray.summarise(events_of(step))
    assert 20_000 <= found["gap_us"] < found["window_us"]
    assert found["tiny_ops"] >= 2 and found["tiny_us"] < found["window_us"] - found["gap_us"] + 1


def test_a_chain_of_elementwise_passes_could_be_one_until_a_product_or_another_size_ends_it():
    big = torch.ones(2000, 2000)
    half = torch.ones(1000, 1000)
    chain = xray.summarise(events_of(lambda: big.neg().abs().neg()))
    assert 0.3 * chain["elementwise_us"] < chain["fusible_us"] < chain["elementwise_us"]
    broken = xray.summarise(events_of(lambda: (big.neg(), half.neg(), big.neg())))
    assert broken["fusible_us"] == 0
