"""Micro-batches add up to the large batch, the classic mistakes do not, and what it costs."""

import pytest

from labkit.experiments import Experiment
from labkit.results.launch import launch

LIMITS = {"float32": 1e-6, "float64": 1e-14}


@pytest.fixture(scope="module")
def compared():
    done = launch(Experiment("accumulation")).wait()
    assert done.outcome == "finished", done.error
    return done


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_eight_times_eight_is_the_update_of_sixty_four(compared, model, dtype):
    error = compared.one("equivalence", model=model, dtype=dtype).values["error"]
    assert error < LIMITS[dtype]


def test_every_mistake_is_seen_and_every_cure_works(compared):
    mistakes = compared.where("mistake")
    assert len(mistakes) == 4
    for point in mistakes:
        assert point.values["error"] > 1e-4, point
        assert point.values["cured"] < 1e-13, point


def test_without_division_the_update_is_as_many_times_too_long(compared):
    point = compared.one("mistake", name="no division by the number of steps")
    assert point.values["error"] == pytest.approx(7)


def test_a_smaller_micro_batch_saves_activations_and_nothing_else():
    params = {"effective": 16, "model": "mlp", "image_px": 32, "seconds_each": 0.02}
    done = launch(Experiment("accumulation_cost", params)).wait()
    assert done.outcome == "finished", done.error
    memory = {point.case["micro"]: point.values for point in done.where("memory")}
    assert list(memory) == [1, 2, 4, 8, 16]
    assert memory[1]["activations_bytes"] < memory[16]["activations_bytes"] / 8
    for part in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
        assert memory[1][part] == pytest.approx(memory[16][part], rel=0.01)
    assert len(done.where("update")) == 5
    assert done.plot().axes
