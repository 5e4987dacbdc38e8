"""A mystery keeps its spec to itself until it is answered."""

from dataclasses import replace

import pytest

import labkit as lk
from labkit.course import faultset, score
from labkit.course.score import Mystery

BASE = faultset.BASES["cpu"] | {"precision": "fp32"}
NO_WORKERS = faultset.Case(faultset.named("no workers"), 4, 0, BASE)


@pytest.fixture
def hidden():
    """A mystery round a recorded run, which waits for its data."""
    score._unwritten.clear()
    return Mystery(NO_WORKERS, lk.recorded("workers-0"))


def kept():
    return list(score.read()["mysteries"].values())


def test_neither_text_nor_figure_gives_it_away(hidden):
    told = repr(hidden) + " ".join(text.get_text() for text in hidden.plot().texts)
    for secret in ("jpeg", "io_ms", "num_workers", "workers-0"):
        assert secret not in told


def test_the_right_answer_reveals_and_a_wrong_one_does_not(hidden):
    assert hidden.answer(...) == "No answer yet." and "Look again" in hidden.answer("launch")
    assert hidden.answer("input").startswith("Right, at try 2. Planted was no workers")


def test_an_unknown_word_gets_the_names_to_choose_from_and_is_no_try(hidden):
    assert hidden.answer("gremlins").startswith("Unknown bottleneck 'gremlins'; available: input")
    assert hidden.answer("inptu") == "Unknown bottleneck 'inptu'; did you mean 'input'?"
    assert hidden.answer("input").startswith("Right, at try 1")


def test_the_cause_named_at_once_is_scored(hidden):
    hidden.answer("input")
    hidden.answer("launch")  # it was right before: nothing changes
    assert kept() == [{"tries": 1, "right": True}] and lk.score().named == 1


def test_after_three_tries_it_tells(hidden):
    assert "Planted was" in [hidden.answer("launch") for _ in range(3)][-1]
    hidden.answer("input")  # too late
    assert kept() == [{"tries": 3, "right": False}] and lk.score().named == 0


def test_the_same_number_is_the_same_mystery_and_has_the_size_of_the_device(monkeypatch):
    base = faultset.BASES["gpu"] | {"precision": "bf16", "depth": 11}
    finished = lk.recorded("workers-0")
    gpu = faultset.Here(base, replace(finished.machine, kind="gpu"))
    monkeypatch.setattr(score, "here", lambda: gpu)
    monkeypatch.setattr(faultset, "finished", lambda *_: finished)
    cases = [lk.mystery(number)._case for number in range(40)]
    assert cases[7].pipeline == lk.mystery(7)._case.pipeline
    assert all("gpu" in case.fault.devices for case in cases)
    healthy = next(case for case in cases if case.fault.name == "healthy CNN")
    assert healthy.pipeline.width >= 640 and healthy.pipeline.depth == 11


@pytest.mark.measures
@pytest.mark.slow
def test_a_mystery_is_run(monkeypatch):
    # The waits of a batch in turn take many times as long as the step of so small a model
    small = faultset.Here(BASE | {"width": 8}, lk.machine())
    monkeypatch.setattr(score, "here", lambda: small)
    monkeypatch.setattr(faultset, "FAULTS", [NO_WORKERS.fault])
    monkeypatch.setattr(faultset, "HEALTHY", [])
    mystery = lk.mystery(3)
    assert mystery.run.outcome == "finished" and mystery.run.diagnose().bottleneck == "input"
    assert "num_workers" not in repr(mystery) and "Right" in mystery.answer("input")
