"""`lk.measure`: a function of one's own on the bench, row by row."""

import contextlib
import itertools
import json
import linecache
import threading

import cloudpickle
import pytest

import labkit as lk
from labkit.bench import measure as bench_measure
from labkit.bench import stopwatch, triton_kernels
from labkit.process.events import EventLog
from labkit.view import measuring

torch = pytest.importorskip("torch")
FACTOR = 3  # of this "notebook"
CPU = torch.device("cpu")


def scaled(numbers):
    return FACTOR * numbers


def product(bench, n, dtype="float32"):
    a = torch.ones(n, n, device=bench.device, dtype=getattr(torch, dtype))
    bench.time(lambda: scaled(a @ a), flops=2 * n**3, bytes=3 * a.nbytes)
    return {"corner": scaled(a @ a)[0, 0]}


@pytest.mark.slow
def test_each_point_of_the_grid_is_a_row_and_helpers_come_along():
    measured = lk.measure(product, n=[8, 16], dtype=["float32", "float64"], device="cpu")
    rows = measured.rows
    assert list(rows["n"]) == [8, 8, 16, 16] and list(rows["dtype"])[:2] == ["float32", "float64"]
    assert list(rows["corner"]) == [24, 24, 48, 48]
    assert (rows["ms"] > 0).all() and rows["error"].isna().all()
    first = rows.iloc[0]
    assert first["tflops"] == pytest.approx(2 * 8**3 / first["ms"] * 1e-9)
    assert first["gib_s"] == pytest.approx(3 * 8 * 8 * 4 / first["ms"] * 1e3 / 2**30)
    assert "product: 4 rows" in repr(measured) and "float64" in measured._repr_html_()


@pytest.mark.slow
def test_rows_that_fail_say_why_with_the_line_and_the_next_ones_go_on(tmp_path):
    def mixed(bench, case):
        held = globals().setdefault("held", [])  # of the process
        held.append(case)
        if case == "needs a card":
            bench.skip("needs CUDA")
        if case == "too large":
            torch.empty(2**50)
        if case == "wrong":
            raise KeyError("no such layer")
        return {"seen": len(held)}

    cases = ["fine", "needs a card", "wrong", "too large", "after"]
    measured = lk.measure(mixed, case=cases, device="cpu")
    errors = measured.rows["error"]
    assert errors[1] == "skipped: needs CUDA" and errors[3] == "out of memory"
    assert errors[2].endswith('raise KeyError("no such layer"))') and "KeyError" in errors[2]
    assert list(measured.rows["seen"].dropna()) == [1, 1]  # the last one in a fresh process
    assert measured.outcome == "finished" and "3 without numbers" in repr(measured)
    again = lk.load(measured.save(tmp_path / "mixed.jsonl"))
    assert again.recorded and again.rows.equals(measured.rows)
    with pytest.raises(RuntimeError, match=r"fails: ZeroDivisionError.*return \{\"x\": 1 / n\}"):
        lk.measure(fails, n=[0, 0], device="cpu")


def fails(bench, n):
    return {"x": 1 / n}


class Replaced(Exception):
    """Raised where a fresh process would take this one's place."""


def rows_of(function, folder):
    """Return the events of the rows of a function that is measured twice in this process."""
    (folder / "f.pkl").write_bytes(cloudpickle.dumps(function))
    source = {"payload": "f.pkl", "path": [], "code": {function.__name__: []}}
    with contextlib.closing(EventLog(folder)) as log:
        order = {"points": [{"n": 1}, {"n": 2}], "source": source}
        try:
            bench_measure.perform(order, CPU, folder, log)
        except Replaced:
            bench_measure.perform(order, CPU, folder, log)
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == "row"]


@pytest.mark.parametrize(
    "says, row",
    [
        ("CUDA error: device-side assert triggered", "RuntimeError: CUDA error: device-side"),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out of memory"),
        ("no such layer", "RuntimeError: no such"),
    ],
)
def test_a_card_that_failed_or_is_full_is_left_to_a_fresh_process(says, row, tmp_path, monkeypatch):
    def broken(bench, n):
        raise RuntimeError(says)

    replaced = []

    def execv(*_):
        replaced.append(True)
        raise Replaced

    monkeypatch.setattr(bench_measure.os, "execv", execv)
    errors = [each["error"] for each in rows_of(broken, tmp_path)]
    assert len(errors) == 2 and all(error.startswith(row) for error in errors)
    assert len(replaced) == (0 if "layer" in says else 1)  # no process follows the last row


@pytest.mark.parametrize("settles", [True, False])
def test_ways_whose_times_vary_are_timed_for_longer_but_not_for_ever(settles, monkeypatch):
    monkeypatch.delenv("LABKIT_QUICK", raising=False)
    monkeypatch.setattr(stopwatch, "MOST_MORE_SECONDS", 5 if settles else 0.05)
    count = itertools.count()

    def block(work, calls):
        turn = next(count)
        return 1.0 if settles and turn > 20 else 1.0 + turn % 5

    bench = stopwatch.Bench(CPU)
    monkeypatch.setattr(bench, "_block", block)
    bench.compare(one=int, other=float)
    all_times = [row["seconds"] for row in bench.rows]
    assert len(all_times[0]) == len(all_times[1]) > stopwatch.ROUNDS
    assert any(stopwatch.noisy(times) for times in all_times) != settles


@pytest.mark.parametrize(
    "grid, why",
    [
        ({}, "product takes n too"),
        ({"n": 8, "size": 4}, "Unknown argument of product: size"),
        ({"n": 8, "device": "gpu"}, "device='gpu'"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_before_anything_starts(grid, why, monkeypatch):
    monkeypatch.setattr(measuring, "launch", None)
    with pytest.raises(ValueError, match=why):
        lk.measure(product, **grid)


def test_a_device_that_another_run_keeps_is_an_error_with_its_holder_and_the_remedy(
    tmp_path, monkeypatch
):
    why = "device cpu is in use by run a (process 7 on here): start again when it is over"
    events = [
        {"event": "spec", "version": 1, "run": "r", "measure": "product", "pipeline": {}},
        {"event": "error", "kind": "DeviceBusy", "message": why},
        {"event": "end", "stop": None, "code": 1},
    ]
    path = tmp_path / "busy.jsonl"
    path.write_text("".join(json.dumps(event | {"t_ns": 1}) + "\n" for event in events))
    monkeypatch.setattr(measuring, "launch", lambda *_args, **_more: lk.load(path))
    with pytest.raises(RuntimeError, match=r"product: .*run a \(process 7 .*start again"):
        lk.measure(product, n=8)
    assert not len(lk.measure(product, n=8, wait=False))


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def uses_it(bench):
        with lock:
            return {}

    with pytest.raises(ValueError, match="lock, which uses_it uses, cannot be sent"):
        lk.measure(uses_it)
    for wrong in ("roofline", 3, lambda: None):
        with pytest.raises(ValueError, match="function|argument"):
            lk.measure(wrong)


@pytest.mark.parametrize(
    "returned, why", [(3, "return a dict"), ({"ms": 1}, "a column of the bench's own")]
)
def test_what_a_function_may_return_is_said(returned, why):
    failure = bench_measure.call(lambda bench: returned, {}, bench_measure.Bench(CPU), {})
    assert failure.kind == "mistake" and why in failure.text


@pytest.mark.parametrize("kind", ["skipped", "mistake"])
def test_a_row_of_anybodys_record_may_lack_its_reason(kind, tmp_path):
    record = tmp_path / "record.jsonl"
    asked = {"run": "r", "measure": "f", "points": [{"n": 1}], "pipeline": {}}
    events = [
        {"event": "spec", "version": 1} | asked,
        {"event": "row", "kind": kind, "values": {"n": 1}},
        {"event": "done"},
    ]
    record.write_text("".join(json.dumps(event | {"t_ns": 1}) + "\n" for event in events))
    found = lk.load(record)
    assert len(found.rows) == 1 and found.failures == [] and str(found)
    assert found.mistake == (None if kind == "skipped" else "nobody said why")


def test_a_record_of_an_experiment_of_version_1_still_loads(tmp_path):
    events = [
        {"event": "spec", "version": 1, "run": "r", "experiment": "roofline", "pipeline": {}},
        {"event": "measurement", "of": "copy", "case": {"n": 2}, "seconds": [0.5], "bytes": 2**30},
        {"event": "skipped", "what": "bf16", "why": "needs a card"},
        {"event": "done"},
    ]
    path = tmp_path / "old.jsonl"
    path.write_text("".join(json.dumps(event | {"t_ns": 1}) + "\n" for event in events))
    rows = lk.load(path).rows
    assert list(rows["of"]) == ["copy", "bf16"] and rows["gib_s"][0] == 2
    assert rows["error"][1] == "skipped: needs a card"


CELL = """
def double(x, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, 2 * tl.load(x + place))
"""


def test_a_triton_kernel_of_a_notebook_travels_with_its_source(monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cell = {"tl": triton.language, "__name__": "__main__"}
    lines = CELL.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<cell>", (len(CELL), None, lines, "<cell>"))
    exec(compile(CELL, "<cell>", "exec"), cell)
    triton_kernels.allow()
    packed = cloudpickle.dumps(triton.jit(cell["double"]))
    del linecache.cache["<cell>"]  # the bench has not seen the cell
    assert "2 * tl.load(x + place)" in cloudpickle.loads(packed).src


def test_a_row_that_needs_a_compiler_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("labkit.bench.compiling.compiler", lambda: None)
    with pytest.raises(bench_measure.Skipped, match="needs a C\\+\\+ compiler"):
        bench_measure.Bench(CPU).needs_compiler()
