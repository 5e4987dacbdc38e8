"""What a loop's body does besides training: a costly line, graphs kept, switches."""

import dataclasses
import sys

import torch
from test_lines import grown_in

from labkit.diagnosis import judge
from labkit.diagnosis.evidence import Evidence
from labkit.watching.switches import switches_on

KEPT = {}
HEALTHY = Evidence("cpu", compute_share=0.95, wait_share=0.05)


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


def test_a_debugging_aid_that_is_left_on_is_said_first():
    waits = dataclasses.replace(HEALTHY, wait_share=0.5, compute_share=0.5)
    found = judge.by_cost(dataclasses.replace(waits, switches=("anomaly mode",)))
    assert [each.cause for each in found] == ["switch", "waiting_for_data"]
    assert "Delete torch.autograd.set_detect_anomaly(True)." in found[0].remedies[0].text


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
