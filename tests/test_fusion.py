"""Fusing: bytes counted, gain predicted and measured; graph breaks; nothing eager is compiled."""

import os

import pytest

from labkit.bench.resolve_config import compiler
from labkit.experiments import Experiment
from labkit.experiments.fusion import (
    arrays_moved,
    break_even_steps,
    gains,
    largest,
    predicted_gain,
)
from labkit.results.launch import launch

SMALL = {"mib": 2, "length": 3}


def test_bytes_of_a_sum_of_three_arrays_are_counted():
    assert arrays_moved([2, 2]) == 6 and arrays_moved([3]) == 4
    assert predicted_gain([2, 2], inputs=3) == 1.5
    assert predicted_gain([2, 2], inputs=3, write_cost=2) == 1.6
    assert predicted_gain([1] * 6, inputs=1) == predicted_gain([1] * 6, 1, write_cost=2) == 6


def test_compiling_pays_back_after_what_it_cost_over_what_a_step_saves():
    assert break_even_steps(10, 0.03, 0.01) == pytest.approx(500)
    assert break_even_steps(10, 0.01, 0.01) is None
    assert break_even_steps(10, 0.01, 0.02) is None


@pytest.fixture(scope="module")
def fused():
    done = launch(Experiment("fusion", SMALL)).wait()
    assert done.outcome == "finished", done.error
    return done


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_chain_is_fused_and_its_kernel_shown(fused):
    assert all(point.values["kernels"] == 1 for point in fused.where("compile"))
    kernel = fused.one("kernel").values["code"]
    assert ("for" in kernel or "triton" in kernel) and "#include" not in kernel
    at_largest = largest(fused)
    assert [gain.array_mib for gain in at_largest] == [2, 2]
    assert all(gain.measured > 0 for gain in at_largest)
    eager, one = (fused.one(way, chain="a + b + c", mib=2) for way in ("eager", "fused"))
    assert eager.bytes / one.bytes == at_largest[0].predicted == 1.5


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_many_tiny_operations_cost_their_launches(fused):
    tiny = {point.case["way"]: point for point in fused.where("tiny")}
    assert tiny["eager"].median_s > 2 * tiny["compiled"].median_s
    assert ("CUDA graph" in tiny) != ("CUDA graph" in fused.skipped)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_the_figure_shows_prediction_and_measurement(fused):
    assert len(fused.plot(before=fused).axes) == 2


def test_without_a_compiler_the_eager_half_is_measured_and_nothing_is_called_fused(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = launch(Experiment("fusion", SMALL, device="cpu")).wait()
    assert done.outcome == "finished", done.error
    assert "C++ compiler" in done.skipped["fused"]
    assert done.where("eager") and not done.where("fused") and not done.where("compile")
    assert [point.case["way"] for point in done.where("tiny")] == ["eager"]
    assert all(gain.measured is None for gain in gains(done))
    assert "not measured" in str(largest(done)[0])
    assert not done.plot().axes


def test_graph_breaks_are_found_and_removed():
    done = launch(Experiment("graph_breaks")).wait()
    assert done.outcome == "finished", done.error
    broken = done.one("explain", function="broken").values
    assert broken["breaks"] >= 1 and broken["graphs"] == broken["breaks"] + 1
    assert broken["reasons"] and not any(os.sep + "work" in r for r in broken["reasons"])
    assert done.one("explain", function="whole").values == {
        "graphs": 1, "breaks": 0, "reasons": []
    }  # fmt: skip
    took = {point.case["way"]: point.values for point in done.where("captures")}
    every, default, dynamic, padded = took.values()
    assert every["captured"] == every["limit"] < every["calls"] and every["eager"] > 0
    assert padded["captured"] == 1 and padded["eager"] == dynamic["eager"] == 0
    assert dynamic["captured"] <= default["captured"] < every["captured"]
    assert default["log"]
