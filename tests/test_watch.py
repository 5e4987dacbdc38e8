"""A watched loop is the loop it was: same batches, same losses, same errors. A Run comes out."""

import copy
import gc
import json
import os
import pickle
import random
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import labkit as lk
from labkit.bench import sampler
from labkit.results import masked_keys, privacy
from labkit.view import watch_live
from labkit.view.watch_live import watch
from labkit.view.watch_shown import progress_line
from labkit.watching import recorder as recording
from labkit.watching import step_log

pytestmark = pytest.mark.usefixtures("watches_end")
ROOT = Path(__file__).parents[1]


class Noise(Dataset):
    """Samples that draw random numbers; item `bad` cannot be read."""

    def __init__(self, size=48, sleep_s=0.0, bad=None):
        self.size = size
        self.sleep_s = sleep_s
        self.bad = bad

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i == self.bad:
            raise ValueError(f"sample {i} cannot be read")
        time.sleep(self.sleep_s)
        return torch.randn(8) + random.random() + np.random.rand(), i


def quiet(loader):
    return watch(loader, live=False)


def loop(loader, body_s=0.0):
    seen = []
    for batch in loader:
        seen.append(batch)
        time.sleep(body_s)
    return seen


def events(run):
    lines = (Path(run.path) / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# -- nothing is changed --------------------------------------------------------------------------


def train(wrap, workers):
    """Train for two epochs; return losses, the order of samples and every random state."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loader = DataLoader(Noise(), 8, shuffle=True, num_workers=workers)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    order = []
    for _ in range(2):
        for x, index in wrap(loader):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
            order += index.tolist()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    return losses, order, states


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_losses_order_and_random_state_are_the_same_to_the_bit(workers):
    assert train(watch, workers) == train(lambda loader: loader, workers)


def test_what_fails_inside_the_recorder_or_while_drawing_never_reaches_the_loop(
    monkeypatch, capsys
):
    with monkeypatch.context() as broken:
        broken.setattr(watch_live, "progress_line", lambda *_: 1 / 0)
        assert len(loop(watched := watch([[1]] * 30))) == 30 and watched.run.steps == 30
    monkeypatch.setattr(recording.Recorder, "take", lambda *_: 1 / 0)
    assert len(loop(quiet(range(10)))) == 10
    monkeypatch.setattr(watch_live.folders, "new_run", lambda: open("/nowhere/at/all"))
    assert len(loop(quiet(range(10)))) == 10
    said = capsys.readouterr().err
    assert "display stopped: ZeroDivisionError" in said
    assert "recording stopped: ZeroDivisionError" in said and "not recording: FileNot" in said


# -- what comes out ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def starved():
    watched = quiet(DataLoader(Noise(120, sleep_s=0.003), 4))
    loop(watched, body_s=0.002)
    watched.run.steps_since(0)
    watched.close()
    return watched


def test_waiting_and_body_are_told_apart_and_the_rest_is_not_claimed(starved):
    run = starved.run
    assert run.outcome == "finished" and run.steps == 30 and run.samples == 120
    assert run.wait_ms > 2 * run.compute_ms > 2
    assert 0 < run.utilization < 0.5
    assert run.copy_ms is None and all(np.isnan(run.loss))
    assert run.pipeline.num_workers == 0 and run.pipeline.batch_size == 4
    assert run.pipeline.model is None and run.pipeline.io_ms is None
    assert "watched='DataLoader'" in repr(run) and "loop body" in repr(run)
    with pytest.raises(ValueError, match="watched"):
        run.pipeline.but(num_workers=2)
    line = progress_line(starved._recorder)
    assert "30/30" in line and "so far: input" in line


def test_the_diagnosis_names_the_input_and_says_what_busy_means(starved, monkeypatch):
    diagnosis = starved.diagnose()
    assert diagnosis.bottleneck == "input"
    assert any("loop body" in note for note in diagnosis.notes)
    monkeypatch.setattr(sampler.Sampler, "_why_not", lambda _: "no timer here")
    loop(unseen := quiet([torch.zeros(4)] * 24), body_s=0.03)
    found = unseen.diagnose().findings[0]
    assert (found.name, found.cause) == ("unsure", "body_not_seen")
    assert "not seen: no timer here." in found.evidence and "torch.profiler" in found.advice


def test_epochs_are_one_run_and_what_lies_between_them_does_not_count():
    loader = DataLoader(Noise(40), 4)
    begun = time.monotonic()
    for _ in range(3):
        for _batch in quiet(loader):  # the same loader again: the same watch
            time.sleep(0.002)
        time.sleep(0.2)  # validation
    run = watch.last.run
    assert run.steps == 30 and run.outcome == "finished"
    assert run.stamps[-1, 5] < time.monotonic() - begun - 0.6
    assert np.all(np.diff(run.stamps[:, 5]) > 0)
    begins = [e for e in events(run) if e["event"] == "epoch"]
    assert [e["step"] for e in begins] == [0, 10, 20]
    assert np.isnan(run.seconds(begins[1]["t_ns"] - 10**8))


# -- every shape of loop -------------------------------------------------------------------------


def test_nested_loops_each_have_their_run_and_every_batch():
    outer = DataLoader(Noise(24), 4)
    inner = DataLoader(Noise(40), 4)
    for _x, _ in (a := quiet(outer)):
        loop(b := quiet(inner))
    assert a.run.steps == 6 and b.run.steps == 60
    assert a.run.outcome == b.run.outcome == "finished"
    watched = quiet(range(4))
    four = range(4)
    assert [(a, b) for a in watched for b in watched] == [(a, b) for a in four for b in four]


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
    with pytest.raises(type(problem)) as caught, quiet(range(50)) as watched:
        for i in watched:
            if i == 20:
                raise problem
    assert caught.value is problem and watched.run.steps == 20
    assert watched.run.outcome == outcome and str(problem) in (watched.run.error or "")


def test_an_iterator_that_something_still_holds_has_its_pass_and_its_failure_in_the_run():
    watched = quiet(range(50))
    held = []  # as by a debugger, or for a moment by what samples the lines
    for _ in range(4):
        held.append(iter(watched))
        next(held[-1])
    assert len(watched.run.passes_ended) == 3
    with pytest.raises(KeyError), watched:
        next(held[-1])
        raise KeyError("mine")
    assert len(watched.run.passes_ended) == 4 and watched.run.outcome == "failed"
    assert "mine" in watched.run.error


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sample_that_cannot_be_read_fails_as_without_a_watch_and_a_loop_may_go_on(workers):
    loader = DataLoader(Noise(40, bad=21), 4, num_workers=workers)
    batches = iter(quiet(loader))
    watched = watch.last
    seen = [next(batches) for _ in range(5)]
    with pytest.raises(ValueError, match="sample 21 cannot be read"):
        next(batches)
    assert watched.run.outcome == "failed" and watched.run.steps == 5
    assert "sample 21 cannot be read" in watched.run.error
    assert len(seen + list(batches)) == 9  # a loop that skips what cannot be read
    assert watched.run.steps == 9 and watched.run.outcome == "finished"


def test_a_loader_that_cannot_begin_fails_as_without_a_watch_and_is_explained():
    class Local(DataLoader):
        def __iter__(self):
            raise AttributeError("Can't pickle local object 'Local'")

    with pytest.raises(AttributeError, match="Can't pickle local object 'Local'"):
        loop(watched := quiet(Local(Noise(), 4)))
    assert watched.run.outcome == "failed" and "at the top of a module" in watched.run.error


def test_an_iterator_that_is_used_up_gives_nothing_and_says_so(capsys):
    with pytest.raises(TypeError, match=r"lk\.watch\(int\)"):
        watch(3)
    watched = watch(iter(range(5)))
    assert loop(watched) == [0, 1, 2, 3, 4] and "gave no batch" not in capsys.readouterr().err
    for used_up in (watched, watch(iter(DataLoader(Noise(0), 4)))):
        assert loop(used_up) == [] and "gave no batch" in capsys.readouterr().err
    assert watch.last.run.steps == 0 and watch.last.run.outcome == "finished"


# -- given to a trainer --------------------------------------------------------------------------


class Sampled(DataLoader):
    """A loader as accelerate and Lightning make them: it has epochs of its own."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_a_trainer_that_asks_its_loader_finds_all_it_asks_for():
    """What transformers.Trainer and Lightning do with the loader they are given."""
    loader = Sampled(Noise(), 8, shuffle=True)
    watched = quiet(loader)
    assert len(watched) == 6 and bool(watched)
    for name in ("dataset", "batch_size", "sampler", "batch_sampler"):
        assert getattr(watched, name) is getattr(loader, name)
    assert not hasattr(watched, "no_such_thing")
    for epoch in range(2):
        watched.set_epoch(epoch)
        loop(watched)
    assert loader.epoch == 1 and watched.run.steps == 12
    for other in (copy.copy(watched), pickle.loads(pickle.dumps(watched))):
        assert len(other) == 6 and len(loop(other)) == 6


# -- it leaks nothing ----------------------------------------------------------------------------


@pytest.mark.slow
def test_many_thousand_steps_leave_memory_as_it_was():
    process = psutil.Process()
    sizes = []
    batch = [torch.zeros(4, 2), torch.zeros(4)]
    watched = quiet(batch for _ in range(20_000))
    for i, _ in enumerate(watched):
        if i % 4_000 == 2_000:
            gc.collect()
            sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[0] < 2 * 2**20, sizes
    assert (watched._recorder.folder / "events.jsonl").stat().st_size < 8 * 2**20


def test_a_run_of_days_keeps_a_bounded_log_and_many_generators_few_watches(monkeypatch):
    monkeypatch.setattr(step_log, "KEEP_STEPS", 30)
    loop(watched := quiet(range(100)))
    assert watched.run.steps == 30 and watched._recorder.steps.next == 100
    assert watched.run.outcome == "finished"
    for _ in range(20):
        loop(quiet(i for i in range(3)))
    assert len(watch_live._open) <= watch_live.OPEN_MOST


def test_a_model_given_to_a_loop_that_is_already_watched_is_the_one_that_is_counted():
    batches = [torch.randn(4, 8)] * 40
    loop(quiet(batches))
    model = torch.nn.Linear(8, 1)
    for batch in watch(batches, live=False, model=model):
        model(batch).sum().backward()
    watch.last.run.steps_since(0)
    assert watch.last.run.event("work")["flops"] == 2 * 2 * 4 * 8  # no input's gradient
    assert not model._forward_pre_hooks
    with pytest.raises(TypeError, match=r"lk\.watch\(model=int\)"):
        watch(watch.last, model=3)


def test_keys_are_masked_and_an_anonymous_record_names_nobody(starved, tmp_path, monkeypatch):
    command = "train.py --api-key private --tokenizer bert HF_TOKEN=private --auth=private"
    shown = masked_keys.command_without_keys([*command.split(), "sk-abcdefgh12345"])
    assert shown[3:5] == ["--tokenizer", "bert"] and shown[-1] == "***"
    assert "private" not in " ".join(shown)
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: "anna")
    error = "cannot read '/home/Anna Maria/data/x.jpg' of anna (pid 4711)"
    event = {"event": "error", "message": error, "pid": 4711}
    beside = {"event": "beside", "processes": [{"pid": 1, "name": "chess", "cores": 1.0}]}
    events = [json.dumps(each).encode() for each in (event, beside)]
    (line,) = privacy.anonymous(events)
    found = json.loads(line)
    assert found["message"] == "cannot read 'x.jpg' of user (pid 0)" and found["pid"] == 1
    host = "waiting for process 7 on annas-laptop; in img / 255 / 2"
    monkeypatch.setattr(privacy.platform, "node", lambda: "annas-laptop")
    event = {"event": "error", "pids": [4711, 4712], "workers": {"4712": -9}, "message": host}
    found = json.loads(*privacy.anonymous([json.dumps(event).encode()]))
    assert found["pids"] == [1, 2] and found["workers"] == {"2": -9}
    assert found["message"] == "waiting for process 0 on <name>; in img / 255 / 2"
    loaded = lk.load(starved.run.save(tmp_path / "run.jsonl", anonymous=True))
    assert loaded.utilization == starved.run.utilization
    assert [x.line for x in loaded.lines.lines] == [x.line for x in starved.run.lines.lines]
    text = (tmp_path / "run.jsonl").read_text()
    assert str(ROOT) not in text and f":{os.getpid()}," not in text


# -- in a notebook -------------------------------------------------------------------------------

CELL = """
import time, sys
from labkit.view.watch_live import watch
watched = watch(list(range(60)))
for i in watched: time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_cell_ends_with_the_figure_and_the_diagnosis():
    pytest.importorskip("ipykernel")
    from test_kernel import kernel

    shown = []

    def see(message):
        if message["msg_type"] in ("display_data", "update_display_data", "error", "stream"):
            shown.append((message["msg_type"], message["content"]))

    with kernel() as (_manager, client):
        reply = client.execute_interactive(CELL, timeout=60, output_hook=see)
        assert reply["content"]["status"] == "ok", shown
        data = [content["data"] for kind, content in shown if "display" in kind]
        assert any("image/png" in each for each in data)
        assert any("Bottleneck" in each.get("text/html", "") for each in data)
