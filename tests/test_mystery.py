"""A mystery keeps its spec to itself until it is answered."""

import pytest

import labkit as lk
from labkit.lab import faultset
from labkit.learn.mystery import NAMES, Mystery


@pytest.fixture
def hidden(finished):
    """A mystery round a run that is there already."""
    yield Mystery(faultset.Case(faultset.named("no workers"), 4, 0), finished)
    finished.alias = None


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


def test_a_word_that_is_no_bottleneck_is_refused(hidden):
    with pytest.raises(ValueError, match="choose one of input"):
        hidden.answer("gremlins")


def test_the_same_number_is_the_same_mystery():
    first = lk.mystery(3)
    assert first.run.outcome == "finished"
    assert first._case.fault.expected in NAMES
    assert first.run.alias == "a mystery run"
