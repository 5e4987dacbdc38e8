"""Experiments that are not training runs: isolated, recorded and read like a run."""

import json

import numpy as np
import pytest

import labkit as lk
from labkit.experiments import Experiment
from labkit.results.launch import launch
from labkit.results.measurements import Measurement


@pytest.fixture(scope="module")
def measured():
    done = launch(Experiment("matrix_products", {"n": 8, "count": 16})).wait()
    assert done.outcome == "finished", done.error
    return done


def test_an_experiment_runs_in_its_own_process_and_names_its_points(measured):
    assert [point.of for point in measured] == ["one by one", "batched"]
    batched = measured.one("batched", n=8)
    assert batched.flops == 2 * 16 * 8**3
    assert batched.tflop_per_s == pytest.approx(batched.flops / batched.median_s / 1e12)
    assert measured.machine.kind in ("cpu", "gpu")


def test_a_saved_experiment_loads_with_the_same_points_and_says_recorded(measured, tmp_path):
    again = lk.load(measured.save(tmp_path / "m.jsonl.gz"))
    assert [p.to_dict() for p in again] == [p.to_dict() for p in measured]
    assert again.recorded and "RECORDED on" in repr(again)
    json.dumps(again.to_dict(), allow_nan=False)


def test_a_point_that_is_not_there_is_refused_with_the_reason(measured):
    with pytest.raises(LookupError, match="there are 0 of them"):
        measured.one("batched", n=9)


def test_bad_names_are_refused_before_anything_starts():
    with pytest.raises(ValueError, match="there are"):
        Experiment("no such thing")
    with pytest.raises(ValueError, match="it has: n, count"):
        Experiment("matrix_products", {"size": 3})
    with pytest.raises(ValueError, match="give numbers"):
        Experiment("matrix_products", {"n": object()})
    with pytest.raises(ValueError, match="device"):
        Experiment("matrix_products", device="tpu")


def test_an_experiment_that_fails_says_why(measured):
    failed = launch(Experiment("matrix_products", {"n": 1 << 20, "count": 1 << 10})).wait()
    assert failed.outcome == "failed" and failed.error
    assert not failed.points


def test_a_wide_spread_is_called_noisy():
    steady = Measurement("x", {}, np.array([1.0, 1.01, 1.02, 1.03]))
    wild = Measurement("x", {}, np.array([1.0, 1.3, 1.9, 2.6]))
    assert not steady.noisy and wild.noisy and "NOISY" in repr(wild)


def test_a_hostile_record_is_read_as_gaps(measured, tmp_path):
    lines = (measured.path / "events.jsonl").read_text().splitlines()
    bad = {"event": "measurement", "t_ns": 1, "of": "x", "case": {}, "seconds": ["a", -1, 2.0]}
    bad |= {"flops": "many", "bytes": {}, "values": []}
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, json.dumps(bad), ""]))
    point = lk.load(tmp_path).points[-1]
    assert list(point.seconds) == [2.0]
    assert point.flops is None and point.bytes is None and point.values == {}
