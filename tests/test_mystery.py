"""A mystery keeps its spec to itself until it is answered."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

import labkit as lk
from labkit.course import mystery, score
from labkit.course.mystery import HIDDEN, Mystery

ON_CPU = [each for each in HIDDEN if "cpu" in each.devices]
NO_WORKERS = HIDDEN[0]


@pytest.fixture
def hidden():
    """A mystery round a recorded run, which waits for its data."""
    score._unwritten.clear()
    return Mystery(NO_WORKERS, 0, lk.recorded("workers-0"))


def kept():
    return list(score.read()["mysteries"].values())


def test_neither_text_nor_figure_gives_it_away(hidden):
    told = repr(hidden) + " ".join(text.get_text() for text in hidden.plot().texts)
    for secret in ("jpeg", "io_ms", "num_workers", "workers-0"):
        assert secret not in told


def test_the_right_answer_reveals_and_a_wrong_one_does_not(hidden):
    assert hidden.answer(...) == "No answer yet." and "Look again" in hidden.answer("launch")
    assert hidden.answer("input").startswith("Right, at try 2. It was input: 8 ms of storage")


def test_an_unknown_word_gets_the_names_to_choose_from_and_is_no_try(hidden):
    assert hidden.answer("gremlins").startswith("Unknown bottleneck 'gremlins'; available: input")
    assert hidden.answer("inptu") == "Unknown bottleneck 'inptu'; did you mean 'input'?"
    assert hidden.answer("input").startswith("Right, at try 1")


def test_the_cause_named_at_once_is_scored(hidden):
    hidden.answer("input")
    hidden.answer("launch")  # it was right before: nothing changes
    assert kept() == [{"tries": 1, "right": True}] and lk.score().named == 1


def test_after_three_tries_it_tells(hidden):
    assert "It was input" in [hidden.answer("launch") for _ in range(3)][-1]
    hidden.answer("input")  # too late
    assert kept() == [{"tries": 3, "right": False}] and lk.score().named == 0


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_same_number_is_the_same_mystery_and_has_the_size_of_the_device(kind, monkeypatch):
    finished = lk.recorded("workers-0")
    asked = []
    monkeypatch.setattr(mystery, "machine", lambda: replace(finished.machine, kind=kind))
    monkeypatch.setattr(
        mystery,
        "launch",
        lambda spec: SimpleNamespace(wait_or_raise=lambda: asked.append(spec) or finished),
    )
    hidden = [lk.mystery(number)._hidden for number in range(40)]
    lk.mystery(7)
    assert asked[7] == asked[-1] and {each.what for each in hidden} == {
        each.what for each in mystery.HIDDEN if kind in each.devices
    }
    large = next(spec for spec in asked if spec.model == "transformer")
    assert large.width == (5120 if kind == "gpu" else 192)


@pytest.mark.measures
@pytest.mark.slow
def test_a_mystery_is_run():
    numbers = range(100)
    no_workers = next(n for n in numbers if random.Random(n).choice(ON_CPU) is NO_WORKERS)
    made = lk.mystery(no_workers)
    assert made.run.outcome == "finished" and made.run.diagnose().bottleneck == "input"
    assert "num_workers" not in repr(made) and "Right" in made.answer("input")
