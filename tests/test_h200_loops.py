"""What was measured of ordinary loops on an H200, and what is advised now that it is known."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from played_gpu import load

import labkit as lk
from labkit.diagnosis.causes.compute import use_the_card
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.step_table import StepTable
from labkit.instruments import spare_card

HERE = Path(__file__).parent


def of_h200(name):
    return lk.load(HERE / f"h200_{name}.jsonl.gz")


def with_events(tmp_path, name, *more, change=lambda event: None):
    """Load one of the records with events added, and others changed."""
    with gzip.open(HERE / f"h200_{name}.jsonl.gz", "rt") as file:
        events = [json.loads(line) for line in file]
    for event in events:
        change(event)
    return load(tmp_path, [*events, *more])


def test_where_copies_take_most_of_the_time_fewer_bytes_come_before_pinned_memory():
    # 428 samples/s; int16 over the bus, converted on the card: 662; pinned: 345 and 350
    found = of_h200("pageable").diagnose().findings[0]
    assert found.cause == "copies" and found.lost_share > 0.9
    assert [each.key for each in found.remedies] == ["fewer_bytes_over"]


@pytest.mark.parametrize(
    "dtype, knobs, first",
    [
        ("uint8", {}, "pin_memory"),
        ("float32", {"pin_memory": True}, "not_waited_for"),
        ("float32", {"num_workers": 0}, "pin_memory"),
    ],
)
def test_and_not_where_they_are_few_already_or_no_thread_would_pin(tmp_path, dtype, knobs, first):
    def change(event):
        if event["event"] in ("spec", "job"):
            event["batch_dtype"] = dtype
            event["pipeline"] |= knobs

    found = with_events(tmp_path, "pageable", change=change).diagnose().findings[0]
    assert found.cause == "copies" and found.remedies[0].key == first


FOUR_EACH = {"event": "pass", "t_ns": 1, "n": 0, "began": 0, "ended": 1, "gathered": [[4, 94]]}


def test_batches_that_differ_in_size_are_seen_in_a_record(tmp_path):
    def longer_each_time(event):
        if event["event"] == "step":
            event["bytes"] += 512 * event["i"]

    alike = of_h200("micro_batches")
    other = with_events(tmp_path, "micro_batches", change=longer_each_time)
    assert StepTable(alike).evidence().batch.sizes == 1
    assert StepTable(other).evidence().batch.sizes > 100


@pytest.mark.parametrize(
    "passes, found",
    [
        ([[[1, 12]]], 1),
        ([[[4, 9]], [], [[4, 9], [2, 1]]], 4),  # a validation in between, a pass that ends early
        ([[[2, 10], [1, 10]]], None),  # as of a loader beside that is made anew
    ],
)
def test_batches_for_an_update_are_those_that_nearly_all_updates_have(passes, found, tmp_path):
    ended = [FOUR_EACH | {"n": n, "gathered": each} for n, each in enumerate(passes, 1)]
    assert with_events(tmp_path, "micro_batches", *ended).batches_an_update == found


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
def test_updates_are_counted_by_the_batches_handed_on_before_each(in_turn, ahead):
    with lk.watch(torch.utils.data.DataLoader(range(64)), live=False) as watched:
        for _ in range(2):
            optimizers = [object(), object()]  # anew, as in folds
            batches = iter(watched)
            for step in range(64 // ahead):
                for _ in range(ahead):  # a trainer fetches what it gathers beforehand
                    next(batches)
                for each in optimizers[step % 2 :][:1] if in_turn else optimizers:
                    watched._recorder.trained_by(each)
            assert next(batches, None) is None
    assert watched.run.batches_an_update == ahead
    assert all(each["trains"] for each in watched.run.passes_ended)


@pytest.mark.parametrize("has_model", [True, False])
def test_a_model_left_on_the_cpu_beside_a_card_is_the_first_thing_said(tmp_path, has_model):
    def on_the_cpu(event):
        if event["event"] == "lines" and not has_model:
            for place in event["places"].values():
                place[0] = "python"
        if event["event"] == "machine":
            event |= {"device": "cpu", "kind": "cpu", "name": "Xeon"}
        elif event["event"] == "telemetry":
            event |= dict.fromkeys(("gpm", "power_w", "energy_j"))

    spare = {"event": "spare_card", "t_ns": 1, "name": "NVIDIA H200"}
    run = with_events(tmp_path, "micro_batches", spare, change=on_the_cpu)
    verdict = run.diagnose()
    said = "The model is on the CPU, and does not use the NVIDIA H200"
    assert (said in verdict.three_lines[0]) == has_model
    assert any(said in note for note in verdict.to_dict()["notes"]) == has_model


def test_a_card_is_advised_by_its_name_where_there_is_one():
    remedy = use_the_card.for_run(Evidence("cpu", spare_card="NVIDIA H200"))
    assert "Train on the NVIDIA H200" in remedy.text and "model.to(device)" in remedy.code
    assert use_the_card.for_run(Evidence("cpu")) is None


@pytest.fixture
def card(monkeypatch):
    """A card that a driver tells of, and nothing hides."""
    driver = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=int,
        nvmlDeviceGetName=lambda handle: "a card",
    )
    monkeypatch.setattr(spare_card, "pynvml", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return driver


def test_without_cuda_in_torch_or_a_driver_there_is_no_spare_card(card):
    assert spare_card.spare_card(None) is None
    del card.nvmlInit
    assert spare_card.spare_card("13.0") is None


@pytest.mark.parametrize(
    "visible, found", [("0", True), ("GPU-1,0", True), ("", False), ("-1", False)]
)
def test_a_card_that_is_hidden_is_none(visible, found, card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert spare_card.spare_card("13.0") == ("a card" if found else None)
