"""A mystery keeps its spec to itself until it is answered; then its fix is measured."""

import gzip
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.course import faultset, score
from labkit.course import mystery as module
from labkit.course.fix import Fix
from labkit.course.mystery import NAMES, Mystery
from labkit.course.record import ship

BASE = faultset.BASES["cpu"] | {"precision": "fp32"}


def case(name, seed=0):
    return faultset.Case(faultset.named(name), 4, seed, BASE)


NO_WORKERS = case("no workers")


@pytest.fixture(autouse=True)
def own_score():
    score._session.clear()


@pytest.fixture
def hidden(finished):
    """A mystery round a run that is there already."""
    yield Mystery(NO_WORKERS, finished)
    finished.alias = None


@pytest.fixture(scope="module")
def starved():
    """A run that waits for its data."""
    run = NO_WORKERS.start().wait()
    assert run.outcome == "finished", run.error
    return run


@pytest.fixture
def rates(monkeypatch):
    """Have no run measured: samples/s by (num_workers, planted)."""
    asked = []

    def install(**found):
        def rate(pipeline, planted):
            asked.append((pipeline, planted))
            return found.get("gone" if planted is None else "kept", 1.0)

        monkeypatch.setattr(module, "_rate", rate)
        return asked

    return install


def kept():
    return list(score.read()["mysteries"].values())


def test_neither_text_nor_figure_gives_it_away(hidden):
    told = repr(hidden) + " ".join(text.get_text() for text in hidden.plot().texts)
    for secret in ("sleep", "prep_ms", "num_workers", "no workers"):
        assert secret not in told


def test_the_right_answer_reveals_and_a_wrong_one_does_not(hidden):
    assert "Look again" in hidden.answer("launch")
    assert hidden.answer("input").startswith("Right, at try 2. Planted was no workers")
    assert "prep_ms" in repr(hidden)


def test_after_three_tries_it_tells(hidden):
    assert "Planted was" in [hidden.answer("launch") for _ in range(3)][-1]
    hidden.answer("input")  # too late
    assert kept() == [{"tries": 3, "right": False}] and lk.score().named == 0


def test_the_cause_named_at_once_is_scored(hidden):
    hidden.answer("input")
    hidden.answer("launch")  # it was right before: nothing changes
    assert kept() == [{"tries": 1, "right": True}] and lk.score().named == 1


def test_a_word_that_is_no_bottleneck_is_refused(hidden):
    with pytest.raises(ValueError, match="choose one of input"):
        hidden.answer("gremlins")


def test_the_same_number_is_the_same_mystery():
    first = lk.mystery(3)
    assert first.run.outcome == "finished"
    assert first._case.fault.expected in NAMES
    assert first.run.alias == "a mystery run"


def test_on_a_gpu_a_mystery_has_the_size_of_a_gpu(finished, monkeypatch):
    base = faultset.BASES["gpu"] | {"precision": "bf16", "depth": 11}
    gpu = faultset.Here(base, replace(finished.machine, kind="gpu"))
    monkeypatch.setattr(module, "here", lambda: gpu)
    monkeypatch.setattr(faultset.Case, "start", lambda case: SimpleNamespace(wait=lambda: finished))
    cases = [lk.mystery(number, recorded=False)._case for number in range(40)]
    finished.alias = None
    assert all("gpu" in case.fault.devices for case in cases)
    healthy = next(case for case in cases if case.fault.name == "healthy CNN")
    assert healthy.pipeline.width >= 640 and healthy.pipeline.depth == 11


# -- the fix -----------------------------------------------------------------------------------


def test_a_fix_is_measured_against_the_right_cure(starved):
    mystery = Mystery(NO_WORKERS, starved)
    mystery.answer("input")
    fix = mystery.fix(num_workers=6)
    assert fix and fix.gain > 1.3 and fix.possible > 1.3, fix
    assert "the right cure brings" in repr(fix) and kept()[0]["share"] >= 0.5


def test_a_fix_waits_for_the_cause(hidden):
    assert "Name the bottleneck first" in repr(hidden.fix(num_workers=4))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "Change a knob"),
        ({"width": 2}, "not be the same work"),
        ({"steps": 2}, "not be the same work"),
        ({"io_ms": 0.0}, "not be the same work"),
        ({"gremlins": 2}, "there is no knob"),
        ({"num_workers": -1}, "not allowed"),
        ({"num_workers": "many"}, "not allowed"),
        ({"without": "slow decode"}, "no 'slow decode' in its code"),
        ({"without": "no workers"}, "no 'no workers' in its code"),
    ],
)
def test_what_is_no_fix_gets_a_sentence(hidden, rates, changes, why):
    asked = rates()
    hidden.reveal()
    fix = hidden.fix(**changes)
    assert not fix and why in repr(fix) and not asked


def test_code_is_fixed_by_taking_it_out(finished, rates):
    mystery = Mystery(case("garbage collection", 1), finished)
    mystery.reveal()
    rate = finished.throughput
    asked = rates(gone=3 * rate, kept=1.1 * rate)
    knobs = mystery.fix(num_workers=2)
    assert not knobs and knobs.share == pytest.approx(0.05) and knobs.possible == pytest.approx(3)
    assert mystery.fix(without="garbage collection").share == 1.0
    assert [planted for _, planted in asked] == ["collect_garbage@2", None, None]
    assert mystery.fix(num_workers=1).share < 0.1 and kept() == [{"share": 1.0}]  # the best stays


def test_there_is_nothing_to_cure_in_a_healthy_run(finished, rates):
    rates(gone=finished.throughput)
    mystery = Mystery(case("healthy MLP", 2), finished)
    mystery.reveal()
    fix = mystery.fix(num_workers=2)
    assert "nothing to cure" in repr(fix) and fix.share is None and not kept()


def test_a_fix_that_does_not_run_says_why(finished, monkeypatch):
    mystery = Mystery(NO_WORKERS, finished)
    mystery.reveal()

    def fails(*_):
        raise RuntimeError("It did not finish: out of memory")

    monkeypatch.setattr(module, "_rate", fails)
    assert "out of memory" in repr(mystery.fix(num_workers=2))


def test_the_share_of_a_cure_stays_between_none_and_all():
    assert [Fix(gain, 2.0).share for gain in (0.5, 1.5, 9.0)] == [0.0, 0.5, 1.0]
    assert Fix(1.2, 0.9).share is None and not Fix(1.2, 0.9) and "0.90" in repr(Fix(1.2, 0.9))


# -- recorded mysteries ------------------------------------------------------------------------


def record(run, folder, kind):
    """Ship `run` into `folder` as if recorded on a `kind` of device: for these tests only."""
    path = ship(run.path, folder / "here" / "a.jsonl.gz", name="a", title="num_workers=0")
    with gzip.open(path, "rt") as file:
        events = [json.loads(line) for line in file]
    for event in events:
        if event["event"] == "machine":
            event["kind"] = kind
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_a_recorded_gpu_run_is_a_mystery_too(starved, tmp_path):
    record(starved, tmp_path, "gpu")
    found = lk.mystery(recorded=True, folder=tmp_path)
    assert found.run.recorded and "RECORDED" in repr(found)
    told = repr(found) + " ".join(text.get_text() for text in found.plot().texts)
    assert "num_workers" not in told and "io_ms" not in told
    assert "Look again" in found.answer("compute")
    assert "Nothing was planted in this record" in found.answer("input")
    assert "cannot be run again" in repr(found.fix(num_workers=4))
    assert kept() == [{"tries": 2, "right": True}]


def test_without_recorded_gpu_runs_it_says_what_to_do(starved, tmp_path):
    record(starved, tmp_path, "cpu")
    for folder in (None, tmp_path):
        if folder is None and any(r.kind == "gpu" for r in lk.recorded()):
            continue  # they come with the package by now
        with pytest.raises(RuntimeError, match="labkit record --out"):
            lk.mystery(recorded=True, folder=folder)


def test_without_a_gpu_some_mysteries_are_recorded(starved, tmp_path, monkeypatch):
    record(starved, tmp_path, "gpu")
    monkeypatch.setattr(module, "here", lambda: faultset.Here(BASE, starved.machine))
    assert lk.mystery(2, folder=tmp_path).run.recorded == (starved.machine.kind != "gpu")
