"""The x-ray: what it sees, that it stays out of the statistics, and when there is none."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from recordings import ship

from labkit.api import launch, load
from labkit.bench import step_operators


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


def event(name, start_us, length_us, size=1000):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start_us * 1000,
        end_ns=lambda: (start_us + length_us) * 1000,
        shapes=lambda: [[size]],
        device_type=lambda: torch.autograd.DeviceType.CPU,
    )


def summarised(*events, window=100):
    return step_operators.summarise([event("w", 0, window), *events], "w")


def test_time_between_operators_is_a_gap_and_neither_inner_operators_nor_marks_count_twice():
    found = summarised(
        event("aten::linear", 10, 40),  # 10 µs of it its own: no longer tiny
        event("aten::addmm", 15, 30),
        event("aten::add", 60, 5),
    )
    assert [found[key] for key in ("gap_us", "heavy_us", "tiny_us", "tiny_ops")] == [55, 40, 5, 1]
    found = summarised(
        event("Optimizer.step#AdamW.step", 0, 90),
        event("_compile.compile_inner (dynamo_timed)", 0, 80),
        event("autograd::engine::evaluate_function: MmBackward0", 0, 70),
        event("aten::mm", 10, 30),
    )
    assert found["gap_us"] == 70


def test_a_chain_of_elementwise_passes_could_be_one_until_a_product_or_another_size_ends_it():
    chain = [event("aten::mul", 100 * i, 100) for i in range(4)]
    assert summarised(*chain, window=400)["fusible_us"] == 300
    chain[1] = event("aten::mm", 100, 100)
    chain[3] = event("aten::mul", 300, 100, size=10)
    assert summarised(*chain, window=400)["fusible_us"] == 0
