"""Inside a loader: what each worker does is recorded, and no batch is another for it."""

import contextlib
import itertools
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import Waiting, watched
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info

import labkit as lk
from labkit.process.events import now_ns
from labkit.results.wall_shares import wall_shares
from labkit.watching import hangs, headroom_found, replay_blocks

pytestmark = pytest.mark.usefixtures("watches_end")
slow = pytest.mark.slow


class Samples(Dataset):
    """Random samples; each says whether the worker's info has this very dataset."""

    def __init__(self, size=40):
        self.size = size

    def __len__(self):
        return self.size

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


def joined(samples):
    values, indices, own = zip(*samples, strict=True)
    return {"values": torch.stack(values), "indices": list(indices), "own": all(own)}


def made(kind, workers):
    """Return a loader of a kind."""
    more = {"num_workers": workers, "collate_fn": joined}
    if kind == "stream":
        return DataLoader(Stream(), 4, **more)
    if kind == "batch sampler":
        batches = BatchSampler(range(39, -1, -1), 4, drop_last=False)
        return DataLoader(Samples(), batch_sampler=batches, **more)
    if kind == "no batches":
        return DataLoader(Samples(), None, num_workers=workers)
    if kind == "persistent":
        return DataLoader(Samples(), 4, shuffle=True, persistent_workers=True, **more)
    return DataLoader(AtOnce() if kind == "at once" else Samples(), 4, shuffle=True, **more)


def two_epochs(loader):
    torch.manual_seed(0)
    batches = [batch for _ in range(2) for batch in loader]
    return batches, torch.get_rng_state()


def is_same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return all(is_same(first[name], second[name]) for name in first.keys() | second.keys())
    if isinstance(first, (list, tuple)):
        same_length = len(first) == len(second)
        return same_length and all(map(is_same, first, second))
    return first == second


KINDS = ("plain", "stream", "batch sampler", "at once", "no batches")


@pytest.mark.parametrize(
    "kind, workers",
    [
        *itertools.product(KINDS, (0, 2)),
        ("persistent", 2),
    ],
)
def test_batches_are_the_same_to_the_bit_and_all_are_counted(kind, workers):
    plain, state = two_epochs(made(kind, workers))
    loader = made(kind, workers)
    dataset = loader.dataset
    seen, state_watched = two_epochs(watched := lk.watch(loader, live=False))
    assert is_same(plain, seen) and torch.equal(state, state_watched)
    assert loader.dataset is dataset and loader.worker_init_fn is None
    if kind != "no batches":
        assert all(batch["own"] for batch in seen)
    del loader
    run = watched.run
    watched.close()
    recorded = run.workers
    assert len(recorded) == max(1, workers)
    assert len(seen) == run.steps
    if kind != "persistent":  # whose workers go on, and keep the rows of their last moment
        assert sum(each.batches for each in recorded) == run.steps
        assert sum(each.items for each in recorded) == (74 if kind == "stream" else 80)


class Uneven(Dataset):
    """Items that sleep or compute; one of them takes long."""

    def __init__(self, computes, slow_index=None):
        self.computes = computes
        self.slow_index = slow_index

    def __len__(self):
        return 60

    def __getitem__(self, index):
        seconds = 0.2 if index == self.slow_index else 0.004
        if not self.computes:
            time.sleep(seconds)
        spent = time.process_time() + seconds
        while self.computes and time.process_time() < spent:
            pass
        return index


@slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_item_is_named_and_waiting_is_told_from_computing(workers):
    cpu_ms = {}
    for computes in (True, False):
        loader = DataLoader(Uneven(computes, slow_index=37), 4, num_workers=workers)
        for _ in (watched := lk.watch(loader, live=False)):
            pass
        watched.close()
        recorded = watched.run.workers
        assert (37, 9) in [(each.index, each.batch) for each in recorded.slowest]
        assert recorded[0].slowest_ratio > 5
        cpu_ms[computes] = recorded[0].item_cpu_ms  # no stall of the machine is in it
    assert cpu_ms[False] < 0.5 * cpu_ms[True] and recorded.cpu_share < 0.5
    assert "37 (" in repr(recorded) and recorded.rows.loc[recorded[0].worker, "items"] == 60
    assert recorded.plot(seconds=0.5).axes


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
    torch.save(model.state_dict(), FILE)
    time.sleep(0.1)
"""


@slow
def test_the_whole_time_of_a_script_is_shared_out_by_loops_and_adds_up_to_one(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("FILE", repr(str(tmp_path / "model.pt"))))
    _, found = watched([sys.executable, path])
    parts = found["wall_shares"]["parts"]
    assert sum(part["share"] for part in parts) == pytest.approx(1)
    share = {part["part"]: part for part in parts}
    assert share["validation"]["share"] > share["training loop"]["share"]
    assert (share["training loop"]["place"], share["validation"]["place"]) == (
        "train.py:8",
        "train.py:12",
    )
    assert {"before the first batch", "between epochs", "checkpoints"} <= share.keys()
    assert lk.load(found["record"]).wall_shares.to_dict() == found["wall_shares"]


def test_time_in_a_loop_within_another_counts_once():
    def run(place, passes, trains):
        gone = [
            {"n": n, "began": began, "ended": ended, "trains": trains}
            for n, (began, ended) in enumerate(passes)
        ]
        more = {"passes_begun": [], "saves": [], "steps": 9, "place": [place, 1]}
        return SimpleNamespace(passes_ended=gone, **more)

    training = run("a.py", [(100, 600), (700, 900)], True)
    inner = run("b.py", [(200, 400)], False)
    shares = wall_shares([training, inner], 0, 1000)
    assert {part.part: part.share for part in shares.parts} == pytest.approx(
        {
            "training loop": 0.5,
            "validation": 0.2,
            "before the first batch": 0.1,
            "between epochs": 0.1,
            "after the last epoch": 0.1,
        }
    )


# -- headroom ------------------------------------------------------------------------------------


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(replay_blocks, "BLOCK_NS", 60_000_000)


@slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_starved_loop_has_headroom_and_one_that_computes_has_none(short_blocks, workers):
    rooms = []
    for item_s, body_s, steps in ((0.01, 0.004, 150), (0.0, 0.02, 80)):
        loader = DataLoader(Waiting(item_s, 4 * steps), 4, num_workers=workers)
        room = lk.headroom(loader)
        rooms.append(room)
        done = 0
        for _batch in room:
            time.sleep(body_s)
            done += 1
        assert done == len(room) == steps
    starved, computes = rooms
    assert starved.factor > 1.5 and starved.low > 1.2 and "at most" in repr(starved)
    assert computes.factor < 1.4 and 2 * computes.factor < starved.factor, rooms


def test_a_loop_too_short_for_a_factor_says_so_and_gets_every_batch():
    loader = DataLoader(Waiting(0.0, 40), 4)
    seen = torch.cat(list(room := lk.headroom(loader)))
    assert torch.equal(seen[:, 0], torch.arange(40.0) / 40)
    assert room.factor is None and "too soon" in repr(room)


def test_a_loop_that_takes_its_batches_apart_can_be_replayed(short_blocks):
    loader = [{"x": torch.ones(4), "more": [1, 2]} for _ in range(400)]
    room = lk.headroom(loader)
    for batch in room:
        time.sleep(0.002)
        assert batch.pop("x").add_(1).shape == (4,)
        assert batch["more"].pop() == 2
    assert room.factor is not None and headroom_found.IN_PLACE in room.found.notes


def test_a_watch_records_no_replayed_step(short_blocks):
    watched = lk.watch(DataLoader(Waiting(0.002, 800), 4), live=False)
    for _ in (room := lk.headroom(watched)):
        time.sleep(0.001)
    watched.close()
    run = watched.run
    assert room.factor > 1.5 and 10 < run.steps < 190
    assert run.wait_ms > 2 * run.compute_ms  # as of a loop without replay
    assert run.event("headroom")["factor"] == room.factor
    first = run.diagnose().findings[0]
    assert first.name == "input" and (first.at_most or first.expected[0]) <= room.factor


# -- hangs ---------------------------------------------------------------------------------------


class Stuck(Waiting):
    def __getitem__(self, index):
        time.sleep(2.5 if index == 21 else 0.0)
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hang_is_named_with_its_worker_item_and_line(workers, tmp_path):
    loader = DataLoader(Stuck(0, 40), 4, num_workers=workers)
    watched = lk.watch(loader, live=False)
    said = []

    def look():
        watch = hangs.HangWatch([watched._recorder.folder], said.append)
        for later_s in (0, 1_000, 1_001):  # as if so much time had passed
            watch.look(now_ns() + int(later_s * 1e9))

    timer = threading.Timer(1.0, look)
    for step, _ in enumerate(watched):
        if step == 3:
            timer.start()
    timer.join()
    watched.close()
    assert len(said) == 1, said
    who = "worker 1" if workers else "the main process"
    assert who in said[0] and "item 21 of batch 5" in said[0] and "timeout=60" in said[0]
    if sys.platform == "linux":
        assert "test_workers.py" in said[0] and "time.sleep()" in said[0]
    hang = watched.run.workers.hang
    assert hang.index == 21 and hang.worker == (1 if workers else None)
    assert hang.over and hang.seconds > 1_000
    still = tmp_path / "still.jsonl"
    with still.open("w") as log:
        for line in (watched.run.path / "events.jsonl").open():
            event = json.loads(line)
            if event["event"] not in ("step", "done") or event.get("i", 9) < 5:
                log.write(line)
    assert not lk.load(still).workers.hang.over  # as of a loop that somebody interrupted
    assert not list(Path(watched.run.path).glob("progress-*"))


def test_a_loop_that_moves_is_no_hang():
    watched = lk.watch(DataLoader(Waiting(0.0, 40), 4), live=False)
    for _ in watched:
        folder = watched._recorder.folder
        assert hangs.hang_in([folder], now_ns()) is None
        later = now_ns() + int(20e9)  # in its body, it may validate
        assert hangs.hang_in([folder], later) is None
    with contextlib.closing(watched):
        assert hangs.hang_in([folder], now_ns() + int(1e12)) is None  # it is over
