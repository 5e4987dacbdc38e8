"""Recorded runs: fit to ship, and listed."""

import getpass
import gzip
import json
import platform

import pytest
import recordings as recording
from recordings import wanted

import labkit as lk

pytestmark = pytest.mark.slow  # all read one run that is made here


def test_a_shipped_record_has_the_numbers_of_the_run_and_nothing_personal(finished, tmp_path):
    why = f"cannot open /home/{getpass.getuser()}/x/y.py on {platform.node()}"
    line = json.dumps({"event": "no_xray", "t_ns": 1, "why": why})
    log = (finished.path / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text(f"{log}{line}\n")
    path = tmp_path / "shipped" / "a.jsonl.gz"
    recording.ship(tmp_path, path, name="a", title="t")
    run = lk.load(path)
    for name in ("throughput", "utilization", "wait_ms", "step_ms", "steps", "loss", "pipeline"):
        assert run.to_dict()[name] == finished.to_dict()[name], name
    text = gzip.open(path, "rt").read()
    assert '"uuid"' not in text and str(finished.path) not in text
    assert run.event("no_xray")["why"].startswith("cannot open y.py on")
    assert platform.node() not in run.event("no_xray")["why"].split()


def test_the_listing_says_what_on_what_and_passes_over_what_is_no_record(
    finished, tmp_path, monkeypatch
):
    assert all(each.name and each.title for each in wanted("cpu") + wanted("gpu"))
    record = tmp_path / recording.slug(finished.machine.name) / "tiny.jsonl.gz"
    recording.ship(finished.path, record, name="tiny", title="a tiny run")
    record.with_name("bad.jsonl.gz").write_bytes(b"not a gzip file")
    monkeypatch.setattr("labkit.api.RECORDS", tmp_path)
    listed = lk.recorded()
    assert list(listed["name"]) == ["tiny"] and list(listed["title"]) == ["a tiny run"]
    monkeypatch.setattr("labkit.api.RECORDS", tmp_path / "missing")
    assert lk.recorded().empty


def test_a_name_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(ValueError, match="NVIDIA-H200/nothing'; available: .*workers-4"):
        lk.recorded("NVIDIA-H200/nothing")
    with pytest.raises(ValueError, match="available: .*NVIDIA-H200/"):
        lk.recorded("H20/nothing")
