"""What a script does beside its training loop: validation, checkpoints, the rest between epochs."""

from types import SimpleNamespace

import numpy as np
import pytest

from labkit.bench.places import Place
from labkit.diagnosis import script_rules
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.wording import worded
from labkit.results.wall_shares import wall_shares

MS = 1_000_000
TRAIN = ("/x/train.py", 30, "<module>")  # the line of the loop that computes
EVALUATE = ("/x/train.py", 40, "<module>")  # that calls evaluate()


def place(kind, line, function="<module>", site=None, call=""):
    return Place(kind, "", "/x/train.py", line, function, call, site)


class Script:
    """A script as its log has it: what is done one after the other, each for some ms."""

    def __init__(self):
        self.now = 0
        self.steps = []
        self.passes = {"train": [], "val": []}
        self.samples = []  # (phase, step, ended, weight, place)
        self.saves = []

    def spend(self, ms, where, phase):
        for _ in range(max(1, round(ms / 10))):
            weight = min(ms, 10) * MS
            self.now += weight
            self.samples.append((phase, len(self.steps), self.now, weight, where))

    def epoch(self, steps, step_ms=10, within=lambda _step: None):
        began = self.now
        for step in range(steps):
            asked = self.now
            self.now += MS // 10
            ready = self.now
            self.spend(step_ms / 2, place("forward", 30, site=TRAIN), "body")
            self.spend(step_ms / 2, place("backward", 31, site=(*TRAIN[:1], 31, "")), "body")
            within(step)
            self.steps.append((asked, ready, ready, self.now))
        self.passes["train"].append((began, self.now))

    def validation(self, ms, phase="between"):
        """One over a list of tensors, in a function."""
        site = EVALUATE if phase == "body" else None
        self.spend(ms, place("forward", 20, "evaluate", site, "model()"), phase)

    def over_loader(self, ms, phase="between"):
        began = self.now
        self.validation(ms, phase)
        self.passes["val"].append((began, self.now))

    def save(self, ms):
        began = self.now
        self.spend(ms, place("checkpoint", 50, call="torch.save()"), "between")
        self.saves.append({"began": began, "ended": self.now})

    def run(self, name, line):
        ended = [
            {"n": n, "began": began, "ended": ended, "trains": name == "train"}
            for n, (began, ended) in enumerate(self.passes[name])
        ]
        is_train = name == "train"
        host_ns = np.array(self.steps if is_train else [(0, 9 * MS, 9 * MS, 9 * MS)])
        samples = self.samples if is_train else []
        phase, step, at, weight, places = list(zip(*samples, strict=True)) or ([],) * 5
        stamps = np.repeat(host_ns[:, [0, 1, 1, 1, 1, 3]] / 1e9, 1, axis=1)
        lines = SimpleNamespace(
            places=list(places),
            place=np.arange(len(places)),
            step=np.array(step, int),
            ended_ns=np.array(at, int),
            seconds=np.array(weight, float) / 1e9,
            mask=lambda wanted: np.array([each == wanted for each in phase], bool),
        )
        return SimpleNamespace(
            passes_ended=ended,
            passes_begun=[],
            saves=self.saves if is_train else [],
            pauses=[],
            steps=len(host_ns),
            host_ns=host_ns,
            stamps=stamps,
            place=["/x/train.py", line],
            loop_code={"loader": f"{name}_loader"},
            lines=lines,
        )

    def shares(self):
        names = [("train", 10), ("val", 18)]
        return wall_shares([self.run(*each) for each in names if self.passes[each[0]]], 0, self.now)

    def found(self):
        found = script_rules.beside_training(Evidence("cpu", whole=self.shares()))
        return found and worded(found)


def epochs(script, after, steps=20, **loop):
    for _ in range(4):
        script.epoch(steps, **loop)
        after()
    script.epoch(1)
    return script


def test_validation_over_its_own_loader_is_named_with_that_and_its_line():
    script = Script()
    found = epochs(script, lambda: script.over_loader(400)).found()
    assert (found.name, found.cause) == ("host", "validation")
    assert "the loop over `val_loader` (train.py:18), 4 times" in found.evidence
    assert found.lines[0].place == "train.py:18"
    assert "inference_mode" in found.advice
    part = script.shares().costliest("validation")
    assert (part.times, part.every, part.seconds) == (4, None, pytest.approx(1.6))


def test_validation_over_a_list_of_tensors_is_time_between_epochs_with_its_line():
    script = Script()
    found = epochs(script, lambda: script.validation(400)).found()
    assert found.cause == "between_epochs" and found.lost_share == pytest.approx(0.66, abs=0.02)
    assert "`model()` (train.py:20)" in found.evidence


def test_validation_every_so_many_steps_is_named_with_its_line_and_its_distance():
    script = Script()

    def now_and_then(step):
        if step % 10 == 9:
            script.over_loader(200, "body")

    found = epochs(script, lambda: None, steps=40, within=now_and_then).found()
    assert found.cause == "validation" and found.lost_share == pytest.approx(0.66, abs=0.03)
    where = "the loop over `val_loader` (train.py:18)"
    assert f"{where}, every 10 training steps" in found.evidence


def test_checkpoints_and_what_is_left_between_epochs_are_named_with_their_lines():
    saves = Script()
    found = epochs(saves, lambda: saves.save(400)).found()
    assert found.cause == "checkpoints" and "`torch.save()` (train.py:50)" in found.evidence
    plots = Script()
    draw = place("python", 60, "plot", call="draw()")
    found = epochs(plots, lambda: plots.spend(400, draw, "between")).found()
    assert found.cause == "between_epochs" and "`draw()` (train.py:60)" in found.evidence


def test_a_loop_with_a_short_validation_gets_no_alarm():
    script = Script()
    assert epochs(script, lambda: script.over_loader(40)).found() is None


def test_beside_a_long_validation_the_loops_own_losses_are_parts_of_the_whole_time():
    script = Script()
    epochs(script, lambda: script.over_loader(400))
    evidence = Evidence("cpu", whole=script.shares())
    validates = script_rules.beside_training(evidence)
    waits = Finding("input", "item", 0.9)
    first, second = script_rules.of_the_whole([waits, validates], evidence)
    assert first is validates and second.lost_share == pytest.approx(0.9 * 0.34, abs=0.02)
    assert script_rules.of_the_whole([waits], evidence) == [waits]


def test_a_framework_s_loops_are_named_by_their_loaders():
    script = Script()
    epochs(script, lambda: script.over_loader(400))
    runs = [script.run("train", 10), script.run("val", 18)]
    for run in runs:
        run.place = []
    whole = wall_shares(runs, 0, script.now)
    found = script_rules.beside_training(Evidence("cpu", whole=whole))
    assert "the loop over `val_loader`, 4 times" in worded(found).evidence and not found.lines
