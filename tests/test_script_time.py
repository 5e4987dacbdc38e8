"""What a script does beside its training loop: validation, checkpoints, the rest between epochs."""

import pytest
from played_gpu import CPU, MS, log

from labkit.diagnosis.causes import script as script_rules
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.wall_shares import wall_shares
from labkit.diagnosis.wording import worded

PLACES = {  # kind, within, file, line, function, call, site
    "computes": ["forward", "", "/x/train.py", 30, "<module>", "model()", None],
    "validates": ["validation", "", "/x/train.py", 20, "evaluate", "model()", None],
    "saves": ["checkpoint", "", "/x/train.py", 50, "<module>", "torch.save()", None],
    "draws": ["python", "", "/x/train.py", 60, "plot", "draw()", None],
}


class Script:
    """A script as its log has it: what is done one after the other, each for some ms."""

    def __init__(self, folder):
        self.folder = folder
        self.now = 1000 * MS
        self.steps = []
        self.passes = {"train": [], "val": []}  # (first step, began, ended)
        self.samples = []
        self.saves = []

    def spend(self, ms, where):
        for _ in range(round(ms / 10)):
            self.now += 10 * MS
            self.samples.append([self.now, 10 * MS, [*PLACES].index(where)])

    def epoch(self, steps):
        began = self.now
        first = len(self.steps)
        for _ in range(steps):
            asked = self.now
            ready = asked + MS // 10
            self.spend(10, "computes")
            self.steps.append([asked, ready, ready, self.now])
        self.passes["train"].append((first, began, self.now))

    def over_loader(self, ms):
        began = self.now
        self.spend(ms, "validates")
        self.passes["val"].append((len(self.passes["val"]), began, self.now))

    def save(self, ms):
        began = self.now
        self.spend(ms, "saves")
        self.saves.append({"event": "saved", "began": began, "ended": self.now})

    def run(self, name, place):
        """The run of one of its loops."""
        is_train = name == "train"
        events = [{"event": "hello", "pid": 1}]
        steps = (
            self.steps
            if is_train
            else [[began, began, began, end] for _, began, end in self.passes[name]]
        )
        for n, (first, began, _) in enumerate(self.passes[name]):
            events.append({"event": "epoch", "n": n, "step": first, "began": began})
        for i, moments in enumerate(steps):
            events.append({"event": "step", "i": i, "t": moments, "n": 16})
        for n, (_, began, ended) in enumerate(self.passes[name]):
            events.append(
                {"event": "pass", "n": n, "began": began, "ended": ended, "trains": is_train}
            )
        if is_train:
            places = {str(n): place for n, place in enumerate(PLACES.values())}
            events += self.saves
            events.append({"event": "lines", "pid": 1, "places": places, "rows": self.samples})
        watched = {"loader": "DataLoader", "code": {"loader": f"{name}_loader"}, "place": place}
        return log(self.folder, CPU, {}, *events, spec={"watched": watched})

    def shares(self, places=(["/x/train.py", 10], ["/x/train.py", 18])):
        loops = zip(self.passes, places, strict=True)
        runs = [self.run(name, place) for name, place in loops if self.passes[name]]
        return wall_shares(runs, 1000 * MS, self.now)

    def found(self, **how):
        found = script_rules.beside_training(Evidence("cpu", whole=self.shares(**how)))
        return found and worded(found)


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


def epochs(script, after):
    for _ in range(4):
        script.epoch(20)
        after()
    script.epoch(1)
    return script


def test_validation_over_its_own_loader_is_named_with_that_and_its_line(script):
    found = epochs(script, lambda: script.over_loader(400)).found()
    assert (found.name, found.cause) == ("host", "validation")
    assert found.lost_share == pytest.approx(0.66, abs=0.02)
    assert "the loop over `val_loader` (train.py:18), 4 times" in found.evidence
    assert found.lines[0].place == "train.py:18" and "inference_mode" in found.advice
    part = script.shares().costliest("validation")
    assert (part.times, part.seconds) == (4, pytest.approx(1.6))


@pytest.mark.parametrize("where, cause", [("saves", "checkpoints"), ("draws", "between_epochs")])
def test_checkpoints_and_what_is_left_between_epochs_are_named_with_their_lines(
    script, where, cause
):
    spend = {"saves": script.save, "draws": lambda ms: script.spend(ms, "draws")}[where]
    epochs(script, lambda: (spend(400), script.over_loader(40)))
    found = script.found()
    assert found.cause == cause
    *_, line, _, call, _ = PLACES[where]
    assert f"`{call}`" in found.evidence and f"(train.py:{line})" in found.evidence


def test_validation_over_a_list_of_tensors_is_time_between_epochs_with_its_line(script):
    found = epochs(script, lambda: script.spend(400, "validates")).found()
    assert found.cause == "between_epochs" and "`model()` (train.py:20)" in found.evidence


def test_a_loop_with_a_short_validation_gets_no_alarm(script):
    assert epochs(script, lambda: script.over_loader(40)).found() is None


def test_beside_a_long_validation_the_loops_own_losses_are_parts_of_the_whole_time(script):
    epochs(script, lambda: script.over_loader(400))
    evidence = Evidence("cpu", whole=script.shares())
    validates = script_rules.beside_training(evidence)
    waits = Finding("input", "item", 0.9)
    first, second = script_rules.of_the_whole([waits, validates], evidence)
    assert first is validates and second.lost_share == pytest.approx(0.9 * 0.34, abs=0.02)
    assert script_rules.of_the_whole([waits], evidence) == [waits]


def test_a_framework_s_loops_are_named_by_their_loaders(script):
    found = epochs(script, lambda: script.over_loader(400)).found(places=([], []))
    assert "the loop over `val_loader`, 4 times" in found.evidence and not found.lines
