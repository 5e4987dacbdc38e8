"""Distributed runs: the same training, a merged record, the rank to blame, and nothing left."""

import json
import os
import re
import signal
import sys

import numpy as np
import pytest
from helpers import processes_of, torch_segments, watched
from planted import planted, wait_until
from played_gpu import CPU, END, GPU, MS, load

import labkit as lk
from labkit import Pipeline
from labkit.api import launch
from labkit.spec import Distributed

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MLP = Pipeline(dataset="array", model="mlp", width=64, depth=1, steps=40, xray=False, device="cpu")
NO_CARD = "each rank needs a CUDA device of its own"


# -- what needs no process: a record made by hand ------------------------------------------------


def head(run, **more):
    return {"event": "spec", "version": 1, "run": run, "pipeline": {}, **more}


def step(i, *t, **more):
    t = [(1000 + at) * MS for at in t]
    return {"event": "step", "i": i, "t": t, "n": 16, "loss": 1.0, **more}


def record(folder, ranks=((1, 0), (1, 0)), transfer_ms=1, steps=40):
    """Write a record of ranks that meet once a step: each waits for data, and then is late, ms."""
    whole = head("by-hand", ranks=len(ranks), no_sync=False, starve={})
    lines = [whole, {"event": "machine", **CPU}]
    arrive = max(map(sum, ranks)) + 10  # ms of compute
    for rank, (wait, late) in enumerate(ranks):
        why = {"event": "job", "pipeline": {"device": "cpu"}, "not_applied": {"device": NO_CARD}}
        own = [head("r"), why, {"event": "begin", "warmup": 3}]
        for i in range(steps):
            zero = i * (arrive + transfer_ms + 1)
            done = zero + arrive + transfer_ms
            comm = [(1000 + at) * MS for at in (zero + wait + 10 + late, done)]
            own.append(step(i, zero, zero + wait, zero + wait, done + 1, comm=comm))
        lines += [{**line, "of_rank": rank} for line in [*own, {"event": "done"}]]
    return load(folder, [*lines, *END])


@pytest.mark.parametrize(
    "case, bottleneck, rank",
    [
        ({"ranks": ((1, 0), (1, 0), (30, 0))}, "input", 2),  # starved, though the others look busy
        ({"ranks": ((1, 20), (1, 0))}, "straggler", 0),  # slow, though it has its data
        ({"transfer_ms": 20}, "communication", None),
        ({"ranks": ((20, 0), (20, 0))}, "input", None),
        ({}, "compute", None),
        ({"steps": 5}, "unsure", None),
    ],
)
def test_what_holds_the_ranks_back_is_named_and_which_of_them(tmp_path, case, bottleneck, rank):
    found = record(tmp_path, **case).diagnose()
    assert (found.bottleneck, found.rank) == (bottleneck, rank)
    if rank is not None:
        assert f"rank {rank}" in found.evidence and f"rank {rank} late" in found.headline


def test_ranks_that_never_began_get_no_verdict(tmp_path):
    none = load(tmp_path, [head("none", ranks=2), {"event": "machine", **CPU}, *END])
    assert none.diagnose().bottleneck == "unsure" and not len(none)


def test_a_record_has_its_times_says_that_it_is_one_and_a_hostile_one_is_refused(tmp_path):
    ranks = record(tmp_path, ((2, 0), (10, 0)), 3)
    expected = {"wait": [2, 10], "others": [8, 0], "transfer": [3, 3], "compute": [11, 11]}
    for part, ms in expected.items():
        assert [*ranks.times[part] * 24] == pytest.approx(ms)  # a step takes 24 ms
    assert repr(ranks).startswith("RECORDED on Test")
    assert any("RECORDED on Test" in text.get_text() for text in ranks.plot().texts)
    found = lk.diagnose(ranks.path)
    assert found == ranks.diagnose() and json.loads(json.dumps(found.to_dict()))["rank"] == 1
    whole = ranks.path.read_text()
    ranks.path.write_text(re.sub(r', "comm": \[\d+, \d+\]', "", whole))  # no step with an exchange
    assert [*lk.load(ranks.path).times.transfer] == [0, 0]
    ranks.path.write_text(re.sub(r'"comm": \[\d+, ', '"comm": ["x", ', whole))
    with pytest.raises(lk.RecordError, match="not an event"):
        lk.load(ranks.path)


# -- the ranks of a script under `labkit watch`, by hand -----------------------------------------


SCRIPT = """
import zlib, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
dist.init_process_group("gloo")
torch.set_num_threads(1)
class Documents(Dataset):  # the second rank's are longer
    texts = [zlib.compress(bytes(range(250)) * size) for size in (100, 8_000)]
    def __len__(self):
        return 16 * 2 * 60
    def __getitem__(self, index):
        text = zlib.decompress(self.texts[dist.get_rank()])
        return torch.frombuffer(bytearray(text[:1024]), dtype=torch.uint8).float()
data = Documents()
loader = DataLoader(data, 16, sampler=DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(torch.nn.Linear(1024, 64))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for batch in loader:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
@linux
def test_a_script_under_torchrun_is_told_which_rank_is_short_of_data_and_in_which_line(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", path]
    done, found = watched(torchrun)
    assert (found["bottleneck"], found["rank"]) == ("input", 1), done.stderr
    assert "rank 1 waits for data for" in found["text"]
    assert "zlib.decompress(" in json.dumps(found["lines"])


@pytest.mark.parametrize(
    "bad, says",
    [
        ({"starve": {2: {"io_ms": 1}}}, "ranks 0 to 1"),
        ({"pipeline": Pipeline(device="cuda:1")}, "device"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(bad, says):
    with pytest.raises(ValueError, match=says):
        Distributed(**bad)


# -- which device the ranks take, and the one process they are compared with ---------------------


def test_ranks_on_the_cpu_are_not_compared_with_one_process_on_a_gpu(tmp_path):
    ranks = record(tmp_path)
    assert ranks.alone == ranks.asked.but(device="cpu") and ranks.asked.device == "auto"
    steps = [step(i, 20 * i, 20 * i + 1, 20 * i + 1, 20 * i + 20) for i in range(4)]
    single = load(tmp_path, [head("one"), {"event": "machine", **GPU}, *steps, *END])
    with pytest.raises(ValueError, match="machine differ.*ranks.alone"):
        ranks.speedup(single)


# -- what is run ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_does_end_together_and_load_again(tmp_path):
    pipeline = MLP.but(accumulation_steps=2)
    one = launch(pipeline.but(batch_size=32)).wait()
    ranks = launch(Distributed(pipeline.but(seconds=1.0), ranks=2, no_sync=True)).wait()
    assert one.outcome == ranks.outcome == "finished", (one.error, ranks.error)
    assert ranks[0].steps == ranks[1].steps == 40 and [each.rank for each in ranks] == [0, 1]
    assert "as many steps" in ranks[0].not_applied["seconds"]
    both = min(one.steps, ranks.steps)
    loss = np.mean([rank.loss for rank in ranks], axis=0)  # of the joined batch
    assert loss[:both] == pytest.approx(one.loss[:both], rel=1e-3, abs=1e-4)
    times = ranks.times
    assert (times.others + times.transfer > 0).all()
    assert (times.wait + times.compute + times.others + times.transfer <= 1.001).all()
    with pytest.raises(ValueError, match="batch_size"):
        ranks.efficiency(one)  # of another pipeline

    again = lk.load(ranks.save(tmp_path / "ranks.jsonl.gz"))
    assert again.recorded and again[1].recorded
    assert again[1].loss == ranks[1].loss and repr(again.times) == repr(ranks.times)


@linux
@pytest.mark.nightly
@pytest.mark.parametrize(
    "why, outcome, says",
    [
        ("stopped", "stopped", "None"),
        ("killed", "failed", "^Rank 1: .*SIGKILL"),
        ("dataset_raises", "failed", "^Rank 1: ValueError: planted"),
    ],
)
def test_ranks_that_do_not_finish_say_why_and_leave_nothing(why, outcome, says):
    before = torch_segments()
    raises = why == "dataset_raises"
    pipeline = MLP.but(num_workers=0 if raises else 1, steps=100_000, seconds=60)
    run = launch(Distributed(pipeline, ranks=2), fault=planted(why) if raises else None)
    wait_until(lambda: raises or run.steps >= 10 or not run.running)
    if why == "stopped":
        run.stop()
    elif why == "killed":
        os.kill(run[1].event("hello")["pid"], signal.SIGKILL)
    run.wait()
    assert re.search(says, str(run.error)), run.error
    assert {run.outcome, *(rank.outcome for rank in run)} == {outcome}
    wait_until(lambda: not processes_of(run.path))
    assert torch_segments() <= before
