"""The slow script: each fix does the same work in another way; runs of it are runs like others."""

import json
import math

import pytest

import labkit as lk
from labkit.course import slow_script as script
from labkit.course.slow_script import SlowScript, other_work, slow_script, stages
from labkit.results.hardware import Machine
from labkit.results.launch import launch


def test_the_stages_add_one_fix_at_a_time_and_a_wrong_one_is_refused():
    fixes = [stage.fixes for stage in stages()]
    assert fixes[0] == () and fixes[-1] == script.LADDER and len(fixes) == 7
    assert all(now[:-1] == before for before, now in zip(fixes, fixes[1:], strict=False))
    assert SlowScript(("memory", "data")).fixes == ("data", "memory")
    with pytest.raises(ValueError, match="Unknown fix 'worker'; available: data, items"):
        slow_script("worker")
    with pytest.raises(ValueError, match="steps"):
        SlowScript(steps=0)


def test_old_cards_get_fp16_and_new_ones_bf16(monkeypatch):
    def machine_with(capability, device="cuda:0"):
        here = Machine(device, "gpu", compute_capability=capability, cpu_cores=64)
        monkeypatch.setattr(script, "machine", lambda: here)

    machine_with("7.5")
    assert SlowScript(("precision",)).pipeline.precision == "fp16"
    machine_with("9.0")
    hopper = SlowScript(script.LADDER).pipeline
    assert hopper.precision == "bf16" and hopper.num_workers == 8 and hopper.pin_memory
    assert hopper.width is hopper.depth is None  # sized for the card, the same in all rungs
    machine_with(None, "mps")
    mac = SlowScript().pipeline
    assert (mac.batch_size, mac.width, mac.depth) == (16, 40, 5)


def with_losses(losses, precision, folder):
    """Return the recorded capstone with these losses, as if it had run in `precision`."""
    path = lk.recorded("capstone-6").save(folder / f"{precision}.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "step":
            event["loss"] = losses[event["i"]]
        if event["event"] == "job":
            event["pipeline"]["precision"] = precision
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return lk.load(path)


@pytest.mark.parametrize(
    "precision, factors, said",
    [
        ("fp32", {}, None),
        ("fp32", {5: 1.03}, "another loss in step 5"),
        ("fp32", {9: 1.06}, "another loss in step 9"),
        ("bf16", dict.fromkeys(range(1, 99, 2), 1.06), None),  # judged by the mean loss
        ("bf16", dict.fromkeys(range(99), 1.15), "another mean loss"),
        ("fp16", dict.fromkeys(range(99), math.nan), "another mean loss"),
    ],
)
def test_the_same_training_is_told_from_another(precision, factors, said, tmp_path):
    slow = lk.recorded("capstone-0")
    losses = [loss * factors.get(step, 1) for step, loss in enumerate(slow.loss)]
    losses = [None if math.isnan(loss) else loss for loss in losses]
    found = other_work(with_losses(losses, precision, tmp_path), slow)
    assert found is None if said is None else found.startswith(said)


def test_rounding_beside_a_loss_that_has_become_small_is_the_same_training(tmp_path):
    losses = list(lk.recorded("capstone-0").loss)
    losses[9] = 0.01
    before = with_losses(losses, "fp32", tmp_path)
    losses[9] = 0.015
    now = with_losses(losses, "tf32", tmp_path)
    assert other_work(now, before) is None
    assert "not a finished run of the slow script" in other_work(lk.recorded("workers-0"), before)


@pytest.mark.measures
@pytest.mark.slow
def test_everything_fixed_is_the_same_training_and_at_least_twice_as_fast():
    slow, fast = (launch(SlowScript(fixes, steps=6)).wait() for fixes in ((), script.LADDER))
    assert other_work(fast, slow) is None
    assert fast.throughput > 2 * slow.throughput and slow.event("samples")["batches"] == 3
    assert slow.event("spec")["script"] == {"fixes": []}
