"""The slow script: each fix does the same work in another way; runs of it are runs like others."""

import math
from types import SimpleNamespace

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


def test_old_cards_get_fp16_and_new_ones_bf16(monkeypatch):
    def pipeline(capability, device="cuda:0", fixes=script.LADDER):
        here = Machine(device, "gpu", compute_capability=capability, cpu_cores=64)
        monkeypatch.setattr(script, "machine", lambda: here)
        return SlowScript(fixes).pipeline

    assert pipeline("7.5").precision == "fp16"
    hopper = pipeline("9.0")
    assert hopper.precision == "bf16" and hopper.num_workers == 8 and hopper.pin_memory
    assert hopper.width is hopper.depth is None  # sized for the card, the same in all rungs
    mac = pipeline(None, "mps", fixes=())
    assert (mac.batch_size, mac.width, mac.depth) == (16, 40, 5)


def trained(losses, precision="fp32"):
    """Return a stand-in of a finished run of the script with these losses."""
    return SimpleNamespace(
        outcome="finished",
        event=lambda _: {"crc32": 1},
        samples=640,
        loss=losses,
        pipeline=lk.Pipeline(precision=precision),
    )


@pytest.mark.parametrize(
    "precision, losses, said",
    [
        ("fp32", [2.0] * 9 + [0.01], None),
        ("tf32", [2.0] * 9 + [0.015], None),  # rounding beside a loss that has become small
        ("fp32", [2.0] * 5 + [2.06] + [2.0] * 3 + [0.01], "another loss in step 5"),
        ("bf16", [2.1, 1.9] * 4 + [2.0, 0.01], None),  # judged by the mean loss
        ("bf16", [2.3] * 9 + [0.01], "another mean loss"),
        ("fp16", [math.nan] * 10, "another mean loss"),
    ],
)
def test_the_same_training_is_told_from_another(precision, losses, said):
    slow = trained([2.0] * 9 + [0.01])
    found = other_work(trained(losses, precision), slow)
    assert found is None if said is None else found.startswith(said)
    assert "not a finished run of the slow script" in other_work(lk.recorded("workers-0"), slow)


@pytest.mark.measures
@pytest.mark.slow
def test_everything_fixed_is_the_same_training_and_at_least_twice_as_fast():
    slow, fast = (launch(SlowScript(fixes, steps=6)).wait() for fixes in ((), script.LADDER))
    assert other_work(fast, slow) is None
    assert fast.throughput > 2 * slow.throughput and slow.event("samples")["batches"] == 3
    assert slow.event("spec")["script"] == {"fixes": []}
