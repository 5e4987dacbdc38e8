"""Challenges: every solution passes, every wrong answer and every cheat fails; the score."""

import os
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pandas
import pytest
import torch
import wrong_answers

import labkit as lk
from labkit.course import challenge, nb07_09, score
from labkit.course.challenge import Challenge
from labkit.course.task import CodeTask, Goal, KnobTask, all_tasks, tried_out

TASKS = all_tasks()
COMPILED = ("01-batched", "05-softmax", "07-graph-break", "07-buckets")  # import Dynamo
WRONG = wrong_answers.KNOBS | wrong_answers.CODE


@pytest.fixture(autouse=True)
def own_score(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score._unwritten.clear()
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # put back what a cheat replaces
    monkeypatch.setattr(nb07_09.Bytes, "start", nb07_09.Bytes.start)


def all_code():
    """Every (key, name) of answers in code; those that compile are slow."""
    for key, task in TASKS.items():
        if isinstance(task, CodeTask):
            marks = [pytest.mark.slow] if key in COMPILED else []
            if key == "07-kernel":
                marks = [pytest.mark.skipif(not find_spec("triton"), reason="needs Triton")]
            for name in ("solution", *WRONG[key], *(["start"] if task.base else [])):
                yield pytest.param(key, name, marks=marks, id=f"{key} {name}")


def judged(key, name):
    task = TASKS[key]
    known = {"start": task.base, "solution": task.solution, **WRONG[key]}
    verdict = lk.challenge(key).check(known[name])
    assert bool(verdict) == (name == "solution"), verdict
    assert verdict.lines or verdict.why
    assert verdict or verdict.hint


@pytest.fixture
def here(monkeypatch):
    """Try answers out as the bench does, in this process: quicker, and as exact."""

    def start(task, answer):
        torch.manual_seed(0)
        row = {"error": None, "counted": tried_out(task.key, cloudpickle.dumps(answer))}
        rows = pandas.DataFrame([row])
        return SimpleNamespace(outcome="finished", rows=rows, wait_or_raise=lambda _look: None)

    monkeypatch.setattr(CodeTask, "start", start)


@pytest.mark.parametrize(("key", "name"), list(all_code()))
def test_code_that_solves_a_challenge_passes_and_wrong_code_fails(key, name, here):
    judged(key, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("04-knee", "solution"),
        pytest.param("04-knee", "past the limit", marks=pytest.mark.nightly),
        ("01-intensity", "solution"),
    ],
)
def test_answers_are_judged_by_what_they_measure_in_a_process_of_their_own(key, name):
    judged(key, name)


def test_a_cheat_with_knobs_changes_the_work_and_is_refused_unless_a_goal_tells():
    for key, task in TASKS.items():
        for name in WRONG[key] if isinstance(task, KnobTask) else ():
            if name.startswith("cheat") and key != "04-fit":  # there a goal tells
                with pytest.raises(ValueError, match="not the same work"):
                    task.spec(WRONG[key][name])


def test_every_notebook_has_two_to_four_challenges_each_with_hints_cheats_and_a_solution():
    numbers = Counter(key[:2] for key in TASKS)
    notebooks = Path(__file__).parents[1] / "notebooks"
    assert sorted(numbers) == sorted(path.name[:2] for path in notebooks.glob("*.ipynb"))
    assert all(2 <= count <= 4 for count in numbers.values())
    for key, task in TASKS.items():
        assert task.title and task.text and task.hints and task.goals, key
        assert any(name.startswith("cheat") for name in WRONG[key]), key
        posed = lk.challenge(key)
        assert task.title in repr(posed) and posed._repr_html_()
        score.keep("challenges", key, tries=1)
        if isinstance(task, CodeTask):
            assert posed.solution().startswith(("def ", "class "))
    with pytest.raises(ValueError, match="Unknown challenge 'nothing'; available: 00-first"):
        lk.challenge("nothing")


def test_the_kernel_puzzle_says_what_is_missing_where_there_is_no_triton(here, monkeypatch):
    monkeypatch.setattr(nb07_09.importlib.util, "find_spec", lambda _name: None)
    verdict = lk.challenge("07-kernel").check(WRONG["07-kernel"]["cheat: PyTorch's own"])
    assert not verdict and "Triton is missing here" in verdict.why, verdict


def heavy(data):
    return lambda x: (x, data)


@pytest.mark.parametrize(
    ("key", "answer", "words"),
    [
        ("09-no-sync", {"ranks": 1}, "Leave ranks"),
        ("09-no-sync", {"no_sync": 3}, "True or False"),
        ("09-no-sync", {"rank": 1}, "Unknown knob rank=1"),
        ("08-two-fixes", {"fixes": ["all"]}, "Unknown fix 'all'"),
        ("08-two-fixes", {"steps": 3}, "Leave steps"),
        ("08-two-fixes", lk.Pipeline(), "The answer is a dict"),
        ("08-two-fixes", {"fixes": 3}, "not iterable"),
        ("04-knee", {"batch_size": 64.5}, "batch_size=64.5"),
        ("04-knee", {}, "what you were given"),
        *[("00-first", nonsense, "The answer is a") for nonsense in (5, [], lambda: None)],
        ("07-graph-break", 5, "The answer is a function"),
        ("07-graph-break", heavy(b"x" * (17 * 2**20)), "MiB of data"),
    ],
)
def test_an_answer_that_cannot_be_run_gets_a_sentence(key, answer, words):
    verdict = lk.challenge(key).check(answer)
    assert not verdict and words in verdict.why, verdict


def raises(x):
    raise RuntimeError("mine")


def another_clock(x):
    time.perf_counter_ns = lambda: 0
    return nb07_09.Bytes.solution(x)


def another_check(x):
    nb07_09.Bytes.start = nb07_09.Bytes.solution
    return nb07_09.Bytes.solution(x)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(raises, "RuntimeError: mine"), (another_check, "the check's start"),
     (another_clock, "replaces time.perf_counter_ns")],
)  # fmt: skip
def test_so_do_those_that_raise_or_replace_the_clock_or_the_check(answer, words, here):
    verdict = lk.challenge("07-bytes").check(answer)
    assert not verdict and words in verdict.why, verdict


@pytest.mark.slow
def test_so_does_one_that_ends_its_process():
    verdict = lk.challenge("07-bytes").check(lambda x: os._exit(3))
    assert verdict.kind == "crashed" and "did not finish" in verdict.why, verdict


def test_hints_come_one_at_a_time_and_a_solution_after_a_try():
    task = TASKS["00-first"]
    for nothing in (None, ...):
        verdict = lk.challenge(task.key).check(nothing)
        assert not verdict and verdict.why == "No answer yet." and verdict.hint is None
    assert "Try it first" in lk.challenge(task.key).solution()
    hints = [lk.challenge(task.key).check(task.base).hint for _ in range(3)]
    assert hints == [*task.hints, task.hints[-1]]
    assert isinstance(lk.challenge(task.key).solution(), lk.Pipeline)


@pytest.fixture
def easy(monkeypatch):
    """A challenge with two recorded runs in place of the answer's and the baseline's.

    `easy(3.0, 1.9)`: the answer's runs are so many times as fast as their baseline; the mark is 2.
    """
    monkeypatch.setattr(score, "QUIET", ())
    monkeypatch.setattr("labkit.course.task.TASKS", {})
    monkeypatch.setattr(challenge, "_baselines", {})
    monkeypatch.setattr(challenge, "launch", lambda _spec: lk.recorded("workers-0"))
    monkeypatch.setattr(KnobTask, "start", lambda _task, _answer: lk.recorded("workers-6"))
    given = []
    goal = Goal("x", lambda _run, _baseline: given.pop(0), at_least=2.0, close=0.1)
    task = KnobTask("99-x", "t", "t", (goal,), ("first", "second"), lk.Pipeline())

    def check(*measured):
        again = measured[1:] and measured  # repeats are judged with the first
        given[:] = [measured[0], *again]
        return Challenge(task).check(task.base)

    return check


@pytest.mark.parametrize(
    ("measured", "kind", "said"),
    [
        ((3.0,), "passed", "yes: x: at least 2; measured 3"),
        ((1.0,), "not yet", "no: x: at least 2; measured 1"),
        ((2.05, 2.1, 2.3), "passed", "yes: x: at least 2; measured 2.1 (2.05 to 2.3)"),
        ((2.04, 1.9, 1.8), "too noisy", "unclear: x: at least 2; measured 1.9 (1.8 to 2.04)"),
    ],
)
def test_a_result_near_its_mark_is_measured_again_and_noise_that_straddles_it_is_no_verdict(
    measured, kind, said, easy
):
    verdict = easy(*measured)
    assert (verdict.kind, verdict.lines) == (kind, (said,))
    assert ("Run this cell again" in repr(verdict)) == (kind == "too noisy")
    tries = score.read()["challenges"].get("99-x", {}).get("tries", 0)
    assert tries == (kind != "too noisy")


def test_a_pass_stays_and_tries_add_up_also_in_another_session(easy):
    assert not easy(1.0) and easy(3.0) and not easy(1.0)
    assert easy(1.0).hint == "second"
    kept = {"passed": True, "tries": 4}
    assert score.read()["challenges"]["99-x"] == kept and lk.score().solved == 1


def test_a_wrong_answer_is_shown_what_it_measured(easy):
    verdict = easy(1.0)
    assert "measured 1" in repr(verdict) and "data:image/png" in verdict._repr_html_()
    assert verdict.plot().axes
    with pytest.raises(ValueError, match="has no run"):
        Challenge(TASKS["07-bytes"]).check(5).plot()


def test_the_hints_of_the_stalls_pass_and_a_queue_as_long_as_the_run_does_not():
    task = TASKS["03-stalls"]

    def places_are_few(prefetch_factor):
        run = SimpleNamespace(pipeline=task.spec({"prefetch_factor": prefetch_factor}))
        return task.goals[1].met(task.goals[1].value(run, None))

    assert places_are_few(14) and not places_are_few(32) and not places_are_few(64)


# -- guesses and the score -------------------------------------------------------------------------


def test_a_guess_is_written_down_before_and_scored_after(monkeypatch):
    monkeypatch.setattr(score, "QUIET", ())
    bet = lk.guess("busy share", 0.5)
    assert score.read()["guesses"]["busy share"] == {"guess": 0.5, "measured": None}
    bet.settle(0.55, predicted=0.6)
    assert os.listdir() == [score.FILE_NAME]
    assert "1.10" in repr(bet) and "0.60" in repr(bet) and "3 of 3" in bet._repr_html_()
    assert lk.score().guess_points == 3 and "3 of 3 points" in repr(lk.score())
    theirs = repr(lk.guess("an A40", 1.1).settle(1.05, published=True))
    assert "published" in theirs and "measured" not in theirs


def test_a_late_guess_is_shown_and_a_skipped_one_is_neither_stored_nor_scored():
    bet = lk.guess("busy", 0.5).settle(lk.recorded("workers-0"))
    assert bet.late and bet.points is None and "before the guess" in repr(bet)
    for blank in (None, ...):
        bet = lk.guess("blank", blank).settle(0.5)
        assert bet.points is None and "none yet" in repr(bet)
    assert list(score.read()["guesses"]) == ["busy"]
    for bad in (float("nan"), [], True):
        bet = lk.guess("busy", bad).settle(0.5)
        assert bet.points is None and "None to skip" in repr(bet)
    assert score.read()["guesses"]["busy"]["guess"] == 0.5


def test_points_grow_with_how_close_a_guess_is():
    assert [score.points(g, 1.0) for g in (1.05, 0.85, 0.55, 3.0)] == [3, 2, 1, 0]
    assert score.points("rise", "rise") == 3 and score.points("rise", "fall") == 0
