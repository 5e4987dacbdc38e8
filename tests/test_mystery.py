"""A mystery keeps its spec to itself until it is answered; then its fix is measured."""

import gzip
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.course import faultset, score
from labkit.course import mystery as module
from labkit.course.mystery import Fix, Mystery

BASE = faultset.BASES["cpu"] | {"precision": "fp32"}


def case(name, seed=0):
    return faultset.Case(faultset.named(name), 4, seed, BASE)


NO_WORKERS = case("no workers")


@pytest.fixture(autouse=True)
def own_score():
    score._session.clear()


@pytest.fixture
def hidden():
    """A mystery round a recorded run, which waits for its data."""
    return Mystery(NO_WORKERS, lk.recorded("workers-0"))


@pytest.fixture
def rates(monkeypatch):
    """Have no run measured: samples/s with the plant `kept`, and with it `gone`."""
    asked, found = [], {"kept": 1.0, "gone": 1.0}

    def finished(_pipeline, planted=None):
        asked.append(planted)
        return SimpleNamespace(throughput=found["gone" if planted is None else "kept"])

    monkeypatch.setattr(faultset, "finished", finished)
    return SimpleNamespace(asked=asked, found=found)


def kept():
    return list(score.read()["mysteries"].values())


def test_neither_text_nor_figure_gives_it_away(hidden):
    told = repr(hidden) + " ".join(text.get_text() for text in hidden.plot().texts)
    for secret in ("jpeg", "io_ms", "num_workers", "workers-0"):
        assert secret not in told


def test_the_right_answer_reveals_and_a_wrong_one_does_not(hidden):
    assert "Look again" in hidden.answer("launch")
    assert hidden.answer("input").startswith("Right, at try 2. Planted was no workers")
    with pytest.raises(ValueError, match="Unknown bottleneck 'gremlins'; available: input"):
        hidden.answer("gremlins")


def test_the_cause_named_at_once_is_scored_and_after_three_tries_it_tells(hidden):
    hidden.answer("input")
    hidden.answer("launch")  # it was right before: nothing changes
    assert kept() == [{"tries": 1, "right": True}] and lk.score().named == 1
    score._session.clear()
    late = Mystery(NO_WORKERS, lk.recorded("workers-0"))
    assert "Planted was" in [late.answer("launch") for _ in range(3)][-1]
    late.answer("input")  # too late
    assert kept() == [{"tries": 3, "right": False}] and lk.score().named == 0


@pytest.mark.slow
def test_a_mystery_is_run_named_and_its_fix_measured_against_the_right_cure(monkeypatch):
    # The waits of a batch in turn take many times as long as the step of so small a model
    small = faultset.Here(BASE | {"width": 8}, lk.machine())
    monkeypatch.setattr(module, "here", lambda: small)
    monkeypatch.setattr(faultset, "FAULTS", [NO_WORKERS.fault])
    monkeypatch.setattr(faultset, "HEALTHY", [])
    mystery = lk.mystery(3, recorded=False)
    assert mystery.run.outcome == "finished" and mystery.run.alias == "a mystery run"
    assert "Name the bottleneck first" in repr(mystery.fix(num_workers=4))
    assert "Right" in mystery.answer("input")
    fix = mystery.fix(num_workers=6)
    assert fix.possible > 1.3 and fix and "the right cure" in repr(fix), fix
    assert kept()[0]["share"] == round(fix.share, 3)


def test_the_same_number_is_the_same_mystery_and_has_the_size_of_the_device(monkeypatch):
    base = faultset.BASES["gpu"] | {"precision": "bf16", "depth": 11}
    finished = lk.recorded("workers-0")
    gpu = faultset.Here(base, replace(finished.machine, kind="gpu"))
    monkeypatch.setattr(module, "here", lambda: gpu)
    monkeypatch.setattr(faultset, "finished", lambda *_: finished)
    cases = [lk.mystery(number, recorded=False)._case for number in range(40)]
    assert cases[7] == lk.mystery(7, recorded=False)._case
    assert all("gpu" in case.fault.devices for case in cases)
    healthy = next(case for case in cases if case.fault.name == "healthy CNN")
    assert healthy.pipeline.width >= 640 and healthy.pipeline.depth == 11


# -- the fix ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "Change a knob"),
        ({"width": 2}, "not be the same work"),
        ({"io_ms": 0.0}, "not be the same work"),
        ({"gremlins": 2}, "Unknown knob"),
        ({"num_workers": -1}, "not allowed"),
        ({"without": "slow decode"}, "no 'slow decode' in its code"),
        ({"without": "no workers"}, "no 'no workers' in its code"),
    ],
)
def test_what_is_not_a_fix_gets_a_sentence(hidden, rates, changes, why):
    hidden.reveal()
    fix = hidden.fix(**changes)
    assert not fix and why in repr(fix) and not rates.asked


def test_code_is_fixed_by_taking_it_out_and_the_best_fix_stays(hidden, rates):
    mystery = Mystery(case("garbage collection", 1), hidden.run)
    mystery.reveal()
    rate = mystery.run.throughput
    rates.found.update(gone=3 * rate, kept=1.1 * rate)
    knobs = mystery.fix(num_workers=2)
    assert not knobs and knobs.share == pytest.approx(0.05) and knobs.possible == pytest.approx(3)
    assert mystery.fix(without="garbage collection").share == 1.0
    assert rates.asked == ["collect_garbage@2", None, None]
    assert mystery.fix(num_workers=1).share < 0.1 and kept() == [{"share": 1.0}]


def test_there_is_nothing_to_cure_in_a_healthy_run_and_a_failed_fix_says_why(
    hidden, rates, monkeypatch
):
    mystery = Mystery(case("healthy MLP", 2), hidden.run)
    mystery.reveal()
    fix = mystery.fix(num_workers=2)
    assert "nothing to cure" in repr(fix) and fix.share is None and not kept()
    monkeypatch.setattr(faultset, "finished", lambda *_: (_ for _ in ()).throw(OSError("no disk")))
    assert "Not measured: no disk" in repr(mystery.fix(num_workers=2))
    mystery._case = None
    assert "cannot be run again" in repr(mystery.fix(num_workers=2))


def test_the_share_of_a_cure_stays_between_none_and_all():
    assert [Fix(gain, 2.0).share for gain in (0.5, 1.5, 9.0)] == [0.0, 0.5, 1.0]
    assert Fix(1.2, 0.9).share is None and not Fix(1.2, 0.9) and "0.90" in repr(Fix(1.2, 0.9))


# -- recorded mysteries ----------------------------------------------------------------------------


def record(folder, kind):
    """Put a run into `folder` as if recorded on a `kind` of device: for these tests only."""
    saved = lk.recorded("workers-0").save(folder / "here" / "a.jsonl.gz")
    with gzip.open(saved, "rt") as file:
        events = [json.loads(line) for line in file]
    for event in events:
        if event["event"] == "machine":
            event["kind"] = kind
    with gzip.open(saved, "wt") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_a_recorded_gpu_run_is_a_mystery_too(tmp_path, monkeypatch):
    record(tmp_path, "gpu")
    found = lk.mystery(recorded=True, folder=tmp_path)
    assert found.run.recorded and "RECORDED" in repr(found)
    assert "num_workers" not in repr(found)
    assert "Look again" in found.answer("compute")
    assert "Nothing was planted in this record" in found.answer("input")
    assert kept() == [{"tries": 2, "right": True}]
    cpu = faultset.Here(BASE, replace(found.run.machine, kind="cpu"))
    monkeypatch.setattr(module, "here", lambda: cpu)
    assert lk.mystery(2, folder=tmp_path).run.recorded  # one in three without a GPU


def test_without_recorded_gpu_runs_it_says_what_to_do(tmp_path):
    record(tmp_path, "cpu")
    with pytest.raises(RuntimeError, match="labkit record --out"):
        lk.mystery(recorded=True, folder=tmp_path)
