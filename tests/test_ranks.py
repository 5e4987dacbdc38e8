"""Distributed runs: the same gradients, a merged record, the rank to blame, and nothing left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import processes_of, torch_segments
from planted import planted

import labkit as lk
from labkit.analysis.ranks import PARTS
from labkit.process.family import logged_pids
from labkit.results.launch import launch
from labkit.results.ranks import Ranks
from labkit.spec import Distributed, Pipeline

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun needs Linux or macOS")

MLP = Pipeline(dataset="array", model="mlp", width=64, depth=1, steps=40, xray=False, device="cpu")
LONG = MLP.but(num_workers=1, steps=100_000, seconds=60)
MS = 1_000_000
END = [{"event": "done"}, {"event": "end", "stop": None, "code": 0}]


# -- what needs no process: a record made by hand ------------------------------------------------


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lk.load(path)


def machine(name="test", kind="cpu", device="cpu"):
    return {"event": "machine", "device": device, "kind": kind, "name": name, "versions": {}}


def record(
    folder, late_ms=None, waits_ms=(1, 1), transfer_ms=1, compute_ms=10, steps=40, job=None, **spec
):
    """Write a record of ranks that meet once a step: rank r is `late_ms[r]` later than the best."""
    late_ms = late_ms or [0] * len(waits_ms)
    asked = {"ranks": len(waits_ms), "no_sync": False, "starve": {}, "pipeline": {}} | spec
    lines = [{"event": "spec", "version": 1, "run": "by-hand", **asked}, machine()]
    arrive = max(w + late for w, late in zip(waits_ms, late_ms, strict=True)) + compute_ms
    for rank, (wait, late) in enumerate(zip(waits_ms, late_ms, strict=True)):
        place = {"rank": rank, "local_rank": rank, "world_size": len(waits_ms)}
        own = [{"event": "spec", "version": 1, "run": "r", "pipeline": {}, "place": place}]
        own += [{"event": "job", **job}] if job else []
        own.append({"event": "begin", "warmup": 3})
        for i in range(steps):
            zero = 1000 * MS + i * (arrive + transfer_ms + 1) * MS
            done = zero + (arrive + transfer_ms) * MS
            t = [zero, zero + wait * MS, zero + wait * MS, done + MS]
            ready = zero + (wait + compute_ms + late) * MS
            own.append({"event": "step", "i": i, "t": t, "n": 16, "loss": 1.0,
                        "comm": [ready, done]})  # fmt: skip
        lines += [{**line, "of_rank": rank} for line in [*own, {"event": "done"}]]
    return write(folder / "ranks.jsonl", lines + END)


def test_the_wait_for_another_rank_is_told_from_the_exchange(tmp_path):
    ranks = record(tmp_path, waits_ms=(2, 10), transfer_ms=3)
    times, step_ms = ranks.times, 10 + 10 + 3 + 1
    assert times.wait == pytest.approx([2 / step_ms, 10 / step_ms])
    assert times.others == pytest.approx([8 / step_ms, 0])
    assert times.transfer == pytest.approx([3 / step_ms] * 2)
    assert times.compute == pytest.approx([11 / step_ms] * 2)
    assert ranks.communication_share == pytest.approx((11 + 3) / 2 / step_ms)
    assert sum(getattr(times, part) for part in PARTS) == pytest.approx([1, 1])
    assert "exchange" in repr(times) and "<th" in times._repr_html_()


@pytest.mark.parametrize(
    ("case", "bottleneck", "rank"),
    [({"waits_ms": (1, 1, 30)}, "input", 2),  # starved, though the others look busy
     ({"late_ms": (20, 0)}, "straggler", 0),  # slow, though it has its data
     ({"transfer_ms": 20}, "communication", None), ({"waits_ms": (20, 20)}, "input", None),
     ({}, "compute", None), ({"steps": 5}, "unsure", None)],
)  # fmt: skip
def test_what_holds_the_ranks_back_is_named_and_which_of_them(tmp_path, case, bottleneck, rank):
    ranks = record(tmp_path, **case)
    found = ranks.diagnose()
    assert (found.bottleneck, found.rank) == (bottleneck, rank)
    assert json.loads(json.dumps(found.to_dict()))["rank"] == rank
    if rank is not None:
        assert f"rank {rank}" in found.evidence and f"on rank {rank}" in found.headline
    assert ranks.plot() is not None and lk.diagnose(ranks.path) == found


def test_a_record_says_so_steps_without_exchange_are_gaps_and_a_hostile_one_is_refused(tmp_path):
    ranks = record(tmp_path)
    assert repr(ranks).startswith("RECORDED on test")
    assert any("RECORDED on test" in text.get_text() for text in ranks.plot().texts)
    whole = ranks.path.read_text()
    ranks.path.write_text(re.sub(r', "comm": \[\d+, \d+\]', "", whole))
    assert lk.load(ranks.path).times.communication == pytest.approx([0, 0])
    ranks.path.write_text(re.sub(r'"comm": \[\d+, ', '"comm": ["x", ', whole))
    with pytest.raises(lk.RecordError, match="not an event"):
        lk.load(ranks.path)


@pytest.mark.parametrize(
    ("bad", "says"),
    [({"ranks": 0}, "ranks=0"), ({"starve": {2: {"io_ms": 1}}}, "ranks 0 to 1"),
     ({"starve": {1: {"width": 8}}}, "width"), ({"starve": {1: {"io_ms": -1}}}, "io_ms"),
     ({"rendezvous": {"port": 1}}, "rendezvous option"),
     ({"rendezvous": {"nnodes": "two"}}, "whole number"),
     ({"rendezvous": {"rdzv_endpoint": "a b"}}, "HOST:PORT"),
     ({"pipeline": Pipeline(device="cuda:1")}, "device"), ({"no_sync": "yes"}, "no_sync")],
)  # fmt: skip
def test_bad_settings_are_refused_before_anything_starts(bad, says):
    with pytest.raises(ValueError, match=says):
        Distributed(**bad)


def test_windows_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="Linux or macOS"):
        Distributed()


# -- which device the ranks take, and the one process they are compared with ---------------------


@pytest.mark.parametrize(("count", "kind"), [(0, "cpu"), (1, "cpu"), (2, "cuda")])
def test_two_ranks_use_cards_where_each_has_its_own(monkeypatch, count, kind):
    import torch

    from labkit.bench import machine as bench_machine
    from labkit.bench import rank as bench_rank

    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    found = torch.device("cuda:0" if count else "cpu")
    monkeypatch.setattr(bench_machine, "find_device", lambda wanted: found)
    found_kind, why = bench_rank.device_kind("auto", 2)
    assert found_kind == kind
    assert (why is None) == (count != 1)  # only then is there a GPU that the ranks do without
    assert count != 1 or "2 ranks have 1 between them" in why
    assert bench_rank.device_kind("cpu", 2) == ("cpu", None)  # as asked


def test_ranks_on_the_cpu_are_compared_with_one_process_on_the_cpu(tmp_path):
    why = "each rank needs a CUDA device of its own"
    ranks = record(tmp_path, job={"pipeline": {"device": "cpu"}, "not_applied": {"device": why}})

    def single(name, kind, device):
        lines = [{"event": "spec", "version": 1, "run": "one", "pipeline": {}}]
        lines.append(machine(name, kind, device))
        for i in range(4):
            t = [(1000 + 20 * i + at) * MS for at in (0, 1, 1, 20)]
            lines.append({"event": "step", "i": i, "t": t, "n": 16, "loss": 1.0})
        return write(tmp_path / f"{kind}.jsonl", lines + END)

    assert ranks.alone == ranks.asked.but(device="cpu") and ranks.asked.device == "auto"
    assert ranks.speedup(single("test", "cpu", "cpu")) > 0
    with pytest.raises(ValueError, match=f"Tesla T4, 2 ranks on test .{why}.*ranks.alone"):
        ranks.speedup(single("Tesla T4", "gpu", "cuda:0"))


def test_all_ranks_train_the_size_of_model_that_rank_0_has_found(monkeypatch):
    from torch import distributed as dist

    from labkit.bench.rank import same_model

    told = []

    def settle(width=320, depth=9):
        return SimpleNamespace(width=width, depth=depth), {}

    monkeypatch.setattr(dist, "broadcast_object_list", told.extend)
    job, _ = same_model(0, settle)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda box: box.__setitem__(0, told[0]))
    other, _ = same_model(1, lambda width=320, depth=12: settle(width, depth))
    assert (other.width, other.depth) == (job.width, job.depth) == (320, 9)


# -- what is run ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one_process_on_the_joined_batch(tmp_path):
    import torch
    from ranks_gradients import MICRO, batch, gradients, job

    from labkit.bench.loop import Trainer

    script = Path(__file__).with_name("ranks_gradients.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", script, tmp_path / "of"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
    trainer = Trainer(job(), torch.device("cpu"))
    trainer.compute(*batch(), update=False)
    expected = gradients(trainer)
    for name in (f"of.{rank}.{micro}" for rank in (0, 1) for micro in MICRO):
        assert torch.allclose(torch.load(tmp_path / name), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_does_from_the_joined_batch_and_load_again(tmp_path):
    one = launch(MLP.but(batch_size=32, seconds=None)).wait()
    ranks = launch(Distributed(MLP.but(seconds=None), ranks=2)).wait()
    assert one.outcome == ranks.outcome == "finished", (one.error, ranks.error)
    assert len(ranks) == 2 and [rank.rank for rank in ranks] == [0, 1]
    assert all(rank.steps == one.steps for rank in ranks)
    assert ranks.loss == pytest.approx(one.loss, rel=1e-3, abs=1e-4)
    assert all(rank.outcome == "finished" and rank.throughput for rank in ranks)
    times = ranks.times
    assert (times.communication > 0).all() and 0 < ranks.communication_share < 1
    assert (times.wait + times.compute + times.communication <= 1.001).all()
    with pytest.raises(ValueError, match="batch_size"):
        ranks.efficiency(one)  # of another pipeline

    again = lk.load(ranks.save(tmp_path / "ranks.jsonl.gz"))
    assert isinstance(again, Ranks) and again.recorded and again[1].recorded
    assert again.loss == ranks.loss and repr(again.times) == repr(ranks.times)
    assert lk.load(ranks.path).loss == ranks.loss
    json.dumps(again.to_dict(), allow_nan=False)


def until(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def started(spec):
    run = launch(spec)
    until(lambda: (run.running and run.steps >= 10) or run.outcome != "running")
    assert run.outcome == "running", run.error
    return run


@linux
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "agent", "supervisor"])
def test_killing_a_process_of_the_ranks_fails_the_run_and_leaves_nothing(victim):
    before = torch_segments()
    run = started(Distributed(LONG, ranks=2))
    pid = {
        "rank": run[1].event("hello")["pid"],
        "agent": run.event("hello")["pid"],
        "supervisor": run._process.process.pid,
    }[victim]
    os.kill(pid, signal.SIGKILL)
    run.wait()
    assert run.outcome == "failed"
    if victim == "rank":
        assert run.failed_rank == 1
        assert re.search(r"^Rank 1: .*SIGKILL", run.error)
        assert [rank.outcome for rank in run] == ["failed", "failed"]
    until(lambda: not processes_of(run.path), 2)
    assert torch_segments() <= before


@linux
@pytest.mark.slow
def test_stop_ends_all_ranks_and_keeps_what_they_did():
    run = started(Distributed(LONG, ranks=2))
    assert len(logged_pids(run.path, "workers")) == 2 and len(logged_pids(run.path, "hello")) == 3
    run.stop()
    assert run.outcome == "stopped" and run.error is None
    assert [rank.outcome for rank in run] == ["stopped", "stopped"]
    assert run.steps >= 10
    until(lambda: not processes_of(run.path), 2)


@pytest.mark.slow
def test_a_rank_that_raises_is_named_with_its_own_reason():
    run = launch(Distributed(MLP, ranks=2), fault=planted("dataset_raises")).wait()
    assert run.outcome == "failed" and run.failed_rank == 1
    assert re.search(r"^Rank 1: ValueError: planted", run.error), run.error


@pytest.mark.slow
def test_ranks_end_together_when_their_time_is_up():
    run = launch(Distributed(MLP.but(steps=1_000_000, seconds=1.0), ranks=2)).wait()
    assert run.outcome == "finished", run.error
    assert run[0].steps == run[1].steps < 1_000_000
