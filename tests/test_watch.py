"""A watched loop is the loop it was: same batches, same losses, same errors. A Run comes out."""

import copy
import gc
import pickle
import random
import time

import numpy as np
import psutil
import pytest
import torch
from helpers import Waiting
from torch.utils.data import DataLoader, Dataset

from labkit import watch
from labkit.process import folders
from labkit.view import watch_live
from labkit.watching import recorder as recording

pytestmark = pytest.mark.usefixtures("watches_end")


class Noise(Dataset):
    """48 samples that draw random numbers; item `bad` cannot be read."""

    def __init__(self, bad=None):
        self.bad = bad

    def __len__(self):
        return 48

    def __getitem__(self, i):
        if i == self.bad:
            raise ValueError(f"sample {i} cannot be read")
        return torch.randn(8) + random.random() + np.random.rand(), i


def quiet(loader):
    return watch(loader, live=False)


def loop(loader, body_s=0.0):
    seen = []
    for batch in loader:
        seen.append(batch)
        time.sleep(body_s)
    return seen


# -- nothing is changed --------------------------------------------------------------------------


def train(wrap, workers):
    """Train for two epochs; return the weights, the order of samples, and what is random next."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    weights = torch.zeros(8, requires_grad=True)
    optimizer = torch.optim.SGD([weights], 0.01)
    seen = []
    for _ in range(2):
        for x, index in wrap(DataLoader(Noise(), 8, shuffle=True, num_workers=workers)):
            (x @ weights - 1).square().mean().backward()
            optimizer.step()
            seen.append((weights.tolist(), index.tolist()))
    return seen, random.random(), np.random.rand(), torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_weights_order_and_random_state_are_the_same_to_the_bit(workers):
    assert train(watch, workers) == train(lambda loader: loader, workers)


def test_what_fails_inside_the_recorder_or_while_drawing_never_reaches_the_loop(
    monkeypatch, capsys
):
    parts = (
        (watch_live, "progress_line"),
        (recording.Recorder, "write_steps"),
        (folders, "new_run"),
    )
    for owner, name in parts:
        with monkeypatch.context() as broken:
            broken.setattr(owner, name, lambda *_: 1 / 0)
            assert len(loop(watch([[1]] * 30))) == 30
    said = capsys.readouterr().err
    for what in ("display stopped", "recording stopped", "not recording"):
        assert f"{what}: ZeroDivisionError" in said


# -- what comes out ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def starved():
    watched = quiet(DataLoader(Waiting(0.003, 120), 4))
    loop(watched, body_s=0.002)
    _ = watched.run.steps
    watched.close()
    return watched


def test_waiting_and_body_are_told_apart_and_the_rest_is_not_claimed(starved):
    run = starved.run
    assert run.steps == 30 and run.samples == 120
    assert run.wait_ms > 2 * run.compute_ms > 2
    assert run.copy_ms is None and all(np.isnan(run.loss))
    assert run.pipeline.batch_size == 4 and "loop body" in repr(run)
    with pytest.raises(ValueError, match="watched"):
        run.pipeline.but(num_workers=2)
    diagnosis = starved.run.diagnose()
    assert diagnosis.bottleneck == "input"
    assert any("loop body" in note for note in diagnosis.notes)
    assert diagnosis.findings[0].expected is None and "Expect" not in diagnosis.advice
    assert "num_workers=2" in diagnosis.advice and "times as many steps" in diagnosis.advice


def test_epochs_are_one_run_and_what_lies_between_them_does_not_count():
    loader = DataLoader(torch.zeros(40), 4)
    begun = time.monotonic()
    for _ in range(3):
        loop(quiet(loader))  # the same loader again: the same watch
        time.sleep(0.2)  # validation
    run = watch.last.run
    assert run.steps == 30
    assert run.stamps[-1, 5] < time.monotonic() - begun - 0.6
    assert np.all(np.diff(run.stamps[:, 5]) > 0)
    validates = run.all("pass")[0]["ended"] + 10**8
    assert np.isnan(run.seconds(validates))


# -- every shape of loop -------------------------------------------------------------------------


def test_a_break_marks_the_run_and_the_next_pass_goes_on():
    watched = quiet(range(50))
    for i in watched:
        if i == 20:
            break
    assert watched.run.outcome == "stopped" and watched.run.steps == 20
    loop(watched)
    assert watched.run.outcome == "finished" and watched.run.steps == 70


@pytest.mark.parametrize(
    "problem, outcome", [(KeyError("mine"), "failed"), (KeyboardInterrupt(), "stopped")]
)
def test_an_exception_in_the_body_passes_untouched_and_is_in_the_run(problem, outcome):
    watched = quiet(range(50))
    with pytest.raises(type(problem)) as caught:
        for i in watched:
            if i == 20:
                raise problem
    watched.close(caught.value)
    assert caught.value is problem and watched.run.steps == 20
    assert watched.run.outcome == outcome and str(problem) in (watched.run.error or "")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_read_fails_as_without_a_watch_and_a_loop_may_go_on(workers):
    watched = quiet(DataLoader(Noise(bad=21), 4, num_workers=workers))
    batches = iter(watched)
    for _ in range(5):
        next(batches)
    with pytest.raises(ValueError, match="sample 21 cannot be read"):
        next(batches)
    assert watched.run.outcome == "failed" and "sample 21 cannot be read" in watched.run.error
    assert len(list(batches)) == 6  # a loop that skips what cannot be read
    assert watched.run.steps == 11 and watched.run.outcome == "finished"


def test_a_loader_that_cannot_begin_fails_as_without_a_watch_and_is_explained():
    class Local(DataLoader):
        def __iter__(self):
            raise AttributeError("Can't pickle local object 'Local'")

    with pytest.raises(AttributeError, match="Can't pickle local object 'Local'"):
        loop(watched := quiet(Local([0])))
    assert watched.run.outcome == "failed" and "at the top of a module" in watched.run.error


def test_an_iterator_that_is_used_up_gives_nothing_and_says_so(capsys):
    with pytest.raises(TypeError, match=r"lk\.watch\(int\)"):
        watch(3)
    watched = watch(iter(range(5)))
    assert loop(watched) == [0, 1, 2, 3, 4] and "gave no batch" not in capsys.readouterr().err
    for used_up in (watched, watch([])):
        assert loop(used_up) == [] and "gave no batch" in capsys.readouterr().err


# -- given to a trainer --------------------------------------------------------------------------


def test_a_trainer_that_asks_its_loader_finds_all_it_asks_for():
    """What transformers.Trainer and Lightning do with the loader they are given."""
    loader = DataLoader(Noise(), 8, shuffle=True)
    epochs = []
    loader.set_epoch = epochs.append  # as those of accelerate and Lightning have
    watched = quiet(loader)
    assert len(watched) == 6 and bool(watched)
    for name in ("dataset", "batch_size", "sampler", "batch_sampler"):
        assert getattr(watched, name) is getattr(loader, name)
    assert not hasattr(watched, "no_such_thing")
    watched.set_epoch(1)
    assert epochs == [1]
    for other in (copy.copy(watched), pickle.loads(pickle.dumps(watched))):
        assert len(other) == 6 and len(loop(other)) == 6


# -- it leaks nothing ----------------------------------------------------------------------------


@pytest.mark.slow
def test_many_thousand_steps_leave_memory_as_it_was():
    sizes = []
    batch = [torch.zeros(4, 2), torch.zeros(4)]
    for i, _ in enumerate(quiet(batch for _ in range(20_000))):
        if i in (2_000, 19_000):
            gc.collect()
            sizes.append(psutil.Process().memory_info().rss)
    assert sizes[1] - sizes[0] < 2 * 2**20, sizes


def test_a_run_of_days_keeps_a_bounded_log_and_many_generators_few_watches(monkeypatch):
    monkeypatch.setattr(recording, "KEEP_STEPS", 30)
    watched = quiet(range(100))
    for _ in range(3):
        loop(watched)
    assert 30 <= watched.run.steps <= 100 and watched.run.event("full")
    for _ in range(20):
        loop(quiet(i for i in range(3)))
    assert len(watch_live._open) <= watch_live.OPEN_MOST


# -- in a notebook -------------------------------------------------------------------------------

CELL = """
import time, sys
from labkit import watch
watched = watch(list(range(60)))
for i in watched: time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_cell_ends_with_the_figure_and_the_diagnosis():
    pytest.importorskip("ipykernel")
    from test_kernel import kernel

    shown = []

    def see(message):
        shown.append(message["content"].get("data", {}))

    with kernel() as (_manager, client):
        reply = client.execute_interactive(CELL, timeout=60, output_hook=see)
    assert reply["content"]["status"] == "ok", reply
    assert any("image/png" in data for data in shown)
    assert any("Bottleneck" in data.get("text/html", "") for data in shown)
