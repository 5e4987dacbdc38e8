"""A search tries what prediction suggests, believes only runs, and returns what is cheap and fast.

The search itself is tested on a made-up machine whose throughputs are known, the reader's own data
where the bench takes it in; a few real runs show that all of it arrives where it is measured.
"""

import copy
import io
import json
import os
import pickle
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.bench import by_value, user_dataset, user_parts, user_step
from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.prediction import WORTH
from labkit.diagnosis.recommendation import recommend_workers
from labkit.results.run import Run
from labkit.tuning import memory, source
from labkit.tuning.loader_search import LoaderSearch
from labkit.tuning.search_result import Tuning
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.trial import Outcome, Trial, forecast

torch = pytest.importorskip("torch")
START = LoaderSetting(batch_size=16)
RECORDED = lk.recorded("workers-0")


def waiting(setting):
    """Workers that wait bring their whole; a device that takes 1000/s is the limit."""
    return min(1000, 200 * max(1, setting.num_workers))


def searched(true, predicted=waiting, start=START, tuning=None, spread=0.0, refuse=None, cores=1):
    """Return the tuning of a whole search on a machine whose samples/s are `true(setting)`."""

    def measure(knobs, _expected):
        rate = true(LoaderSetting.of(knobs))
        return Outcome(None, rate, run) if isinstance(rate, str) else Outcome(rate, None, run)

    def forecast(_run, here, changes):
        value = predicted(here.but(**changes))
        return Estimate(value, value / 1.1, value * 1.1)

    run = copy.copy(RECORDED)
    run.computed = {Run.spread.fget: spread}
    tuning = tuning or Tuning("fake", start.to_dict())
    allowed = refuse or (lambda setting, trials: None)
    bench = SimpleNamespace(count=0, measure=measure)
    search = LoaderSearch(
        tuning, bench, forecast, allowed, max_workers=12, cores=cores, try_pinned=True
    )
    return search.run()


def fails(setting):
    return "<b>out of memory" if setting.num_workers > 4 else waiting(setting)


@pytest.mark.parametrize(
    "true, start, workers",
    [
        (waiting, START, 6),  # the fewest that reach the limit
        (waiting, START.but(num_workers=12, prefetch_factor=8), 6),  # the cheapest that is as fast
        (lambda s: 500 - 50 * s.num_workers, START, 0),  # never what is slower than the start
        (fails, START, 4),  # nothing larger than what failed is tried
    ],
)
def test_the_cheapest_setting_as_fast_as_the_fastest_is_found_in_a_few_runs(true, start, workers):
    tuning = searched(true, start=start)
    assert tuning.best["num_workers"] == workers
    assert tuning.speedup == tuning.winner.rate / true(start) >= 1
    runs = sum(len(trial.rates) + bool(trial.error) for trial in tuning.tried)
    assert runs <= (5 if true is waiting else 8)  # what agrees with the model is not confirmed
    assert f", num_workers={workers}" in tuning.snippet and tuning.snippet in tuning.script()
    assert "<b>" not in tuning._repr_html_().replace("<b>Tuning", "")
    assert ("out of memory" in repr(tuning)) == (true is fails)


def numpy_items(setting):
    """CPU-bound items as measured on 2 cores: one worker is slower than none, eight are best."""
    known = {0: 1627, 1: 1275, 2: 2300, 3: 2400, 4: 2650, 6: 2700, 8: 2757}
    return known.get(setting.num_workers, 2700)


def hindered(setting):
    """Workers that only get into the way."""
    return 700 if setting.num_workers else 1000


def test_that_no_workers_are_best_is_believed_only_once_some_have_been_measured():
    tuning = searched(numpy_items, lambda s: 1627 if s.num_workers == 0 else 1300, cores=2)
    best = 2757
    assert tuning.winner.rate >= 0.95 * best, tuning
    tuning = searched(hindered, lambda s: 1000 if s.num_workers == 0 else 700, cores=2)
    assert tuning.best["num_workers"] == 0 and len(tuning.tried) == 3


@pytest.mark.parametrize("best", [4, 8])
def test_both_neighbours_of_the_best_are_measured_before_the_search_ends(best):
    def true(setting):
        return {0: 300, 6: 1000, best: 1200}.get(setting.num_workers, 900)

    def flat(setting):  # all that the model knows is that six workers are enough
        return 300 if not setting.num_workers else 940 if setting.num_workers < 6 else 1000

    tuning = searched(true, flat)
    assert tuning.best["num_workers"] == best, tuning


@pytest.mark.parametrize("name", ["workers-0", "workers-2", "workers-6"])
def test_the_first_number_of_workers_tried_is_the_one_that_the_verdict_recommends(name):
    run = lk.recorded(name)
    start = LoaderSetting.of(run.pipeline.to_dict())
    tuning = Tuning("fake", start.to_dict())
    tuning.tried.append(Trial(start.to_dict(), rates=[run.throughput], runs=[run]))
    search = LoaderSearch(
        tuning,
        None,
        forecast,
        lambda setting, trials: None,
        max_workers=12,
        cores=run.machine.cpu_cores,
    )
    trial = search.propose()
    recommended = recommend_workers(run).num_workers
    if recommended == start.num_workers:  # it may try what the verdict finds too little
        assert trial is None or trial.expected[0] <= (1 + WORTH) * run.throughput
    else:
        assert trial.setting.num_workers == recommended


def test_workers_are_not_taken_for_a_gain_that_the_runs_own_unevenness_may_be():
    def slightly(setting):
        return 104 if setting.num_workers else 100

    uneven, even = (searched(slightly, slightly, spread=spread) for spread in (0.1, 0.01))
    assert uneven.best["num_workers"] == 0 and len(uneven.baseline.rates) == 1
    assert even.best["num_workers"] == 1 and len(even.baseline.rates) > 1


def test_an_interrupt_keeps_the_best_so_far_and_a_start_without_numbers_gives_its_reason():
    def interrupted(setting):
        if len(tuning.tried) > 2:
            raise KeyboardInterrupt
        return waiting(setting)

    tuning = Tuning("fake", START.to_dict())
    with pytest.raises(KeyboardInterrupt):
        searched(interrupted, lambda s: waiting(s) * (1.15 if s.num_workers else 1), tuning=tuning)
    assert tuning.interrupted and tuning.best["num_workers"] == 6
    assert "interrupted" in repr(tuning) and json.dumps(tuning.to_dict())
    with pytest.raises(RuntimeError, match=r"dataset\[7\] failed"):
        searched(lambda setting: "dataset[7] failed")


def test_an_interrupted_cell_returns_what_a_sweep_or_a_tuning_has(monkeypatch, capsys):
    def pressed(*_how, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.results.sweep.Sweep.measure", pressed)
    with pytest.raises(KeyboardInterrupt):
        lk.sweep(num_workers=[0, 2])
    monkeypatch.setattr("labkit.view.running.in_notebook", lambda: True)
    assert "(2 not run)" in str(lk.sweep(num_workers=[0, 2]))
    with pytest.raises(ValueError, match="needs a knob and its values"):
        lk.sweep()
    assert capsys.readouterr().out.startswith("stopped after 0 of 2 runs")
    monkeypatch.setattr("labkit.tuning.trial_bench.launch", pressed)
    assert "nothing measured" in lk.tune(lk.Pipeline()).headline


def test_what_may_not_fit_in_memory_is_left_out_with_the_numbers(monkeypatch):
    gib = 2**30
    run = SimpleNamespace(telemetry=[{"rss_gib": 2.0}], event=lambda name: {"bytes": gib})
    tried = [Trial(START.to_dict(), rates=[100.0], runs=[run])]  # 1 GiB a batch, 2 GiB a process
    small = START.but(num_workers=1, prefetch_factor=1)
    deep = small.but(prefetch_factor=8)
    many = small.but(num_workers=16)
    monkeypatch.setattr(memory, "free_memory", lambda: (32 * gib, 8 * gib))
    assert memory.too_large(small, tried) is None
    assert "/dev/shm" in memory.too_large(deep, tried)
    monkeypatch.setattr(memory, "free_memory", lambda: (32 * gib, None))
    assert "RAM" in memory.too_large(many, tried)
    tuning = searched(waiting, refuse=lambda s, _trials: "no memory" if s.num_workers > 2 else None)
    assert tuning.best["num_workers"] == 2 and "no memory" in tuning.notes[0]


class Numbers(torch.utils.data.Dataset):
    """Items that fail where they are told to."""

    def __init__(self, bad=None):
        self.bad = bad

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("cannot be decoded")
        return torch.full((8,), float(index)), index


class Stream(torch.utils.data.IterableDataset):
    """A short stream; shared among its workers or not."""

    def __init__(self, shared=True, once=False):
        self.shared = shared
        self.once = once
        self.left = None

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker and self.shared else (0, 1)
        self.left = self.left or iter(range(start, 200, step))
        return self.left if self.once else iter(range(start, 200, step))


@pytest.fixture
def batches(tmp_path, monkeypatch):
    """Send a dataset as a run would, take it in as the bench does, and return its batches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # not 5 s
    taken = []

    def taken_in(dataset, **knobs):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        job = SimpleNamespace(**lk.Pipeline(batch_size=8, device="cpu").but(**knobs).to_dict())
        _, loader = user_parts.prepare(source.source_of(dataset).place(folder), job, folder)
        assert not (folder / source.PAYLOAD).exists()
        taken.append(iter(loader))
        return taken[-1]

    yield taken_in
    for loader in taken:
        if hasattr(loader.iterator, "_shutdown_workers"):
            loader.iterator._shutdown_workers()


MODULE = """
    import time, torch

    def make():
        return torch.utils.data.TensorDataset(torch.arange(64.0))

    def step(batch):
        time.sleep(0.001)

    def slow_collate(items):
        time.sleep(0.02)
        return torch.utils.data.default_collate(items)

    def broken():
        raise FileNotFoundError("data/train is not there")
"""


@pytest.mark.parametrize(
    "dataset, workers, message",
    [
        ("own_data:broken", 0, "data/train is not there"),
        (Numbers(bad=13), 2, r"dataset\[13\] failed: ValueError: cannot be decoded"),
        (Stream(once=True), 0, "one-shot"),
        (Stream(shared=False), 2, "get_worker_info"),
    ],
)
def test_a_dataset_that_fails_or_cannot_be_read_again_says_why(batches, dataset, workers, message):
    stream = batches(Stream(), batch_size=48)  # 200 items: 4 batches and one of 8, then again
    assert sum(len(next(stream)[1]) for _ in range(10)) == 2 * 200
    Path("own_data.py").write_text(textwrap.dedent(MODULE))
    with pytest.raises((RuntimeError, AttributeError, ImportError, OSError), match=message):
        loader = batches(dataset, num_workers=workers)
        for _ in range(30):
            next(loader)


@pytest.mark.parametrize(
    "bad, knobs, message",
    [
        (Numbers, {}, "Pass an instance"),
        ("make_dataset", {}, "module:function"),
        (Numbers(bad=threading.Lock()), {}, r"cannot be sent .* 'module:function'"),
        (Numbers(), {"batch_size": 0}, "batch_size=0"),
        (Numbers(), {"baseline": {"workers": 2}}, "baseline workers=2"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_runs(bad, knobs, message):
    with pytest.raises(ValueError, match=message):
        lk.tune(bad, **knobs)


def test_of_what_is_too_large_to_be_sent_the_largest_part_is_named(monkeypatch):
    monkeypatch.setattr(source, "MAX_PAYLOAD", 2**20)
    model = torch.nn.Linear(1024, 512)
    with pytest.raises(
        ValueError, match=r"every run holds 2 MiB .at most 1., most of it the model"
    ):
        source.source_of(Numbers(), model=model, step=len)


def test_what_is_sent_may_come_from_a_notebook_and_a_loader_brings_its_settings():
    code = "class Here:\n def __len__(self): return 3\n def __getitem__(self, i): return i"
    exec(code, scope := {"__name__": "__main__"})
    sent = io.BytesIO()
    by_value.dump(user_dataset.NamesTheItem(scope["Here"]()), sent)
    assert [pickle.loads(sent.getvalue())[i] for i in range(3)] == [0, 1, 2]
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, prefetch_factor=3)
    found, knobs = source.source_of_loader(loader)
    assert found.name == "Numbers" and "collate_fn" in found.parts
    assert LoaderSetting.of(knobs) == LoaderSetting(num_workers=2, prefetch_factor=3, batch_size=4)


@pytest.mark.slow
def test_a_module_and_function_in_the_current_folder_is_found_from_a_terminal(
    tmp_path, monkeypatch, labkit_command
):
    (tmp_path / "own_data.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    given = "own_data:make --step own_data:step --collate own_data:slow_collate --batch-size 8"
    given += " --seconds 0.3 --max-workers 1 --json"
    env = os.environ | {"PYTHONPATH": str(Path(lk.__file__).parents[1])}
    done = labkit_command("tune", *given.split(), env=env)
    assert done.returncode == 0, done.stderr
    assert "the starting point" in done.stderr and "x the baseline" in done.stderr
    found = json.loads(done.stdout)
    names = "best baseline_throughput best_throughput trials seconds snippet"
    assert set(names.split()) <= set(found)
    assert found["best_throughput"] >= found["baseline_throughput"]
    assert lk.Pipeline().but(**found["best"]).batch_size == 8


def test_an_optimizer_that_is_fused_late_has_its_step_counters_beside_its_weights():
    weights = torch.nn.Parameter(torch.ones(3, device="meta"))
    adam = torch.optim.Adam([weights])
    adam.state[weights]["step"] = torch.tensor(7.0)  # as torch keeps it where it is not fused
    user_step._fuse(adam)
    assert adam.state[weights]["step"].device == weights.device
    with pytest.raises(ValueError, match="Rprop has no fused version"):
        user_step._fuse(torch.optim.Rprop([weights]))
    trained = torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.Adam([trained])
    for fuse in (False, True):
        trained.grad = torch.ones(3)
        if fuse:
            user_step._fuse(adam)
        adam.step()
    assert adam.state[trained]["step"] == 2 and trained[0] < 0.999


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_batches_of_any_format_can_be_told_apart(dtype, shape):
    ones = torch.ones(shape, dtype=getattr(torch, dtype))
    assert user_dataset._bytes_of(ones) == user_dataset._bytes_of(ones.clone())
    assert user_dataset._bytes_of(ones) != user_dataset._bytes_of(torch.zeros_like(ones))
