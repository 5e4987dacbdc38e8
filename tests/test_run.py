"""Statistics follow from the log, records are checked before use, runs stand side by side."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from played_gpu import CPU, host_steps, lines_of, written

import labkit as lk
from labkit import Run
from labkit.api import launch

VERSION_1 = json.loads(Path(__file__).with_name("records_version_1.json").read_text())


def write_record(path, steps=40, wait_ms=50, slower=0.0, workers=0):
    """Write a record of a device that waits and works in turn, each step a little slower."""
    events = host_steps(wait_ms, 10, steps)
    for event in events:
        event["t"] = [int(t * (1 + slower * event["i"])) for t in event["t"]]
    return written(path, lines_of(CPU, {"num_workers": workers}, *events))


# -- numbers -------------------------------------------------------------------------------------


def test_the_textbook_loop_is_a_sixth_busy_and_what_is_missing_or_noisy_is_said(tmp_path):
    run = lk.load(write_record(tmp_path / "r.jsonl"))
    assert run.outcome == "finished" and run.warmup == 3 and run.steps == 40
    assert run.utilization == pytest.approx(1 / 6) and run.throughput == pytest.approx(16 / 0.060)
    times = run.step_ms, run.wait_ms, run.copy_ms, run.compute_ms
    assert times == pytest.approx((60, 50, 0, 10))
    assert not run.noisy and run.peak_memory_gib is None and run.energy_j is None
    short = lk.load(write_record(tmp_path / "r.jsonl", steps=1))
    assert short.utilization is None and short.throughput is None and short.step_ms is None
    run = lk.load(write_record(tmp_path / "r.jsonl", steps=60, slower=0.05))
    assert run.noisy and f"NOISY: throughput varied by {run.spread:.0%} (IQR/median)" in repr(run)


@pytest.mark.slow
def test_every_shipped_record_gives_the_numbers_it_gave_when_it_was_made():
    paths = (Path(lk.__file__).parent / "records").rglob("*.jsonl.gz")
    listed = {f"{path.parent.name}/{path.name[:-9]}": lk.load(path) for path in paths}
    runs = {name: result for name, result in listed.items() if isinstance(result, lk.Run)}
    assert runs.keys() == VERSION_1.keys() and len(lk.recorded()) == len(listed)
    for name, result in runs.items():
        then = dict(VERSION_1[name])
        del then["bottleneck"]  # test_golden.py has the verdicts
        middle = np.median(result.steps_ms, axis=0)  # then, the parts of a step were medians
        known = [then.pop("wait_ms"), then.pop("compute_ms")]
        assert middle[[0, 2]].tolist() == pytest.approx(known), name
        assert {each: getattr(result, each) for each in then} == then, name
        parts = result.wait_ms, result.copy_ms, result.compute_ms, result.other_ms
        assert sum(parts) == pytest.approx(result.step_ms, rel=1e-12)
        assert result.utilization == pytest.approx(result.compute_ms / result.step_ms)


@pytest.mark.slow
def test_workers_change_no_sample_and_what_a_cpu_cannot_do_is_said(tiny):
    pipeline = tiny.but(dataset="jpeg", io_ms=0, steps=12, seconds=None)
    knobs = {"pin_memory": True, "precision": "tf32", "channels_last": True}
    run = launch(pipeline.but(num_workers=3, **knobs)).wait()
    assert run.outcome == "finished" and run.steps == 12 and np.isfinite(run.loss).all()
    if run.machine.kind == "cpu":
        assert run.not_applied.keys() >= knobs.keys()
        assert launch(pipeline).wait().loss == run.loss  # of the same seed


# -- logs and records ----------------------------------------------------------------------------


def test_what_is_derived_together_is_of_one_moment(tmp_path):
    lines = write_record(tmp_path / "whole").read_text().splitlines(keepends=True)
    log = tmp_path / "events.jsonl"
    log.write_text("".join(lines[:24]))  # 20 steps so far
    process = Mock()
    run = Run(tmp_path, process=process)
    then = run.data
    log.write_text("".join(lines))
    process.is_alive = False
    assert run.steps == 40
    assert then.steps == len(then.stamps) == len(then.loss) == 20
    assert then.throughput == pytest.approx(16 / 0.060) and then.outcome == "running"
    assert run.steps == len(run.stamps) == 40 and run.outcome == "finished"


@pytest.mark.parametrize("version, steps", [(1, None), (2, 80)])
def test_what_was_automatic_is_told_from_what_was_asked_for(version, steps, tmp_path):
    lines = lines_of(CPU, {"steps": 80}, *host_steps(1, 1), spec={"version": version})
    assert lk.load(written(tmp_path / "run.jsonl", lines)).asked.steps == steps


def test_a_record_of_a_newer_labkit_and_what_is_not_there_are_refused(tmp_path):
    file = tmp_path / "newer.jsonl"
    file.write_text('{"event":"spec","version":99,"run":"r","pipeline":{}}\n')
    with pytest.raises(lk.RecordError, match="newer labkit"):
        lk.load(file)
    with pytest.raises(lk.RecordError, match="no record"):
        lk.load(tmp_path / "nothing")


# -- one after the other -------------------------------------------------------------------------
