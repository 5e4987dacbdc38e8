"""Challenges: every solution passes, every wrong answer and every cheat fails."""

import importlib
import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import pytest
import torch

import labkit as lk
from labkit.bench.workbench import Workbench
from labkit.course import score, tasks
from labkit.course.challenge import Challenge
from labkit.course.task import CodeTask, Goal, KnobTask
from labkit.experiments import exercise

ALL = "LABKIT_ALL_CHALLENGES" in os.environ  # every answer in a process of its own: minutes
LAUNCHED = {
    "03-lean",
    "03-small-queue",
    "04-knee",
    "07-graph-break",
}  # as readers run them, in every test run


def answer_of(task, name):
    """What a reader would hand in for this answer of ours."""
    answer = task.solution if name == "solution" else task.wrong[name]
    if isinstance(task, CodeTask):
        module, _, name = answer.partition(":")
        return getattr(importlib.import_module(f"labkit.course.exercises.{module}"), name)
    return answer


CASES = [
    pytest.param(key, name, id=f"{key}-{name}")
    for key, task in tasks.TASKS.items()
    for name in ("solution", *task.wrong)
    if ALL or key in LAUNCHED or isinstance(task, CodeTask)
]


def run_here(challenge, answer):
    """Try out an answer as the bench does, in this process: quicker, and as exact."""
    points = []
    log = SimpleNamespace(write=lambda _event, **point: points.append(SimpleNamespace(**point)))
    bench = Workbench(None, log, stage=None)  # no device: what an exercise counts is on none
    bench.answer = Path(f"answer-{time.monotonic_ns()}")
    bench.answer.write_bytes(cloudpickle.dumps(answer))
    torch.manual_seed(0)
    exercise.measure(SimpleNamespace(task=challenge.task.exercise), bench)
    return points


@pytest.fixture(autouse=True)
def own_score(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score._session.clear()


@pytest.mark.parametrize(("key", "name"), CASES)
def test_solutions_pass_and_wrong_answers_fail(key, name, monkeypatch):
    task = tasks.TASKS[key]
    if task.needs and (why := task.needs(lk.machine())):
        pytest.skip(why)
    if not ALL and key not in LAUNCHED:
        monkeypatch.setattr(Challenge, "_run", run_here)
    verdict = lk.challenge(key).check(answer_of(task, name))
    assert verdict.passed == (name == "solution"), verdict
    assert verdict.lines or verdict.why
    if name != "solution":
        assert verdict.hint


def test_every_notebook_has_two_to_four_challenges():
    numbers = Counter(key[:2] for key in tasks.TASKS)
    assert sorted(numbers) == [f"{n:02}" for n in range(10)]
    assert all(2 <= count <= 4 for count in numbers.values()) and len(tasks.TASKS) >= 24


def test_code_to_begin_from_and_solutions_are_there_to_be_shown():
    for key, task in tasks.TASKS.items():
        challenge = lk.challenge(key)
        if isinstance(task, CodeTask):
            assert tasks.solution_of(task).startswith(("def ", "class "))
        assert (
            str(challenge.start or "") in repr(challenge) and task.title in challenge._repr_html_()
        )


@pytest.mark.parametrize(
    ("key", "answer", "words"),
    [
        ("09-no-sync", {"ranks": 1}, "Leave ranks"),
        ("09-no-sync", {"no_sync": 3}, "True or False"),
        ("09-no-sync", {"rank": 1}, "no rank to change"),
        ("08-two-fixes", {"fixes": ["all"]}, "'all' is no fix"),
        ("08-two-fixes", {"steps": 3}, "Leave steps"),
        ("08-two-fixes", lk.Pipeline(), "The answer is a dict"),
        ("08-two-fixes", {"fixes": 3}, "not iterable"),
        ("04-knee", {"batch_size": 64.5}, "batch_size=64.5"),
        ("04-knee", {}, "what you were given"),
    ],
)
def test_an_answer_can_be_a_dict_of_what_changes(key, answer, words):
    verdict = lk.challenge(key).check(answer)
    assert not verdict and words in verdict.why, verdict


def test_each_has_a_cheat_and_another_wrong_answer_and_hints():
    for task in tasks.TASKS.values():
        cheats = [name for name in task.wrong if name.startswith("cheat")]
        assert cheats and len(task.wrong) >= 2 and task.hints and task.goals, task.key
        assert task.title and task.text and task.key[:2].isdigit()


def test_a_solution_is_shown_only_after_a_try():
    for key in ("00-first", "07-graph-break"):
        challenge = lk.challenge(key)
        assert "Try it first" in challenge.solution()
        challenge.check(lk.Pipeline(seed=5) if key == "00-first" else 5)
        assert "Try it first" not in str(challenge.solution())


def test_no_answer_yet_is_quiet_and_counts_as_no_try():
    challenge = lk.challenge("00-first")
    for nothing in (None, ...):
        verdict = challenge.check(nothing)
        assert not verdict and verdict.why == "No answer yet." and verdict.hint is None
    assert not challenge.tries


@pytest.mark.parametrize("nonsense", [5, "text", [], object(), lambda: None, lk.Ladder])
def test_a_wrong_kind_of_answer_gets_a_sentence(nonsense):
    verdict = lk.challenge("00-first").check(nonsense)
    assert not verdict and "The answer is a" in verdict.why


def test_hints_come_one_at_a_time():
    challenge = lk.challenge("00-first")
    hints = [challenge.check(challenge.task.base).hint for _ in range(3)]
    assert hints == [*challenge.task.hints, challenge.task.hints[-1]]


def raises(x):
    raise RuntimeError("mine")


def hangs_up(x):
    os._exit(3)


def patches(x):
    import time

    time.perf_counter_ns = lambda: 0
    raise RuntimeError("done")


def heavy():
    data = b"x" * (17 * 2**20)

    def drags(x):
        return x, data

    return drags


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (raises, "RuntimeError: mine"),
        (hangs_up, "did not finish"),
        (patches, "RuntimeError: done"),
        (heavy(), "MiB of data"),
    ],
)
def test_answers_that_misbehave_get_a_sentence_and_no_traceback(answer, words):
    verdict = lk.challenge("07-graph-break").check(answer)
    assert not verdict and words in verdict.why, verdict


def another_clock(x):
    import time

    from labkit.course.exercises.graph_break import whole

    time.perf_counter_ns = lambda: 0
    return whole(x)


def another_check(x):
    from labkit.course.exercises import graph_break

    graph_break.broken = graph_break.other_function
    return graph_break.other_function(x)


@pytest.mark.parametrize(
    ("answer", "what"),
    [(another_clock, "time.perf_counter_ns"), (another_check, "the check's broken")],
)
def test_an_answer_that_replaces_what_it_is_measured_with_is_refused(answer, what):
    verdict = lk.challenge("07-graph-break").check(answer)
    assert not verdict and f"replaces {what}" in verdict.why, verdict


class Numbers:
    """A run with a throughput, for goals that are near their mark."""

    outcome, error, loss, not_applied = "finished", None, [], {}

    def __init__(self, throughput):
        self.throughput = throughput


def test_a_result_near_its_mark_is_measured_again_and_the_median_counts(monkeypatch):
    base = lk.Pipeline()
    given = {1: [2.04, 1.9, 1.8], 0: [1.0, 1.0, 1.0]}  # 2.04 alone would pass
    task = KnobTask(
        "99-x", "t", "t", (Goal("x", lambda a, b: a.throughput / b.throughput, at_least=2.0),),
        ("h",), base.but(num_workers=1), {}, base=base, free=("num_workers",),
    )  # fmt: skip
    monkeypatch.setattr(Challenge, "_run", lambda self, p: Numbers(given[p.num_workers].pop(0)))
    verdict = Challenge(task).check(base.but(num_workers=1))
    assert not verdict.passed and "1.9" in verdict.lines[0]


def test_unknown_challenges_are_refused_with_what_there_is():
    with pytest.raises(ValueError, match="00-first"):
        lk.challenge("nothing")


# -- guesses and the score ---------------------------------------------------------------------


def test_a_guess_is_written_down_before_and_scored_after(monkeypatch, finished):
    for name in score.QUIET:
        monkeypatch.delenv(name, raising=False)
    bet = lk.guess("busy share", 0.5)
    assert score.read()["guesses"]["busy share"] == {"guess": 0.5, "measured": None}
    bet.settle(0.55, predicted=0.6)
    assert bet.points == 3 and bet.ratio == pytest.approx(1.1)
    assert os.listdir() == [score.FILE_NAME]
    assert "labkit said 0.60" in repr(bet) and "3 of 3" in bet._repr_html_()
    assert lk.score().guess_points == 3


def test_a_guess_after_the_run_is_shown_but_not_scored(finished):
    bet = lk.guess("busy", 0.5).settle(finished)
    late = finished.utc < bet.made.isoformat()
    assert bet.late == late and (bet.points is None) == late


def test_a_skipped_guess_is_neither_stored_nor_scored():
    bet = lk.guess("busy", None).settle(0.5)
    assert bet.points is None and "skipped" in repr(bet)
    assert not score.read()["guesses"]
    for bad in (float("nan"), [], object(), True):
        with pytest.raises(ValueError, match="None to skip"):
            lk.guess("busy", bad)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"guesses": 3}', "[" * 100_000])
def test_a_broken_score_file_is_no_score(text, tmp_path, monkeypatch):
    for name in score.QUIET:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / score.FILE_NAME).write_text(text)
    assert lk.score().guess_points == 0
    lk.guess("again", 1.0).settle(1.0)
    assert lk.score().guess_points == 3


def test_points_grow_with_how_close_a_guess_is():
    assert [score.points(g, 1.0) for g in (1.05, 0.85, 0.55, 3.0)] == [3, 2, 1, 0]
    assert score.points("rise", "rise") == 3 and score.points("rise", "fall") == 0
