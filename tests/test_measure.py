"""`lk.measure`: a function of one's own on the bench, row by row."""

import threading

import pandas
import pytest
import torch
from played_gpu import load

import labkit as lk

FACTOR = 3  # of this "notebook"
CPU = torch.device("cpu")


def scaled(numbers):
    return FACTOR * numbers


def product(bench, n):
    return {"product": n * n}


@pytest.mark.slow
def test_each_point_is_a_row_and_one_that_fails_says_why_while_the_next_ones_go_on(tmp_path):
    def mixed(bench, n, case):
        if case == "needs a card":
            bench.skip("needs CUDA")
        if case == "wrong":
            raise KeyError("no such layer")
        if n == 16 and case == "too large":
            torch.empty(2**50)
        torch.backends.cudnn.allow_tf32 = False  # which pickle alone cannot send
        a = torch.ones(n, n, device=bench.device)
        bench.time(lambda: scaled(a @ a))
        return {"corner": scaled(a @ a)[0, 0]}

    cases = ["fine", "needs a card", "wrong", "too large", "after"]
    measured = lk.measure(mixed, n=[8, 16], case=cases, device="cpu")
    rows = measured.rows
    assert list(rows["n"]) == [8] * 5 + [16] * 5 and list(rows["case"]) == cases * 2
    assert list(rows["corner"].dropna()) == [24, 24, 24, 48, 48]
    errors = rows["error"]
    assert errors[1] == "skipped: needs CUDA" and errors[8] == "out of memory"
    assert errors[2].startswith("KeyError: 'no such layer' (mixed(), line ")
    assert measured.outcome == "finished" and "5 without numbers" in repr(measured)
    again = lk.load(measured.save(tmp_path / "mixed.jsonl"))
    assert again.recorded and again.rows.equals(rows)


def locked():
    lock = threading.Lock()

    def uses_it(bench):
        with lock:
            return {}

    return uses_it


@pytest.mark.parametrize(
    "function, grid, why",
    [
        (product, {}, "missing a required argument: 'n'"),
        (product, {"n": 8, "size": 4}, "product.*unexpected keyword argument 'size'"),
        (product, {"n": 8, "device": "gpu"}, "device='gpu'"),
        (locked(), {}, "uses_it .*cannot be sent .*lock"),
        ("roofline", {}, "function"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(function, grid, why):
    with pytest.raises(ValueError, match=why):
        lk.measure(function, **grid)


def recorded(folder, *events, **asked):
    """Load the record of a measurement."""
    spec = {"event": "spec", "version": 1, "run": "r", "pipeline": {}, **asked}
    return load(folder, [spec, *events])


def test_a_record_of_an_experiment_of_version_1_still_loads(tmp_path):
    copied = {"of": "copy", "case": {"n": 2}, "seconds": [0.5], "bytes": 2**30, "flops": 1e12}
    skipped = {"what": "bf16", "why": "needs a card"}
    events = {"event": "measurement", **copied}, {"event": "skipped", **skipped}
    rows = recorded(tmp_path, *events, experiment="roofline").rows
    assert list(rows["of"]) == ["copy", "bf16"] and rows["gib_s"][0] == rows["tflops"][0] == 2
    assert rows["error"][1] == "skipped: needs a card"


# -- the panel of a function -----------------------------------------------------------------------


def row(n, ms):
    return {"event": "row", "values": {"n": n}, "seconds": [ms / 1e3] * 3}


def measured_rows(folder, *rows):
    folder.mkdir()
    points = [event["values"] for event in rows]
    return recorded(folder, *rows, {"event": "done"}, measure="product", points=points)


def test_a_point_joins_the_rows_and_one_measured_again_replaces_its_own(tmp_path):
    grid = measured_rows(tmp_path / "grid", row(1, 10), row(2, 20))
    for ms, n in ((30, 3), (25, 2)):
        grid.add(measured_rows(tmp_path / f"point-{n}", row(n, ms)))
    assert dict(zip(grid.rows["n"], grid.rows["ms"], strict=True)) == {1: 10, 3: 30, 2: 25}
    assert len(grid) == 3


BESIDE = pandas.DataFrame({"n": [1, 2], "ms": [5, 9]})


def test_rows_that_come_in_during_a_drawing_are_of_the_next_one(tmp_path, monkeypatch):
    grid = measured_rows(tmp_path / "grid", row(1, 10), row(2, 20))
    later = iter([measured_rows(tmp_path / f"{n}", row(n, 10 * n)).data for n in range(3, 30)])
    by_now = type(grid).data.fget

    def grown(measured):
        measured._added += (next(later),)
        return by_now(measured)

    monkeypatch.setattr(type(grid), "data", property(grown))
    [axes] = lk.plot(grid, "n", "ms", beside=BESIDE).axes
    assert axes.lines[0].get_xdata()[-1] == 3
