"""Challenges: every solution passes, every wrong answer and every cheat fails; the score."""

import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import wrong_answers

import labkit as lk
from labkit.bench.workbench import Workbench
from labkit.course import challenge, nb07_09, score
from labkit.course.challenge import Challenge
from labkit.course.task import CodeTask, Goal, KnobTask, all_tasks, exercise

TASKS = all_tasks()
COMPILED = ("01-batched", "07-graph-break", "07-buckets")  # import Dynamo
WRONG = wrong_answers.KNOBS | wrong_answers.CODE


@pytest.fixture(autouse=True)
def own_score(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score._session.clear()
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # put back what a cheat replaces
    monkeypatch.setattr(nb07_09.Bytes, "start", nb07_09.Bytes.start)


def all_code():
    """Every (key, name) of answers in code; those that compile are slow."""
    for key, task in TASKS.items():
        if isinstance(task, CodeTask):
            slow = [pytest.mark.slow] if key in COMPILED else []
            for name in ("solution", *WRONG[key], *(["start"] if task.base else [])):
                yield pytest.param(key, name, marks=slow, id=f"{key} {name}")


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

    class Points(list):
        outcome = "finished"

        def wait_or_raise(self, _look):
            pass

    def start(task, answer):
        points = Points()
        log = SimpleNamespace(write=lambda _event, **point: points.append(SimpleNamespace(**point)))
        bench = Workbench(None, log, stage=None)  # no device: what a check counts is on none
        bench.answer = Path(f"answer-{time.monotonic_ns()}")
        bench.answer.write_bytes(cloudpickle.dumps(answer))
        torch.manual_seed(0)
        exercise.measure(SimpleNamespace(task=task.key), bench)
        return points

    monkeypatch.setattr(CodeTask, "start", start)


@pytest.mark.parametrize(("key", "name"), list(all_code()))
def test_code_that_solves_a_challenge_passes_and_wrong_code_fails(key, name, here):
    judged(key, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "name"),
    [("04-knee", "solution"), ("04-knee", "past the limit"), ("01-intensity", "solution")],
)
def test_answers_are_judged_by_what_they_measure_in_a_process_of_their_own(key, name):
    judged(key, name)


def test_a_cheat_with_knobs_changes_the_work_and_is_refused_unless_a_goal_tells():
    by_goal = {"08-two-fixes": "all at once", "09-no-sync": "another update", "04-fit": "fewer"}
    for key, task in TASKS.items():
        for name in WRONG[key] if isinstance(task, KnobTask) else ():
            if name.startswith("cheat") and by_goal.get(key, "every") not in name:
                with pytest.raises(ValueError, match="not the same work"):
                    task.spec(WRONG[key][name])


def test_every_notebook_has_two_to_four_challenges_each_with_hints_cheats_and_a_solution():
    numbers = Counter(key[:2] for key in TASKS)
    assert sorted(numbers) == [f"{n:02}" for n in range(10)] and len(TASKS) >= 24
    assert all(2 <= count <= 4 for count in numbers.values())
    for key, task in TASKS.items():
        assert task.title and task.text and task.hints and task.goals, key
        assert any(name.startswith("cheat") for name in WRONG[key]), key
        posed = lk.challenge(key)
        assert task.title in repr(posed) and posed._repr_html_()
        posed.tries = 1
        if isinstance(task, CodeTask):
            assert posed.solution().startswith(("def ", "class "))
    with pytest.raises(ValueError, match="Unknown challenge 'nothing'; available: 00-first"):
        lk.challenge("nothing")


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
    posed = lk.challenge("00-first")
    for nothing in (None, ...):
        verdict = posed.check(nothing)
        assert not verdict and verdict.why == "No answer yet." and verdict.hint is None
    assert "Try it first" in posed.solution()
    hints = [posed.check(posed.task.base).hint for _ in range(3)]
    assert hints == [*posed.task.hints, posed.task.hints[-1]]
    assert isinstance(posed.solution(), lk.Pipeline)


def test_a_result_near_its_mark_is_measured_again_and_the_median_counts(monkeypatch):
    given = {1: [2.04, 1.9, 1.8], 0: [1.0, 1.0, 1.0]}  # 2.04 alone would pass

    def ran(pipeline):
        about = {"throughput": given[pipeline.num_workers].pop(0), "loss": []}
        return SimpleNamespace(**about, outcome="finished", wait_or_raise=lambda _look: None)

    monkeypatch.setattr(challenge, "launch", ran)
    monkeypatch.setattr(KnobTask, "start", lambda _task, answer: ran(answer))
    monkeypatch.setattr("labkit.course.task.TASKS", {})
    goal = Goal("x", lambda a, b: a.throughput / b.throughput, at_least=2.0, close=0.1)
    task = KnobTask("99-x", "t", "t", (goal,), ("h",), lk.Pipeline(), free=("num_workers",))
    verdict = Challenge(task).check(task.base.but(num_workers=1))
    assert not verdict and "1.9" in verdict.lines[0]


# -- guesses and the score -------------------------------------------------------------------------


def test_a_guess_is_written_down_before_and_scored_after(monkeypatch):
    monkeypatch.setattr(score, "QUIET", ())
    bet = lk.guess("busy share", 0.5)
    assert score.read()["guesses"]["busy share"] == {"guess": 0.5, "measured": None}
    bet.settle(0.55, predicted=0.6)
    assert os.listdir() == [score.FILE_NAME]
    assert "1.10" in repr(bet) and "0.60" in repr(bet) and "3 of 3" in bet._repr_html_()
    assert lk.score().guess_points == 3 and "3 of 3 points" in repr(lk.score())


def test_a_late_guess_is_shown_and_a_skipped_one_is_neither_stored_nor_scored():
    bet = lk.guess("busy", 0.5).settle(lk.recorded("workers-0"))
    assert bet.late and bet.points is None and "before the guess" in repr(bet)
    for blank in (None, ...):
        bet = lk.guess("blank", blank).settle(0.5)
        assert bet.points is None and "none yet" in repr(bet)
    assert list(score.read()["guesses"]) == ["busy"]
    for bad in (float("nan"), [], True):
        with pytest.raises(ValueError, match="None to skip"):
            lk.guess("busy", bad)


@pytest.mark.parametrize("text", ["", "[]", '{"guesses": 3}', "[" * 100_000])
def test_a_broken_score_file_is_no_score(text, monkeypatch):
    monkeypatch.setattr(score, "QUIET", ())
    Path(score.FILE_NAME).write_text(text)
    assert lk.score().guess_points == 0
    lk.guess("again", 1.0).settle(1.0)
    assert lk.score().guess_points == 3


def test_points_grow_with_how_close_a_guess_is():
    assert [score.points(g, 1.0) for g in (1.05, 0.85, 0.55, 3.0)] == [3, 2, 1, 0]
    assert score.points("rise", "rise") == 3 and score.points("rise", "fall") == 0
