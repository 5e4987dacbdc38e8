"""A search tries what prediction suggests, believes only runs, and returns what is cheap and fast.

The search itself is tested on a made-up machine whose throughputs are known; a few real runs show
that the reader's own data and step arrive where they are measured.
"""

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import labkit as lk
from labkit.bench import by_value
from labkit.bench import user_dataset as own_source
from labkit.tuner import memory, source
from labkit.tuner.search import Measured, Search
from labkit.tuner.setting import Setting, space
from labkit.tuner.tuning import Trial, Tuning

torch = pytest.importorskip("torch")

START = Setting(batch_size=16)


class FakeRun:
    """What the search asks a run for."""

    def __init__(self, setting):
        self.setting, self.id, self.telemetry = setting, "fake", []


class FakeMachine:
    """Throughputs by a formula, with or without an error of prediction; counts its runs."""

    def __init__(self, true, predicted=None):
        self.true, self.predicted, self.ran = true, predicted or true, []

    def measure(self, setting, rate):
        self.ran.append(setting)
        rate = self.true(setting)
        if isinstance(rate, str):
            return Measured(None, rate, FakeRun(setting))
        return Measured(rate, None, FakeRun(setting))

    def expect(self, run, here, setting):
        value = self.predicted(setting)
        return value, value / 1.1, value * 1.1


def searched(machine, start=START, most=12, sizes=(16,), **more):
    """Return the tuning of a whole search on a fake machine."""
    tuning = Tuning("fake", start)
    settings = [s for s in space(start, most, sizes) if s != start]
    return Search(tuning, settings, machine.measure, machine.expect, **more).run()


def waiting(setting):
    """Workers that wait bring their whole; a device that takes 1000/s is the limit."""
    return min(1000, 200 * max(1, setting.num_workers))


def test_the_fewest_workers_that_reach_the_limit_win():
    tuning = searched(FakeMachine(waiting))
    assert tuning.best["num_workers"] == 6 and tuning.best["prefetch_factor"] == 1
    assert tuning.speedup == pytest.approx(5)
    assert "num_workers=6" in tuning.snippet


def test_it_measures_few_of_the_settings_it_could():
    machine = FakeMachine(waiting)
    searched(machine)
    assert len(machine.ran) <= 5 < len(space(START, 12, (16,)))


def test_a_wrong_prediction_is_corrected_by_what_was_measured():
    def cores(setting):  # two cores, which the prediction takes for many
        return 100 * min(2, max(1, setting.num_workers)) - 2 * setting.num_workers

    tuning = searched(FakeMachine(cores, predicted=waiting))
    assert tuning.winner.rate >= 0.9 * cores(Setting(num_workers=2, prefetch_factor=1))


def test_it_never_returns_what_is_slower_than_the_start():
    def worse(setting):
        return 500 - 50 * setting.num_workers

    tuning = searched(FakeMachine(worse, predicted=waiting))
    assert tuning.best == START.to_dict() and tuning.speedup == 1


def test_a_close_gain_is_measured_again_and_dropped_when_it_was_noise():
    calls = []

    def lucky_once(setting):
        if not setting.num_workers:
            return 100
        calls.append(setting)
        return 106 if len(calls) == 1 else 96

    tuning = searched(FakeMachine(lucky_once, predicted=lambda s: 106 if s.num_workers else 100))
    assert tuning.best["num_workers"] == 0
    assert len(tuning.baseline.rates) > 1


def test_a_start_with_too_many_workers_comes_down_to_the_cheapest_as_fast():
    start = Setting(num_workers=12, prefetch_factor=8, batch_size=16)
    tuning = searched(FakeMachine(waiting), start=start)
    assert tuning.best["num_workers"] == 6 and tuning.winner.rate == 1000


def test_a_setting_that_fails_is_shown_and_nothing_larger_is_tried():
    def fails(setting):
        return "out of memory" if setting.num_workers > 4 else waiting(setting)

    machine = FakeMachine(fails, predicted=waiting)
    tuning = searched(machine)
    failed = [trial.setting for trial in tuning.tried if trial.error]
    assert failed and tuning.best["num_workers"] == 4
    assert "out of memory" in repr(tuning)


def test_a_start_that_cannot_be_measured_ends_the_search_with_its_reason():
    with pytest.raises(RuntimeError, match=r"dataset\[7\] failed"):
        searched(FakeMachine(lambda setting: "dataset[7] failed"))


def test_batch_sizes_are_searched_only_when_asked_for():
    def larger_is_faster(setting):
        return waiting(setting) * setting.batch_size / 16

    assert searched(FakeMachine(larger_is_faster)).best["batch_size"] == 16
    best = searched(FakeMachine(larger_is_faster), sizes=(16, 64)).best
    assert best["batch_size"] == 64


def test_a_variant_is_kept_only_where_it_is_faster():
    def pinning_helps(setting):
        return waiting(setting) * (1.2 if setting.pin_memory else 1)

    variants = ({"pin_memory": True},)
    assert searched(FakeMachine(pinning_helps, predicted=waiting), variants=variants).best[
        "pin_memory"
    ]
    assert not searched(FakeMachine(waiting), variants=variants).best["pin_memory"]


def test_an_interrupt_keeps_the_best_so_far():
    class Interrupted(FakeMachine):
        def measure(self, setting, rate):
            if len(self.ran) == 2:
                raise KeyboardInterrupt
            return super().measure(setting, rate)

    tuning = Tuning("fake", START)
    machine = Interrupted(waiting)
    search = Search(tuning, space(START, 12, (16,))[1:], machine.measure, machine.expect)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert tuning.interrupted and tuning.best["num_workers"] == 6
    assert "interrupted" in repr(tuning) and json.dumps(tuning.to_dict())


class MemoryRun:
    """A run with batches of 1 GiB, in processes of 2 GiB."""

    telemetry = [{"rss_gib": 2.0}]

    def event(self, name):
        return {"bytes": 2**30} if name == "handoff" else None


def test_what_may_not_fit_in_memory_is_refused_with_the_numbers():
    tuning = Tuning("fake", START)
    trial = Trial(START, "", rates=[100.0], runs=[MemoryRun()])
    tuning.tried.append(trial)
    free = memory.Free(ram=32 * 2**30, shm=8 * 2**30)
    small = Setting(num_workers=1, prefetch_factor=1, batch_size=16)
    deep, many = small.but(prefetch_factor=8), small.but(num_workers=16)
    assert memory.refusal(small, tuning.tried, free) is None
    assert "/dev/shm" in memory.refusal(deep, tuning.tried, free)
    assert "RAM" in memory.refusal(many, tuning.tried, memory.Free(free.ram, None))


def test_refused_settings_are_left_out_and_said_so():
    def refuse(setting, trials):
        return "no memory" if setting.num_workers > 2 else None

    tuning = searched(FakeMachine(waiting), refuse=refuse)
    assert tuning.best["num_workers"] == 2
    assert any("no memory" in note for note in tuning.notes)


# -- the reader's own data -------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset):
    """Items that take a while, and fail where they are told to."""

    def __init__(self, count=64, wait_s=0.002, bad=None):
        self.count, self.wait_s, self.bad = count, wait_s, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("cannot be decoded")
        time.sleep(self.wait_s)
        return torch.full((8,), float(index)), index


class Stream(torch.utils.data.IterableDataset):
    """A short stream; shared among its workers or not."""

    def __init__(self, shared=True, once=False):
        self.shared, self.once, self.left = shared, once, None

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker and self.shared else (0, 1)
        numbers = range(start, 200, step)
        if not self.once:
            return iter(numbers)
        self.left = self.left or iter(numbers)
        return self.left


def measured(dataset, step=None, collate_fn=None, **knobs):
    """Return one real run of the reader's own dataset."""
    from labkit.results.launch import launch

    made = source.of(dataset, collate_fn, step)
    pipeline = lk.Pipeline(device="cpu", xray=False, steps=40, seconds=20, batch_size=8)
    return launch(pipeline.but(**knobs), source=made).wait()


def test_an_object_from_a_notebook_is_tuned_and_leaves_no_payload_behind(tmp_path):
    code = """
        import time
        import labkit as lk

        class Items:  # of __main__, as in a notebook
            def __len__(self):
                return 50
            def __getitem__(self, index):
                time.sleep(0.004)
                return float(index)

        def step(batch):
            assert batch.shape == (8,)
            time.sleep(0.002)

        tuning = lk.tune(Items(), step=step, batch_size=8, seconds=0.3, max_workers=2)
        print(tuning.to_dict()["best"]["num_workers"], tuning.speedup > 1.2, len(tuning.tried))
        run = tuning.baseline.runs[0]
        print(run.pipeline.num_workers, run.pipeline.batch_size, run.pipeline.dataset)
        print([p.name for r in tuning.tried for run in r.runs for p in run.path.glob("*.pkl")])
        print("DataLoader(dataset, num_workers=" in tuning.snippet)
    """
    script = tmp_path / "notebook.py"
    script.write_text(textwrap.dedent(code))
    root = os.path.dirname(os.path.dirname(lk.__file__))
    env = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=env, timeout=180
    )
    assert done.returncode == 0, done.stderr
    first, knobs, left, snippet = done.stdout.splitlines()
    assert int(first.split()[0]) > 0 and "True" in first
    assert knobs == "0 8 None" and left == "[]" and snippet == "True"
    assert "samples/s" in done.stderr


MODULE = """
    import time, torch

    def make():
        return torch.utils.data.TensorDataset(torch.arange(64.0))

    def step(batch):
        time.sleep(0.001)

    def slow_collate(items):
        time.sleep(0.01)
        return torch.utils.data.default_collate(items)

    def broken():
        raise FileNotFoundError("data/train is not there")
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the reader's in the current folder."""
    (tmp_path / "own_data.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


CELL = """
import time
import labkit as lk

class Items:
    def __len__(self):
        return 50
    def __getitem__(self, index):
        time.sleep(0.004)
        return float(index)

lk.tune(Items(), batch_size=8, seconds=2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="interrupts a kernel with a signal")
def test_in_a_notebook_the_table_grows_and_an_interrupt_keeps_the_best_so_far():
    from test_kernel import kernel

    with kernel() as (manager, client):
        asked, page = client.execute(CELL), ""
        while "best so far" not in page:
            message = client.get_iopub_msg(timeout=60)
            assert message["msg_type"] != "error", message["content"]
            page = message["content"].get("data", {}).get("text/html", "")
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != asked:
            pass
        assert reply["content"].get("ename") == "KeyboardInterrupt", reply["content"]
        check = "assert lk.tune.last.interrupted and lk.tune.last.winner; print(lk.tune.last)"
        texts = []
        reply = client.execute_interactive(
            check, timeout=60, output_hook=lambda m: texts.append(m["content"].get("text", ""))
        )
        assert reply["content"]["status"] == "ok" and "interrupted" in "".join(texts)


def test_a_module_and_function_in_the_current_folder_is_found_from_a_terminal(
    own_module, labkit_command
):
    import labkit

    env = os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(labkit.__file__))}
    done = labkit_command(
        "tune", "own_data:make", "--step", "own_data:step", "--collate", "own_data:slow_collate",
        "--batch-size", "8", "--seconds", "0.3", "--max-workers", "2", "--json", env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = "best baseline_throughput best_throughput trials seconds snippet"
    assert set(names.split()) <= set(found)
    assert found["best"]["num_workers"] > 0
    assert found["best_throughput"] >= found["baseline_throughput"]
    assert found["best"]["pin_memory"] is False and "pin_memory" in found["reasons"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("own_data:nothing", "has no 'nothing'"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("own_data:broken", "data/train is not there"),
    ],
)
def test_a_name_that_is_not_there_ends_with_its_reason(own_module, given, message):
    run = measured(given)
    assert run.outcome == "failed" and message in run.error


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_fails_names_the_item_and_the_reason(workers):
    run = measured(Numbers(wait_s=0, bad=13), num_workers=workers)
    assert run.outcome == "failed"
    assert "dataset[13] failed: ValueError: cannot be decoded" in run.error


def test_tuning_a_dataset_that_fails_says_so():
    with pytest.raises(RuntimeError, match=r"dataset\[0\] failed: ValueError: cannot be decoded"):
        lk.tune(Numbers(count=1, bad=0), seconds=0.2)


def test_a_stream_is_run_again_when_it_ends():
    run = measured(Stream(), num_workers=2, steps=80)
    assert run.outcome == "finished" and run.steps == 80  # 25 batches a pass


def test_a_stream_that_every_worker_repeats_is_refused():
    run = measured(Stream(shared=False), num_workers=2)
    assert run.outcome == "failed" and "get_worker_info" in run.error


def test_a_stream_that_is_over_after_one_pass_is_refused():
    run = measured(Stream(once=True), steps=80)
    assert run.outcome == "failed" and "one-shot" in run.error


def test_batches_of_a_short_last_one_are_counted_as_they_are():
    run = measured(Stream(), batch_size=48, steps=10)  # 200 items: 4 batches and one of 8
    assert run.samples == 2 * 200


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (iter([1, 2, 3]), "one-shot iterator"),
        (Numbers, "Give an object of it"),
        (42, "no dataset"),
        ("make_dataset", "module:function"),
    ],
)
def test_what_is_no_dataset_is_refused_before_anything_runs(bad, message):
    with pytest.raises(ValueError, match=message):
        lk.tune(bad)


def test_a_dataset_that_cannot_be_pickled_is_refused_with_the_way_out():
    dataset = Numbers()
    dataset.lock = threading.Lock()
    with pytest.raises(ValueError, match="module:function"):
        lk.tune(dataset)


def test_what_is_sent_to_spawned_workers_may_come_from_a_notebook():
    code = "class Here:\n def __len__(self): return 3\n def __getitem__(self, i): return i"
    scope = {"__name__": "__main__"}
    exec(code, scope)
    sent = by_value.sendable(own_source.NamesTheItem(scope["Here"]()))
    assert [pickle.loads(pickle.dumps(sent))[i] for i in range(3)] == [0, 1, 2]


def test_a_loader_brings_its_dataset_and_its_settings():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, prefetch_factor=3)
    found, knobs = source.of_loader(loader)
    assert found.name == "Numbers" and "collate_fn" in found.parts
    assert Setting.of(knobs) == Setting(num_workers=2, prefetch_factor=3, batch_size=4)


def test_a_pipeline_is_tuned_and_the_result_runs_in_it(tiny):
    pipeline = tiny.but(prep_ms=8)
    tuning = lk.tune(pipeline, seconds=0.2, max_workers=2)
    assert tuning.best["num_workers"] > 0 and tuning.speedup > 1
    assert pipeline.but(**tuning.best).num_workers == tuning.best["num_workers"]
    assert tuning.reasons["persistent_workers"].startswith("keeps the workers")
    assert lk.tune.last is tuning


@pytest.mark.parametrize(
    "knobs",
    [{"batch_size": 0}, {"baseline": {"workers": 2}}, {"max_workers": -1}, {"step": "nocolon"}],
)
def test_bad_arguments_are_refused_before_anything_runs(knobs):
    with pytest.raises(ValueError):
        lk.tune(Numbers(), **knobs)


def test_the_page_escapes_what_comes_from_outside():
    from labkit.show.tuning import page

    tuning = searched(FakeMachine(waiting))
    tuning.name = "<script>"
    tuning.tried[-1].error = "<b>bad</b>"
    assert "<script>" not in page(tuning) and "<b>bad" not in page(tuning)
    assert "measured" in page(tuning)
