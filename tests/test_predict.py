"""A prediction follows from what a run measured, says how sure it is, and when it cannot say."""

from pathlib import Path

import pytest
from played_gpu import CPU, MS, host_steps, log

import labkit as lk

STEPS = host_steps(50, 10, 40, cpu=10 * MS)  # 50 ms of waiting and 10 of training
WATCHED = {"watched": {"loader": "DataLoader"}}


def record(folder, steps=STEPS, *, extra=(), spec=(), without=""):
    """Write and load a run without workers, each of whose batches waited for 50 ms."""
    items = [[step["i"], step["t"][0], 16, 0, 50_000, 0, 0, 0, 0, 0, [], []] for step in steps]
    events = [
        *steps,
        {"event": "items", "worker": -1, "rows": items},
        {"event": "handoff", "main_wall_us": 0.0, "worker_us": 0.0},
        *extra,
    ]
    kept = [event for event in events if event["event"] != without]
    knobs = {"dataset": "sleep", "io_ms": 0.0, "prep_ms": 50.0, "num_workers": 0, "xray": False}
    return log(folder, CPU, knobs | {"steps": len(steps)}, *kept, spec=spec)


@pytest.fixture(scope="module")
def textbook(tmp_path_factory):
    """50 ms of waiting for each batch and 10 ms of training, without workers."""
    return record(tmp_path_factory.mktemp("textbook"))


# -- predictions from a run ----------------------------------------------------------------------


def test_the_textbook_case_is_predicted_from_a_run_without_workers(textbook):
    found = lk.predict(textbook, num_workers=4)
    assert found.utilization == pytest.approx(4 * 10 / 50, abs=0.02)
    low, high = found.throughput_range
    assert low < found.throughput < high and found.limit == "input"
    assert "predicted" in repr(found)
    itself = lk.predict(textbook)
    assert itself.throughput == pytest.approx(textbook.throughput, rel=0.02)
    assert "will not help" in itself.why


def test_recorded_runs_predict_each_other_and_what_is_missed_in_one_is_known_of_the_next():
    names = "Intel-Xeon-Processor/workers-{}"
    runs = {count: lk.recorded(names.format(count)) for count in (0, 1, 2, 4)}
    for run in runs.values():
        for count, after in runs.items():
            told = lk.predict(run, num_workers=count)
            assert told.throughput == pytest.approx(after.throughput, rel=0.08)


@pytest.mark.parametrize(
    "name, after, change",
    [
        ("workers-0", "workers-8", {"num_workers": 8}),
        ("workers-8", "workers-0", {"num_workers": 0}),
        ("precision-fp32", "precision-bf16", {"precision": "bf16"}),
    ],
)
def test_what_a_real_gpu_brought_lies_within_what_was_promised(name, after, change):
    run, brought = (lk.recorded(f"NVIDIA-H200/{each}") for each in (name, after))
    low, high = lk.predict(run, **change).throughput_range
    assert low < brought.throughput < high


RECORDED = [
    pytest.param(
        f"{path.parent.name}/{path.name.split('.')[0]}",
        marks=[pytest.mark.nightly] if number % 4 else [],
    )
    for number, path in enumerate(sorted(Path(lk.__file__).parent.glob("records/*/*-*.jsonl.gz")))
]


@pytest.mark.parametrize("name", RECORDED)
def test_the_verdict_advises_the_predicted_workers_and_a_second_look_does_not_undo_it(name):
    run = lk.recorded(name)
    own = run.pipeline.num_workers
    advised = {
        remedy.changes["num_workers"]
        for finding in run.diagnose().findings
        for remedy in finding.remedies
        if "num_workers" in remedy.changes
    }
    assert len(advised) <= 1 and own not in advised
    for best in advised:
        rates = {n: lk.predict(run, num_workers=n).throughput for n in {0, 4, 12, best}}
        assert max(rates.values()) < 1.06 * rates[best]  # once applied, nothing else gains


def test_an_x_ray_tells_what_batch_size_and_bf16_do(tmp_path):
    xray = {"event": "xray", "steps": 3, "fixed_share": 0.5, "bf16_speedup": 2.0}
    run = record(tmp_path, extra=[xray])
    assert lk.predict(run, batch_size=32).throughput == pytest.approx(32 / 0.065, rel=0.03)
    assert lk.predict(run, precision="bf16").utilization == pytest.approx(5 / 55, abs=0.01)
    assert "4 times" in lk.predict(run, batch_size=1024).cannot


# -- what cannot be predicted --------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"model": "mlp", "augment": 2}, "run it once with augment=2, model='mlp'"),
        ({"compile": "default"}, "compile"),
        ({"precision": "bf16"}, "bf16"),
        ({"batch_size": 32}, "xray=True"),
    ],
)
def test_what_the_run_does_not_tell_is_not_predicted(textbook, changes, word):
    found = lk.predict(textbook, **changes)
    assert found.cannot.startswith("cannot predict") and word in found.cannot
    assert "run it" in found.cannot or "give it" in found.cannot  # the remedy
    assert found.throughput is found.utilization is found.limit is None


@pytest.mark.parametrize(
    "lack, says",
    [
        ({"without": "items"}, "run it again"),  # an old record
        ({"without": "handoff"}, "sending a batch"),
        ({"spec": WATCHED}, "watched"),
        ({"steps": STEPS[:4]}, "batches"),
        ({"steps": STEPS[:2]}, "too few steps"),
    ],
)
def test_a_record_that_lacks_what_predictions_need_says_what_to_do(tmp_path, lack, says):
    assert says in lk.predict(record(tmp_path, **lack), num_workers=2).cannot
