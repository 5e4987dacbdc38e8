"""What was measured of ordinary loops on an H200, and what is advised now that it is known."""

import dataclasses
import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest

import labkit as lk
from labkit.bench import spare_card
from labkit.diagnosis.device_remedies import LARGER_AND_FEWER, PINNED, USE_THE_CARD
from labkit.diagnosis.evidence import Batch, CardEvidence, Evidence
from labkit.diagnosis.gather import known_of
from labkit.diagnosis.loader_code import LoopCode

HERE = Path(__file__).parent
MICRO = Evidence(
    "gpu",
    batches_an_update=4.0,
    card=CardEvidence(held_share=0.1),
    knobs={"batch_size": 8},
    code=LoopCode("loader"),
)


def of_h200(name):
    return lk.load(HERE / f"h200_{name}.jsonl.gz")


def with_events(tmp_path, name, *more, change=None):
    """Load one of the records with events added, and others changed."""
    lines = gzip.open(HERE / f"h200_{name}.jsonl.gz", "rt").read().splitlines()
    events = [json.loads(line) for line in lines]
    for event in events if change else ():
        change(event)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(event)}\n" for event in (*events, *more)))
    return lk.load(path)


def test_where_copies_take_most_of_the_time_fewer_bytes_come_before_pinned_memory():
    # 428 samples/s; int16 over the bus, converted on the card: 662; pinned: 345 and 350
    found = of_h200("pageable").diagnose().findings[0]
    assert found.cause == "copies" and found.lost_share > 0.9
    assert [each.key for each in found.remedies] == ["fewer_bytes_over"]
    few = Evidence("gpu", batch=Batch("uint8"), copy_share=0.34)
    assert PINNED.expects(few) is None  # 1.58x in the course's own runs
    for share in (0.6, 0.9):
        value, low, high = PINNED.expects(dataclasses.replace(few, copy_share=share))
        assert low < 1 < value < high == pytest.approx(1 / share)


def test_an_update_from_small_batches_is_made_of_larger_ones_where_the_card_has_room():
    # compiled 428 samples/s, as it was 401
    run = of_h200("micro_batches")
    assert run.batches_an_update == pytest.approx(4, abs=0.02)
    found = run.diagnose().findings[0]
    assert found.remedies[0].changes == {"batch_size": 32}
    assert "# an update after each batch, not after 4" in found.code
    assert "batch_size=32" in found.code


@pytest.mark.parametrize(
    "changed, settings",
    [
        ({}, {"batch_size": 32}),
        ({"code": None}, {"batch_size": 32, "accumulation_steps": 1}),
        ({"trainer": True}, {"batch_size": 32, "accumulation_steps": 1}),
        ({"card": CardEvidence(held_share=0.3)}, {"batch_size": 16}),
        ({"card": CardEvidence(held_share=0.5)}, None),
        ({"card": CardEvidence()}, None),
        ({"batches_an_update": 1.0}, None),
        ({"batches_an_update": None}, None),
        ({"knobs": {}}, None),
    ],
)
def test_how_much_larger_a_batch_may_be_is_a_question_of_the_cards_memory(changed, settings):
    remedy = LARGER_AND_FEWER.for_run(dataclasses.replace(MICRO, **changed))
    assert (remedy and remedy.changes) == settings


def test_batches_that_differ_in_size_are_seen_in_a_record(tmp_path):
    def longer_each_time(event):
        if event["event"] == "step":
            event["bytes"] += 512 * event["i"]

    alike = of_h200("micro_batches")
    other = with_events(tmp_path, "micro_batches", change=longer_each_time)
    nothing = (np.zeros(1), np.zeros(1), 0.0)
    assert known_of(alike, *nothing).batch.sizes == 1
    assert known_of(other, *nothing).batch.sizes > 100


def test_batches_for_an_update_are_those_of_passes_that_train(tmp_path):
    ended = {"event": "pass", "t_ns": 1, "began": 0, "ended": 1}
    again = {"event": "epoch", "t_ns": 1, "n": 1, "step": 381, "began": 0}
    validation = ended | {"n": 1, "trains": False, "updates": 0}
    run = with_events(tmp_path, "micro_batches", again, validation)
    assert run.batches_an_update == pytest.approx(4, abs=0.02)
    live = with_events(tmp_path, "micro_batches", again)  # its second pass goes on
    assert live.batches_an_update == pytest.approx(4, abs=0.02)


@pytest.mark.parametrize("has_model", [True, False])
def test_a_model_left_on_the_cpu_beside_a_card_is_the_first_thing_said(tmp_path, has_model):
    def on_the_cpu(event):
        if event["event"] == "machine":
            event |= {"device": "cpu", "kind": "cpu", "name": "Xeon"}
        elif event["event"] == "spec" and not has_model:
            event["watched"]["code"]["model"] = None
        elif event["event"] == "telemetry":
            event |= dict.fromkeys(("gpm", "power_w", "energy_j"))
        elif event["event"] == "step":
            event.pop("busy", None)
            event.pop("copy", None)

    spare = {"event": "spare_card", "t_ns": 1, "name": "NVIDIA H200"}
    run = with_events(tmp_path, "micro_batches", spare, change=on_the_cpu)
    verdict = run.diagnose()
    said = "The model is on the CPU, and the NVIDIA H200 is not used"
    assert (said in verdict.three_lines[0]) == has_model
    assert any(said in note for note in verdict.to_dict()["notes"]) == has_model


def test_a_card_is_advised_where_a_step_is_longer_than_its_launches():
    loop = Evidence(
        "cpu", spare_card="NVIDIA H200", compute_us=80e3, code=LoopCode("loader", model="net")
    )
    remedy = USE_THE_CARD.for_run(loop)
    assert "Train on the NVIDIA H200" in remedy.text
    assert "net = net.to(device)" in remedy.code
    short = dataclasses.replace(loop, compute_us=1e3)
    none = dataclasses.replace(loop, spare_card=None)
    assert USE_THE_CARD.for_run(short) is USE_THE_CARD.for_run(none) is None
    by_trainer = USE_THE_CARD.for_run(dataclasses.replace(loop, trainer=True))
    assert "use_cpu" in by_trainer.text and not by_trainer.code


@pytest.mark.parametrize(
    "cuda, capability, driver, hidden, found",
    [
        ("13.0", (9, 0), 13000, None, True),
        ("13.0", (9, 0), 13000, "0", True),
        ("13.0", (9, 0), 13000, "", False),
        ("13.0", (9, 0), 13000, "-1", False),
        ("13.0", (9, 0), 12080, None, False),  # its driver is too old for this torch
        ("13.0", (7, 0), 13000, None, False),  # no kernels for Volta
        ("12.6", (7, 0), 13000, None, True),
        ("12.6", (12, 0), 13000, None, False),
        ("12.8", (12, 0), 13000, None, True),
        (None, (9, 0), 13000, None, False),
    ],
)
def test_a_spare_card_is_one_that_this_torch_can_use(
    cuda, capability, driver, hidden, found, monkeypatch
):
    driver_says = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda card: "a card",
        nvmlDeviceGetCudaComputeCapability=lambda card: list(capability),
        nvmlSystemGetCudaDriverVersion=lambda: driver,
    )
    monkeypatch.setattr(spare_card, "pynvml", driver_says)
    monkeypatch.setattr(spare_card.platform, "system", lambda: "Linux")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert spare_card.spare_card(cuda) == ("a card" if found else None)


def test_without_a_driver_there_is_no_spare_card_and_a_mac_has_its_own(monkeypatch):
    def none():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(spare_card.pynvml, "nvmlInit", none)
    assert spare_card.spare_card("13.0") is None
    monkeypatch.setattr(spare_card.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(spare_card.platform, "machine", lambda: "arm64")
    assert spare_card.spare_card(None) == "Apple's GPU"
    monkeypatch.setattr(spare_card.platform, "machine", lambda: "x86_64")
    assert spare_card.spare_card(None) is None
