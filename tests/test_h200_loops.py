"""What was measured of ordinary loops on an H200, and what is advised now that it is known."""

import gzip
import json
from pathlib import Path

import pytest
from played_gpu import load

import labkit as lk

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


def test_and_not_where_they_are_few_already(tmp_path):
    def change(event):
        if event["event"] in ("spec", "job"):
            event["batch_dtype"] = "uint8"

    found = with_events(tmp_path, "pageable", change=change).diagnose().findings[0]
    assert found.cause == "copies" and found.remedies[0].key == "pin_memory"


@pytest.mark.parametrize("has_model", [True, False])
def test_a_model_left_on_the_cpu_beside_a_card_is_the_first_thing_said(tmp_path, has_model):
    def on_the_cpu(event):
        if event["event"] == "job" and has_model:
            event["weights_dtype"] = "float32"
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
