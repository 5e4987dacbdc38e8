"""Statistics follow from the log, and a record is checked before it is used."""

import gzip
import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit as lk

MS = 1_000_000


def write_record(path, steps=40, wait_ms=50, busy_ms=10, **more):
    """Write a record of a device that waits and works in turn."""
    events = [
        {"event": "spec", "version": 1, "run": "r", "pipeline": {"num_workers": 0}, "t_ns": 0},
        {"event": "machine", "device": "cpu", "kind": "cpu", "name": "Test", "versions": {}},
        {"event": "begin", "warmup": 3},
    ]
    now = 10**9
    for i in range(steps):
        ready, end = now + wait_ms * MS, now + (wait_ms + busy_ms) * MS
        stamps = [now, ready, ready, end]
        events.append({"event": "step", "i": i, "t": stamps, "n": 16, "loss": 1.0 / (i + 1)})
        now = end
    events += more.get("end", [{"event": "done"}, {"event": "end", "stop": None, "code": 0}])
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_the_textbook_loop_is_a_sixth_busy(tmp_path):
    run = lk.load(write_record(tmp_path / "r.jsonl"))
    assert run.outcome == "finished" and run.warmup == 3 and run.steps == 40
    assert run.utilization == pytest.approx(1 / 6)
    assert run.throughput == pytest.approx(16 / 0.060)
    times = (run.step_ms, run.wait_ms, run.copy_ms, run.compute_ms)
    assert times == pytest.approx((60, 50, 0, 10))
    assert run.spread == pytest.approx(0, abs=1e-9) and not run.noisy
    assert run.peak_memory_gib is None and run.energy_j is None


def test_a_missing_number_is_none_and_never_zero(tmp_path):
    run = lk.load(write_record(tmp_path / "r.jsonl", steps=1))
    assert run.utilization is None and run.throughput is None and run.step_ms is None


def test_an_uneven_run_says_that_it_is_noisy(tmp_path):
    path = write_record(tmp_path / "r.jsonl", steps=60)
    lines = path.read_text().splitlines()
    for k, line in enumerate(lines):
        event = json.loads(line)
        if event["event"] == "step":  # stretch time: each step a little slower than the last
            event["t"] = [int(stamp * (1 + event["i"] / 20)) for stamp in event["t"]]
            lines[k] = json.dumps(event)
    path.write_text("\n".join(lines) + "\n")
    run = lk.load(path)
    assert run.noisy and "NOISY" in repr(run)


def test_a_saved_run_loads_as_recorded_with_the_same_numbers(finished, tmp_path):
    for name in ("run.jsonl", "run.jsonl.gz"):
        loaded = lk.load(finished.save(tmp_path / name))
        assert loaded.utilization == finished.utilization
        assert loaded.loss == finished.loss
        assert loaded.pipeline == finished.pipeline
        assert loaded.recorded and not finished.recorded
        assert repr(loaded).startswith("RECORDED on ")
    assert lk.load(finished.path).throughput == finished.throughput


def test_a_finished_run_reports_what_ran_and_what_could_not(tiny):
    from labkit.results.launch import launch

    run = launch(tiny.but(pin_memory=True, precision="tf32", channels_last=True)).wait()
    assert run.outcome == "finished"
    if run.machine.kind == "cpu":
        assert set(run.not_applied) == {"pin_memory", "precision", "channels_last"}
        assert run.pipeline.precision == "fp32" and run.asked.precision == "tf32"
    assert run.pipeline.width == 32 and run.pipeline.io_ms == 0
    assert all(math.isfinite(loss) for loss in run.loss)


def test_the_same_seed_trains_on_the_same_samples_whatever_the_workers(tiny):
    from labkit.results.launch import launch

    pipeline = tiny.but(dataset="jpeg", io_ms=0, steps=12)
    losses = [launch(pipeline.but(num_workers=n)).wait().loss for n in (0, 3)]
    assert losses[0] == losses[1]


def test_comparing_names_the_change_and_what_it_brought(tmp_path):
    slow = lk.load(write_record(tmp_path / "slow.jsonl"))
    fast = lk.load(write_record(tmp_path / "fast.jsonl", wait_ms=5))
    assert fast.compare(slow).speedup == pytest.approx(4)
    assert "4.00x faster" in fast.compare(slow).verdict
    assert "No difference" in slow.compare(slow).verdict
    assert "RECORDED" in repr(fast.compare(slow))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with a spec"),
        (b"not json\n", "line 1"),
        (b'{"event":"step","i":0,"t":[1,2,3],"n":16}\n', "line 1"),
        (b'{"event":"spec","version":99,"run":"r","pipeline":{}}\n', "newer labkit"),
        (b"[" * 100_000 + b"\n", "line 1"),
    ],
)
def test_what_is_no_record_is_refused_with_one_clear_error(content, message, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(lk.RecordError, match=message):
        lk.load(file)
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(content)[:-4])
    with pytest.raises(lk.RecordError):
        lk.load(tmp_path / "bad.jsonl.gz")
    with pytest.raises(lk.RecordError, match="no record here"):
        lk.load(tmp_path / "missing.jsonl")


@given(st.binary(max_size=400), st.integers(0, 3000))
def test_a_damaged_record_loads_or_is_refused_and_nothing_else(tmp_path_factory, noise, where):
    file = tmp_path_factory.mktemp("fuzz") / "r.jsonl"
    data = write_record(file, steps=20).read_bytes()
    file.write_bytes(data[:where] + noise + data[where:])
    try:
        run = lk.load(file)
        repr(run), run.utilization, run.throughput, run.to_dict()
    except lk.RecordError:
        pass


def test_a_torn_last_line_waits_for_its_other_half(tmp_path):
    from labkit.results.record import Tail

    file = tmp_path / "events.jsonl"
    file.write_text('{"event":"hello","pid":1}\n{"event":"do')
    tail = Tail(file)
    assert [event["event"] for event in tail.read()] == ["hello"]
    with file.open("a") as log:
        log.write('ne"}\n')
    assert [event["event"] for event in tail.read()] == ["done"]


def test_a_run_that_goes_on_is_read_whenever_it_is_asked(tiny):
    run, seen = lk.run(tiny, wait=False), []
    while run.outcome == "running":  # and nobody calls `refresh`
        seen.append((run.steps, run.throughput))
    assert run.outcome == "finished" and run.error is None and run.steps == tiny.steps
    assert run.throughput and len({steps for steps, _ in seen}) > 3


def test_what_is_derived_together_is_of_one_moment(tmp_path):
    from labkit.results.run import Run

    whole = write_record(tmp_path / "whole").read_text().splitlines(keepends=True)
    log = tmp_path / "events.jsonl"
    log.write_text("".join(whole[:23]))  # 20 steps so far
    process = SimpleNamespace(alive=lambda: len(log.read_text()) < size)
    size = sum(map(len, whole))
    run = Run(tmp_path, process=process)
    with run.as_of_now():
        with log.open("a") as more:
            more.writelines(whole[23:])  # to its end: the process is gone
        assert run.steps == len(run.stamps) == len(run.loss) == 20
        assert run.throughput == pytest.approx(16 / 0.060)  # one more moment, inside this one
        assert run.steps == 20 and run.outcome == "running"
    assert run.steps == len(run.stamps) == 40 and run.outcome == "finished"


def test_what_compiles_nothing_is_adamw_to_the_bit_and_imports_no_compiler():
    code = """
import sys
import torch
from labkit.bench.models import AdamW

def trained(kind, **more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = kind(model.parameters(), lr=1e-2, **more)
    for _ in range(20):
        torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.ones(4).long()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

plain, fused = trained(AdamW), trained(AdamW, fused=True)
assert "torch._dynamo" not in sys.modules
assert torch.equal(plain, trained(torch.optim.AdamW))
assert torch.equal(fused, trained(torch.optim.AdamW, fused=True))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
