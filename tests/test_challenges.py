"""Challenges: every solution passes, every wrong answer and every cheat fails; guesses."""

from pathlib import Path

import pytest
import torch
import wrong_answers

import labkit as lk
from labkit.course import challenge
from labkit.course.challenge import CodeChallenge
from labkit.course.challenges import CHALLENGES as TASKS

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
COMPILED = ("07-graph-break",)  # imports Dynamo
MEASURED = [pytest.mark.nightly, pytest.mark.measures]  # on a busy machine no verdict
WRONG = wrong_answers.KNOBS | wrong_answers.CODE


def all_code():
    """Every (key, name) of answers in code; those that compile are slow."""
    for key, task in TASKS.items():
        if isinstance(task, CodeChallenge):
            marks = [pytest.mark.slow] if key in COMPILED else []
            for name in ("solution", *WRONG.get(key, {})):
                yield pytest.param(key, name, marks=marks, id=f"{key} {name}")


def judged(key, name):
    answers = {"solution": TASKS[key].example, **WRONG.get(key, {})}
    verdict = lk.challenge(key).check(answers[name])
    assert bool(verdict) == (name == "solution"), verdict
    assert verdict.lines and (verdict or verdict.hint)


@pytest.fixture
def here(monkeypatch):
    """Try answers out as the bench does, in this process: quicker, and as exact."""

    def on_the_bench(task, answer):
        torch.manual_seed(0)
        try:
            return task.trial(answer)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    monkeypatch.setattr(CodeChallenge, "on_the_bench", on_the_bench)


@pytest.mark.parametrize("key, name", list(all_code()))
def test_code_that_solves_a_challenge_passes_and_wrong_code_fails(key, name, here):
    judged(key, name)


def test_an_answer_in_knobs_is_judged_by_its_run_beside_one_of_what_was_given(monkeypatch):
    task = TASKS["02-feed"]
    runs = {task.start: lk.recorded("workers-0"), task.example: lk.recorded("workers-2")}
    monkeypatch.setattr(challenge, "launch", runs.get)
    challenge.baseline.cache_clear()
    judged("02-feed", "solution")
    challenge.baseline.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["11-choose", pytest.param("02-feed", marks=MEASURED)])
def test_answers_are_judged_by_what_they_measure_in_a_process_of_their_own(key):
    judged(key, "solution")


def test_each_notebook_but_the_capstone_which_is_one_has_a_challenge():
    notebooks = {path.name[:2] for path in NOTEBOOKS.glob("*.ipynb")}
    assert {key[:2] for key in TASKS} == notebooks - {"08"}


@pytest.mark.parametrize("key", TASKS)
def test_a_challenge_is_posed_and_has_hints_a_cheat_that_fails_and_a_solution(key):
    task = TASKS[key]
    assert task.text and task.hints
    [notebook] = NOTEBOOKS.glob(f"{key[:2]}_*.ipynb")
    assert f'lk.challenge(\\"{key}\\")' in notebook.read_text(encoding="utf-8")
    cheats = [name for name in WRONG.get(key, ()) if name.startswith("cheat")]
    assert cheats, f"give {key!r} a cheat in tests/wrong_answers.py"
    posed = lk.challenge(key)
    assert task.text in repr(posed)
    challenge.TRIES[key] = 1
    if isinstance(task, CodeChallenge):
        assert posed.solution().startswith(("def ", "class "))
    elif key != "04-fit":  # there a goal tells
        for name in cheats:
            with pytest.raises(ValueError, match="not the same work"):
                task.spec(WRONG[key][name])


def raises(*_):
    raise RuntimeError("mine")


@pytest.mark.parametrize(
    "key, answer, words",
    [
        ("04-fit", {"step": 1}, "Unknown knob step=1"),
        ("04-fit", 3, "The answer is a dict"),
        ("07-graph-break", 5, "The answer is a function"),
        ("12-cache", 5, "The answer is a class"),
        ("11-choose", raises, "RuntimeError: mine"),
    ],
)
def test_an_answer_that_cannot_be_run_gets_a_sentence(key, answer, words, here):
    verdict = lk.challenge(key).check(answer)
    assert not verdict and words in repr(verdict), verdict


def test_hints_come_one_at_a_time_and_a_solution_after_a_try(here):
    task = TASKS["01-stopwatch"]
    [cheat] = WRONG[task.key].values()
    challenge.TRIES.clear()
    verdict = lk.challenge(task.key).check(...)
    assert not verdict and "No answer yet." in repr(verdict) and not verdict.hint
    assert "Try it first" in lk.challenge(task.key).solution()
    hints = [lk.challenge(task.key).check(cheat).hint for _ in range(3)]
    assert hints == [*task.hints, task.hints[-1]]
    assert str(lk.challenge(task.key).solution()).startswith("def ms_per_call(")
    with pytest.raises(
        ValueError, match="Unknown challenge 'nothing'; available: 00-first, 01-stopwatch"
    ):
        lk.challenge("nothing")


def test_a_guess_is_written_down_before_and_judged_after():
    bet = lk.guess("busy share", 0.5).settle(0.55)
    assert "0.55" in repr(bet) and "1.10x" in bet._repr_html_()
    assert "published" in repr(lk.guess("an A40", 1.1).settle(1.05, published=True))
    assert "off by" not in repr(lk.guess("x", "rise").settle("fall"))
    run = lk.recorded("workers-0")
    assert lk.guess("busy", ...).settle(run).measured == run.utilization
    assert lk.guess("no row", 2).settle(float("nan")).measured is None
