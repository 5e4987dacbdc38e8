"""Inside a loader: what each worker does is recorded, and no batch is another for it."""

import itertools
import sys
import time

import pytest
import torch
from helpers import Waiting, watched
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info

import labkit as lk
from labkit.instruments import hangs

pytestmark = pytest.mark.usefixtures("watches_end")
slow = pytest.mark.slow


class Samples(Dataset):
    """Random samples; each says whether the worker's info has this very dataset."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.randn(3), index, info is None or info.dataset is self


class AtOnce(Samples):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 37, step):
            yield torch.randn(3), index, info is None or info.dataset is self


KINDS = {
    "plain": (Samples, {"batch_size": 4, "shuffle": True}),
    "stream": (Stream, {"batch_size": 4}),
    "batch sampler": (Samples, {"batch_sampler": BatchSampler(range(39, -1, -1), 4, False)}),
    "at once": (AtOnce, {"batch_size": 4, "shuffle": True}),
    "no batches": (Samples, {"batch_size": None}),
    "persistent": (Samples, {"batch_size": 4, "persistent_workers": True}),
}


def made(kind, workers):
    """Return a loader of a kind."""
    dataset, how = KINDS[kind]
    return DataLoader(dataset(), num_workers=workers, **how)


def two_epochs(loader):
    torch.manual_seed(0)
    batches = [batch for _ in range(2) for batch in loader]
    return batches, torch.get_rng_state()


@pytest.mark.parametrize(
    "kind, workers",
    [case for case in itertools.product(KINDS, (0, 2)) if case != ("persistent", 0)],
)
def test_batches_are_the_same_to_the_bit_and_all_are_counted(kind, workers):
    plain = two_epochs(made(kind, workers))
    loader = made(kind, workers)
    dataset = loader.dataset
    seen = two_epochs(watched := lk.watch(loader, live=False))
    torch.testing.assert_close(seen, plain, rtol=0, atol=0)
    assert all(torch.as_tensor(has_own_dataset).all() for *_, has_own_dataset in seen[0])
    assert loader.dataset is dataset and loader.worker_init_fn is None
    del loader
    run = watched.run
    watched.close()
    recorded = run.workers
    assert len(recorded) == max(1, workers)
    assert len(seen[0]) == run.steps
    if kind != "persistent":  # whose workers go on, and keep the rows of their last moment
        sums = recorded.rows[["batches", "items"]].sum().tolist()
        assert sums == [run.steps, 74 if kind == "stream" else 80]


# -- the whole time ------------------------------------------------------------------------------

SCRIPT = """
import time, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train, test = DataLoader(torch.randn(160, 4), 4), DataLoader(torch.randn(80, 4), 4)
for epoch in range(3):
    for batch in train:
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.002)
    for batch in test:
        time.sleep(0.02)
    time.sleep(0.1)
"""


@slow
def test_the_whole_time_of_a_script_is_shared_out_by_loops_and_adds_up_to_one(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    _, found = watched([sys.executable, path])
    parts = {part["part"]: part for part in found["wall_shares"]["parts"]}
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    trains, validates = parts["training loop"], parts["validation"]
    assert trains["seconds"] > 120 * 0.002 and validates["seconds"] > 60 * 0.02
    assert (trains["place"], validates["place"]) == ("train.py:8", "train.py:12")
    assert {"before the first batch", "between epochs"} <= parts.keys()
    causes = {each["cause"]: each for each in found["findings"]}
    assert "is validation (train.py:12)" in causes["validation"]["evidence"]


# -- headroom ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_starved_loop_has_headroom_and_a_watch_records_no_replayed_step():
    watched = lk.watch(DataLoader(Waiting(0.01, 600), 4, num_workers=2), live=False)
    done = 0
    for _ in (room := lk.headroom(watched)):
        time.sleep(0.004)
        done += 1
    watched.close()
    run = watched.run
    assert room.factor > 1.5 and room.low > 1.2 and "at most" in repr(room)
    assert done == len(room) == 150 and 10 < run.steps < 140
    assert run.wait_ms > 2 * run.compute_ms  # as of a loop without replay
    assert run.event("headroom")["factor"] == room.factor
    first = run.diagnose().findings[0]
    assert first.name == "input" and (first.at_most or first.expected[0]) <= room.factor


# -- hangs ---------------------------------------------------------------------------------------


class Stuck(Waiting):
    def __getitem__(self, index):
        time.sleep(3.5 if index == 21 else 0.0)
        return index


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_hang_is_said_once_with_its_worker_and_item(workers, monkeypatch, capfd):
    monkeypatch.setattr(hangs, "LEAST_S", 1.0)
    monkeypatch.setattr(hangs, "LEAST_TIMES", 0.0)  # workers have only just started
    watched = lk.watch(DataLoader(Stuck(0, 40), 4, num_workers=workers), live=False)
    for _ in watched:
        time.sleep(0.01)
    watched.close()
    said = capfd.readouterr().err
    who = "worker 1" if workers else "the main process"
    assert said.count("nothing has moved for") == 1
    assert who in said and "item 21 of batch 5" in said and "timeout=60" in said
    run = watched.run
    assert not list(run.path.glob("progress-*"))
