"""The slow script: each fix does the same work in another way; runs of it are runs like others."""

import subprocess
import sys

import pytest

import labkit as lk
from labkit.analysis import thresholds
from labkit.bench import profile
from labkit.course import slow_script as script
from labkit.course.slow_script import SlowScript, same_training, stages
from labkit.results.launch import launch

STEPS = 6


@pytest.fixture(scope="module")
def both():
    """The script at its slowest and with everything fixed, cut short."""
    runs = [launch(SlowScript(fixes, steps=STEPS)).wait() for fixes in ((), script.LADDER)]
    assert [run.outcome for run in runs] == ["finished"] * 2, [run.error for run in runs]
    return runs


def test_the_stages_add_one_fix_at_a_time_and_a_wrong_one_is_refused():
    fixes = [stage.fixes for stage in stages()]
    assert fixes[0] == () and fixes[-1] == script.LADDER and len(fixes) == 7
    assert all(now[:-1] == before for before, now in zip(fixes, fixes[1:], strict=False))
    assert SlowScript(("memory", "data")).fixes == ("data", "memory")
    assert repr(SlowScript(("data",)).but(steps=3)) == "SlowScript(fixes=('data',), steps=3)"
    with pytest.raises(ValueError, match="Unknown fix 'worker'; available: data, items"):
        lk.slow_script("worker")
    with pytest.raises(ValueError, match="steps"):
        SlowScript(steps=0)


def test_old_cards_get_fp16_and_new_ones_bf16():
    assert script.settings(("precision",), True, 8, 20, "fp16")["precision"] == "fp16"
    hopper = script.settings(script.LADDER, True, 64, 20)
    assert hopper["precision"] == "bf16" and hopper["num_workers"] == 8 and hopper["pin_memory"]
    assert hopper["width"] is hopper["depth"] is None  # sized for the card, the same in all rungs


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 64])
def test_enough_steps_are_left_for_a_verdict_behind_what_was_prefetched(cores):
    knobs = script.settings(script.LADDER, False, cores)
    steps = knobs["steps"]
    in_flight = knobs["num_workers"] * knobs["prefetch_factor"]
    warmup = min(max(3, in_flight), steps // 3)  # as the bench asks for it, and a Run allows it
    assert warmup >= in_flight and steps - warmup >= thresholds.MIN_STEPS
    assert steps >= profile.MIN_STEPS


@pytest.mark.slow
def test_everything_fixed_is_the_same_training_and_at_least_twice_as_fast(both):
    slow, fast = both
    same_training(fast, slow)
    assert fast.throughput > 2 * slow.throughput
    assert slow.event("samples")["batches"] == 3
    assert slow.event("spec")["script"] == {"fixes": []}
    with pytest.raises(AssertionError, match="another loss in step"):
        same_training(fast, slow, tolerance=1e-9)
    with pytest.raises(AssertionError, match="not a finished run of the slow script"):
        same_training(lk.recorded("workers-0"), slow)
    shorter = launch(SlowScript(script.LADDER, steps=STEPS - 1)).wait()
    with pytest.raises(AssertionError, match="same samples"):
        same_training(shorter, slow)


@pytest.mark.slow
def test_the_script_runs_from_a_terminal():
    command = [sys.executable, "-m", "labkit.course.slow_script", *script.LADDER]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "samples/s" in done.stdout, done.stderr


# -- in W&B ----------------------------------------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return pytest.importorskip("wandb")


@pytest.mark.slow
def test_a_ladder_is_one_offline_project(both, wandb, tmp_path):
    ladder = lk.Ladder().add("slow", both[0]).add("fast", both[1])
    folder = lk.to_wandb(ladder, project="capstone", folder=tmp_path)
    assert len(list(folder.glob("offline-run-*/*.wandb"))) == 2
    with pytest.raises(ValueError, match="mode 'cloud'"):
        lk.to_wandb(ladder, mode="cloud")
    with pytest.raises(ValueError, match="give a Run"):
        lk.to_wandb({})


@pytest.mark.slow
def test_an_active_wandb_run_is_used_as_it_is(both, wandb, tmp_path):
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    mine = wandb.init(mode="offline", dir=str(tmp_path), name="mine", settings=settings)
    try:
        mine.log({"loss": 1.0})
        assert lk.to_wandb({"before": both[0], "after": both[1]}) is None
        assert wandb.run is mine and mine.step == 1  # no step of the script's own was taken
        assert mine.summary["labkit/after/utilization"] == both[1].utilization
        assert mine.summary["labkit/before/bottleneck"] == both[0].diagnose().bottleneck
    finally:
        mine.finish()
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1
