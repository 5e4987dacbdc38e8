"""Experiments and challenges on three cards: large enough to be no launches, and never slow."""

import functools

import pytest
import standin_gpu
import torch
from kept_bench import Kept, measured

from labkit.bench import workbench
from labkit.bench.loop import Trainer
from labkit.bench.model_size import noise_batch
from labkit.bench.resolve_config import resolve_config
from labkit.bench.workbench import LAUNCHES, LONGEST_S
from labkit.course.task import all_tasks
from labkit.experiments import matrix_products

DEVICE = torch.device("cuda", 0)
CARDS = ("T4", "RTX4070", "H200")
SIZED = ("matrix_rates", "matrix_sizes", "matrix_slices", "matrix_products", "precision_matmul",
         "roofline", "eager_chain", "bandwidth", "copies", "batch_path")  # fmt: skip
FEWER = {"copies": {"mib": 8, "pieces": [1]}, "batch_path": {"mib": 1}}  # quicker, and enough
IN_REACH = 0.95  # of 20 launches: a size is chosen by a rougher timing than it then gets


@functools.cache
def on_card(name):
    """Return {experiment: its points, what it skipped, its longest call and peak memory}."""
    return {experiment: of_one(name, experiment) for experiment in SIZED}


def of_one(name, experiment):
    with standin_gpu.installed(standin_gpu.CARDS[name], numbers=False) as gpu:
        bench = Kept(DEVICE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workbench, "FILL_S", 1e-3)
            patch.setattr(matrix_products, "relative_error", lambda *_: 0.0)  # without numbers
            switched = switches_inside_the_clock(bench, patch)
            measured(experiment, bench, **FEWER.get(experiment, {}))
        return {
            "launch_s": bench.launch_s, "longest_s": bench.longest_s, "switched": switched,
            "peak_bytes": gpu.peak[0], "memory_bytes": gpu.cards[0].memory_gib * 2**30,
            "points": [about for event, about in bench.events if event == "measurement"],
            "skipped": {x["what"]: x["why"] for event, x in bench.events if event == "skipped"},
        }  # fmt: skip


def switches_inside_the_clock(bench, patch):
    """Return a list that fills with what is set for TF32 while the clock runs."""
    switched, really = [], torch.set_float32_matmul_precision

    def switch(precision):
        if bench.timing:
            switched.append(precision)
        really(precision)

    patch.setattr(torch, "set_float32_matmul_precision", switch)
    return switched


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=CARDS)
def card(request):
    return on_card(request.param)


@pytest.fixture
def all_cards():
    return {name: on_card(name) for name in CARDS}


def points(found, of=None, **case):
    return [
        point for point in found["points"]
        if point["seconds"] and of in (None, point["of"]) and case.items() <= point["case"].items()
    ]  # fmt: skip


def test_no_single_call_takes_long_on_any_card(card):
    for name, found in card.items():
        assert found["longest_s"] <= LONGEST_S, name


def test_what_is_measured_takes_twenty_launches_on_every_card(card):
    sized = ["matrix_rates", "matrix_sizes", "precision_matmul", "roofline", "eager_chain"]
    single = [point for name in sized for point in points(card[name])]
    single += points(card["matrix_slices"], "at once") + points(card["batch_path"], "arithmetic")
    single += points(card["batch_path"], "device memory")
    assert len(single) > 25
    for point in single:
        each = min(point["seconds"]) / point["case"].get("operations", 1)
        assert each >= IN_REACH * LAUNCHES * card["matrix_rates"]["launch_s"], point


def test_every_array_fits_into_the_cards_memory(card):
    for name, found in card.items():
        assert found["peak_bytes"] < 0.5 * found["memory_bytes"], name


def test_a_format_without_fast_units_gets_a_smaller_product(all_cards):
    rates = {name: found["matrix_rates"] for name, found in all_cards.items()}
    n = {name: points(found, "fp64")[0]["case"]["n"] for name, found in rates.items()}
    assert n["H200"] == 8192 and max(n["T4"], n["RTX4070"]) < 8192
    for found in all_cards.values():
        assert points(found["matrix_rates"], "fp32")[0]["case"]["n"] == 8192


def test_formats_that_a_card_lacks_are_skipped_with_the_reason(all_cards):
    assert set(all_cards["T4"]["matrix_rates"]["skipped"]) == {"tf32", "bf16"}
    assert "7.5" in all_cards["T4"]["precision_matmul"]["skipped"]["bf16"]
    assert not all_cards["RTX4070"]["matrix_rates"]["skipped"]


def test_tf32_is_switched_outside_of_the_clock_and_acts(card):
    found = card["precision_matmul"]
    assert not found["switched"]
    if "tf32" not in found["skipped"]:
        tf32, fp32 = (points(found, "matmul", precision=name)[0] for name in ("tf32", "fp32"))
        fast, slow = (points(card["matrix_rates"], name)[0] for name in ("tf32", "fp32"))
        gain = slow["seconds"][0] / fast["seconds"][0]
        assert fp32["seconds"][0] / tf32["seconds"][0] == pytest.approx(gain, rel=0.1)


def test_a_sweep_of_sizes_has_the_same_sizes_in_every_format(card):
    sizes = {}
    for point in points(card["matrix_sizes"]):
        sizes.setdefault(point["of"], []).append(point["case"]["n"])
    assert len({tuple(n) for n in sizes.values()}) == 1 and min(sizes["fp32"]) >= 1024 - 64


def test_bandwidth_leaves_out_what_is_copied_faster_than_it_is_launched(card):
    found = card["bandwidth"]
    copied = points(found, "copy")
    assert all(point["seconds"][0] >= 2 * found["launch_s"] for point in copied)
    assert len(copied) >= 3 and any("launches" in why for why in found["skipped"].values())
    largest = points({"points": [p | {"seconds": [1]} for p in found["points"]]}, "largest")[0]
    assert largest["values"]["past_cache"]


def test_points_that_are_mostly_launches_are_marked(all_cards):
    for found in all_cards.values():
        both = points(found["matrix_slices"]) + points(found["matrix_products"])
        share = {point["of"]: point["values"]["launch_share"] for point in both}
        assert share["32 small ones"] > 0.8 and share["one by one"] > 0.9
        assert share["at once"] < 0.1


def test_pinned_pieces_are_of_one_block_and_copied_without_waiting(card):
    (held,) = points(card["copies"], "the host is held", pinned=True, non_blocking=True)
    (waits,) = points(card["copies"], "the host is held", pinned=True, non_blocking=False)
    assert max(held["seconds"]) < 0.1 * min(waits["seconds"])


# -- challenges --------------------------------------------------------------------------------


def trained(gpu, pipeline, updates=2):
    """Train a pipeline without a loader; return (peak memory in GiB, samples/s)."""
    job, _ = resolve_config(pipeline.to_dict(), DEVICE)
    trainer = Trainer(job, DEVICE)
    started = 0
    for update in range(updates):
        torch.accelerator.synchronize(DEVICE)
        started = gpu.clock.now() if update == 1 else started  # AdamW's state is there by then
        for step in range(job.accumulation_steps):
            batch = trainer.to_device(*noise_batch(job))
            trainer.compute(*batch, update=step + 1 == job.accumulation_steps)
    torch.accelerator.synchronize(DEVICE)
    samples = (updates - 1) * job.accumulation_steps * job.batch_size
    return gpu.peak[0] / 2**30, samples / max(gpu.clock.now() - started, 1) * 1e9


def test_the_whole_batch_needs_more_memory_than_allowed_and_the_solution_does_not(cards):
    task = all_tasks()["04-fit"]
    (limit,) = [goal.at_most for goal in task.goals if "GiB" in goal.what]
    for pipeline, fits in ((task.base, False), (task.solution, True)):
        peak_gib, _ = trained(cards("T4", numbers=False), pipeline, updates=1)
        assert (peak_gib <= limit) == fits


@pytest.mark.parametrize("name", ["T4", "H200"])
def test_up_to_the_knee_a_larger_batch_is_several_times_as_fast(name, cards):
    task = all_tasks()["04-knee"]
    _, one = trained(cards(name, numbers=False), task.base)
    _, many = trained(cards(name, numbers=False), task.solution)
    assert many > 2 * task.goals[0].at_least * one
