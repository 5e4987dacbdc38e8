"""What fills the memory, the knee of a batch sweep, and the learning-rate lesson."""

import math

import numpy as np
import pytest

import labkit as lk
from labkit.analysis.knee import fit
from labkit.experiments import Experiment
from labkit.experiments import memory as memory_parts
from labkit.results.launch import launch

COUNTS = {
    "model": "mlp", "width": 8, "depth": 2, "image_px": 4, "classes": 10, "batch_size": 3,
    "parameters": 570, "parameter_tensors": 6, "buffer_bytes": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    params = {"batch_size": [4, 16], "image_px": 32}
    done = launch(Experiment("memory_parts", params)).wait()
    assert done.outcome == "finished", done.error
    return done


# -- the parts ---------------------------------------------------------------------------------


def test_the_parts_follow_from_counts_alone():
    parts = memory_parts.predict(COUNTS)
    assert parts.weights == parts.gradients == 4 * 570
    assert parts.optimizer == 8 * 570 + 4 * 6
    # image 3 x 4 x 4, two hidden layers of 8, 10 classes, 4 bytes each, and the label's 8
    assert parts.activations == 3 * (4 * (48 + 16 + 10) + 8)
    assert parts.total == parts.fixed + parts.activations


def test_only_activations_grow_with_the_batch():
    small = memory_parts.predict(COUNTS)
    large = memory_parts.predict(COUNTS | {"batch_size": 30})
    assert large.fixed == small.fixed
    assert large.activations == 10 * small.activations


def test_every_model_is_predicted_within_a_tenth_of_what_is_measured(measured):
    assert len(measured) == 6
    for point in measured:
        said, seen = memory_parts.predict(point.values), memory_parts.measured(point)
        for part in memory_parts.PARTS:
            assert getattr(said, part) == pytest.approx(getattr(seen, part), rel=0.1), point.case


def test_on_a_cpu_the_figure_says_that_tensors_were_counted(measured):
    if measured.machine.kind != "cpu":
        pytest.skip("this machine has a device whose allocator counts")
    assert all("tensors themselves" in point.values["how"] for point in measured)
    texts = " ".join(text.get_text() for text in measured.plot().texts)
    assert "tensors themselves" in " ".join(texts.split())


def test_the_largest_batch_that_the_formula_allows_is_the_last_that_fits():
    limit = 200_000
    size = memory_parts.largest_batch(COUNTS, limit)
    assert memory_parts.predict(COUNTS | {"batch_size": size}).total <= limit
    assert memory_parts.predict(COUNTS | {"batch_size": size + 1}).total > limit
    assert memory_parts.largest_batch(COUNTS, 100) == 0


# -- the knee ----------------------------------------------------------------------------------

SIZES = [1, 4, 16, 64, 256, 1024]


def test_the_knee_is_where_the_fixed_part_equals_the_part_per_sample():
    found = fit(SIZES, [5 + 0.1 * size for size in SIZES])
    assert found.batch_size == 50
    assert found.misfit < 1e-9
    assert found.best_throughput == pytest.approx(10_000)


def test_noise_moves_the_knee_little():
    rng = np.random.default_rng(0)
    noisy = [(5 + 0.1 * size) * rng.uniform(0.95, 1.05) for size in SIZES]
    assert fit(SIZES, noisy).batch_size == pytest.approx(50, rel=0.2)


def test_a_knee_outside_of_the_sizes_is_no_number():
    rising = fit([64, 128, 256], [64.0, 128.0, 256.0])
    assert rising.batch_size is None and "below 64" in rising.line
    flat = fit([1, 2, 4], [5.0, 5.0, 5.0])
    assert flat.batch_size is None and "above 4" in flat.line and math.isinf(flat.n_half)


def test_a_curve_that_is_no_line_is_called_so():
    assert "NO STRAIGHT LINE" in fit(SIZES, [1, 1, 1, 1, 40, 400]).line


def test_two_sizes_make_no_knee():
    with pytest.raises(ValueError, match="three or more"):
        fit([1, 2], [1.0, 2.0])


def test_a_knee_is_found_in_a_real_sweep_and_drawn():
    from labkit.results.sweep import Sweep

    pipeline = lk.Pipeline(dataset="sleep", prep_ms=0, model="mlp", width=32, depth=1, xray=False)
    swept = Sweep(pipeline.but(steps=20), {"batch_size": [2, 64, 512]})
    swept.runs = [launch(each).wait() for each in swept.pipelines]
    found = lk.knee(swept)
    assert found.sizes == (2, 64, 512)
    assert found.sample_ms > 0
    assert swept[0].machine.line in [text.get_text() for text in found.plot().texts]


# -- the learning rate -------------------------------------------------------------------------


def test_the_scaling_rule_holds_at_four_times_and_breaks_at_sixty_four():
    done = launch(Experiment("lr_scaling", {"seeds": 1})).wait()
    assert done.outcome == "finished", done.error
    held_out = {point.of: point.values["held_out"][0] for point in done}
    assert held_out["batch x4, same lr"] > 2 * held_out["base"]
    assert held_out["batch x4, lr x4"] < 0.5 * held_out["batch x4, same lr"]
    assert held_out["batch x64, lr x64, warm-up"] > 2 * held_out["batch x4, lr x4, warm-up"]
    assert all(point.values["samples"][-1] == 4 * 2048 for point in done)
    assert done.plot().axes
