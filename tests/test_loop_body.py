"""What a loop's body does besides training: loops of single operators, graphs kept, switches."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from test_lines import grown_in, sampled

from labkit.diagnosis import judge, sampled_stacks
from labkit.diagnosis.causes import body, machine
from labkit.diagnosis.evidence import Batch, Evidence
from labkit.diagnosis.watched_loop import Loop
from labkit.instruments.places import Places
from labkit.watching.switches import switches_on

ROWS = torch.rand(64, 12, 4)
KEPT = {}
HEALTHY = Evidence("cpu", compute_share=0.95, wait_share=0.05)


def forward(x, note):
    for t in range(x.size(1) - 1):
        note()
        x[:, t].sum()


def per_sample(x, note):
    for row in x:
        note()
        row.sum()


def update(weights, note):
    for weight in weights.values():
        weight.mul_(0.9)
        note()


def micro_batches(x, note):
    for part in range(4):
        note()
        x[part].sum()


def layers(net, note):
    for layer in net:
        note()
        layer(ROWS)


def other_loader(batches, note):
    for batch in batches:
        note()
        batch.sum()


@pytest.mark.parametrize(
    "body, given, inner",
    [
        (forward, ROWS, "forward"),
        (per_sample, ROWS, "per_sample"),
        (update, {"weight": torch.ones(2)}, "update"),
        (micro_batches, ROWS, None),
        (layers, torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)]), None),
        (other_loader, torch.utils.data.DataLoader(ROWS), None),
    ],
)
def test_a_loop_within_the_step_is_one_over_samples_time_steps_or_weights(body, given, inner):
    def loop(note):
        for _batch in range(2):
            body(given, note)

    places = Places()
    places.loop = loop.__code__
    places.batch_loop = loop.__code__.co_firstlineno + 1
    loop(lambda: places.number_of(sys._getframe(1)))
    (found,) = {place.inner for place in places.fresh.values()}
    assert (found and found.function) == inner


def test_a_loop_in_the_loops_own_body_is_told_from_the_one_over_batches():
    def loop(note):
        for batch in [ROWS] * 20:
            note()
            for row in batch:
                note()
                row.sum()

    places = Places()
    places.loop = loop.__code__
    places.batch_loop = loop.__code__.co_firstlineno + 1
    loop(lambda: places.number_of(sys._getframe(1)))
    assert [place.inner and place.inner.text for place in places.fresh.values()] == [
        None,
        "for row in batch:",
    ]


def place(kind, line, inner=None, call="f()"):
    return [kind, "", "/home/me/train.py", line, "step", call, None, None, inner]


def evidence_of(tmp_path, monkeypatch, *places, **more):
    monkeypatch.setattr(sampled_stacks, "FEWEST", 1)
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    lines = sampled(folder, *places, pid=0)
    nothing = {"copied": 0.0, "drift": None, "passes": 1}
    spent = np.ones(200)
    loop = Loop(lines, spent, **nothing)
    return dataclasses.replace(HEALTHY, loop=loop, body=lines.body, **more)


INNER = ["/home/me/train.py", 11, "step", 50, "for t in range(x.size(1)):"]


def test_operators_one_by_one_are_named_with_their_loop(tmp_path, monkeypatch):
    within = [place("forward", 12, INNER, "self.cell()"), place("python", 13, INNER)]
    evidence = evidence_of(tmp_path, monkeypatch, *within, place("backward", 20))
    first = judge.by_cost(evidence)[0]
    assert (first.name, first.cause, first.lines[0].line) == ("launch", "one_by_one", 12)
    assert "`for t in range(x.size(1)):` in step() (train.py:11)" in first.evidence
    assert "nn.LSTM" in first.remedies[0].text
    over_weights = [*INNER[:4], "for p in net.parameters():"]
    evidence = evidence_of(tmp_path, monkeypatch, place("torch", 12, over_weights))
    assert "torch._foreach_add_" in judge.by_cost(evidence)[0].remedies[0].code


def test_a_loop_of_plain_python_is_no_loop_of_operators(tmp_path, monkeypatch):
    evidence = evidence_of(tmp_path, monkeypatch, place("python", 12, INNER))
    assert body.one_by_one(evidence) is None


def test_the_largest_line_besides_the_model_is_the_finding_on_a_cpu(tmp_path, monkeypatch):
    places = place("torch", 14, call="torch.linalg.svd()"), place("forward", 10)
    evidence = evidence_of(tmp_path, monkeypatch, *places, place("backward", 16))
    first = judge.by_cost(evidence)[0]
    assert (first.name, first.cause) == ("compute", "line")
    assert "`torch.linalg.svd()` in step() (train.py:14)" in first.evidence
    alike = evidence_of(tmp_path, monkeypatch, *[place("forward", line) for line in range(9)])
    assert body.costly_line(alike) is None
    on_gpu = dataclasses.replace(evidence, kind="gpu")
    assert body.costly_line(on_gpu) is None


def test_graphs_kept_in_a_list_of_a_dict_in_a_sum_and_in_a_hidden_state_are_named():
    def loop(look):
        logs = {"loss": [], "lr": 0.1}
        rnn = torch.nn.GRU(4, 4)
        hidden = cut = torch.zeros(1, 2, 4)
        total = running = 0.0
        for step in range(60):
            out, hidden = rnn(torch.ones(3, 2, 4), hidden)
            out, cut = rnn(torch.ones(3, 2, 4), cut)
            cut = cut.detach()
            loss = out.mean()
            logs["loss"].append(loss)
            total += loss
            running += loss.item()
            KEPT.setdefault("all", []).append(loss)
            if step % 10 == 9:
                look(step)

    found = grown_in(loop)
    assert {*found} == {'logs["loss"]', "hidden", "total", 'KEPT["all"]'}
    lines = {name: each["line"] - loop.__code__.co_firstlineno for name, each in found.items()}
    assert lines == {"hidden": 6, 'logs["loss"]': 10, "total": 11, 'KEPT["all"]': 13}
    assert all(each["graph"] for each in found.values())


def test_a_debugging_aid_that_is_left_on_is_said_first_and_what_may_be_wanted_last():
    waits = dataclasses.replace(HEALTHY, wait_share=0.5, compute_share=0.5)
    found = judge.by_cost(dataclasses.replace(waits, switches=("anomaly mode",)))
    assert [each.cause for each in found] == ["switch", "waiting_for_data"]
    assert "Delete torch.autograd.set_detect_anomaly(True)." in found[0].remedies[0].text
    found = judge.by_cost(dataclasses.replace(waits, switches=("deterministic mode",)))
    assert [each.cause for each in found] == ["waiting_for_data", "switch"]
    searches = dataclasses.replace(HEALTHY, switches=("cudnn.benchmark",), batch=Batch(sizes=2))
    assert machine.set_on_purpose(searches) is None
    changing = dataclasses.replace(searches, batch=Batch(sizes=40))
    assert machine.set_on_purpose(changing) is not None


def test_switches_are_read_in_the_process(monkeypatch):
    assert switches_on() == set()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    sys.setprofile(lambda *_: None)
    try:
        with torch.autograd.set_detect_anomaly(True), torch.profiler.profile():
            on = switches_on()
    finally:
        sys.setprofile(None)
    assert on == {
        "CUDA_LAUNCH_BLOCKING", "a Python profiler", "anomaly mode", "torch's profiler",
    }  # fmt: skip
