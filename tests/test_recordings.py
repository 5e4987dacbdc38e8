"""Recorded runs: fit to ship, and listed."""

import getpass
import gzip
import json
import platform
import re

import pytest

import labkit as lk
from labkit.course import recordings as recording
from labkit.course.recordings import Wanted, wanted
from labkit.results.library import NAME

pytestmark = pytest.mark.slow  # all read one run that is made here


@pytest.fixture(scope="module")
def shipped(finished, tmp_path_factory):
    """A record made here, in the layout that `record` writes."""
    folder = tmp_path_factory.mktemp("records")
    place = folder / recording.slug(finished.machine.name)
    recording.ship(finished.path, place / "tiny.jsonl.gz", name="tiny", title="a tiny run")
    return folder


@pytest.fixture
def path(shipped):
    return next(shipped.glob("*/*.gz"))


def test_a_shipped_record_has_the_numbers_of_the_run_and_nothing_personal(finished, path, tmp_path):
    mine = finished.to_dict()
    theirs = lk.load(path).to_dict()
    for name in ("throughput", "utilization", "wait_ms", "step_ms", "steps", "loss", "pipeline"):
        assert mine[name] == theirs[name], name
    text = gzip.open(path, "rt").read()
    pids = {str(finished.event("hello")["pid"]), *re.findall(r'"pid":(\d{3,})', text)}
    assert not [pid for pid in pids if f'"pid":{pid}' in text]
    assert str(finished.path) not in text and '"uuid"' not in text
    why = f"cannot open /home/{getpass.getuser()}/x/y.py on {platform.node()}"
    line = json.dumps({"event": "no_xray", "t_ns": 1, "why": why})
    log = (finished.path / "events.jsonl").read_text() + line + "\n"
    (tmp_path / "events.jsonl").write_text(log)
    recording.ship(tmp_path, tmp_path / "out" / "a.jsonl.gz", name="a", title="t")
    why = lk.load(tmp_path / "out" / "a.jsonl.gz").no_xray
    assert why.startswith("cannot open y.py on") and platform.node() not in why.split()


def test_a_long_record_keeps_a_whole_stretch_and_says_what_it_was(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "MOST_STEPS", 12)
    recording.ship(finished.path, tmp_path / "a.jsonl.gz", name="a", title="t")
    run = lk.load(tmp_path / "a.jsonl.gz")
    assert run.steps == 12 and run.event("thinned")["steps"] == finished.steps
    assert (run.stamps == finished.stamps[:12]).all()


def test_record_writes_what_it_can_and_says_what_it_could_not(tmp_path, tiny, monkeypatch):
    every = wanted("cpu") + wanted("gpu")
    assert all(NAME.fullmatch(each.name) and each.title for each in every)
    listed = [
        Wanted("one", "needs a GPU", tiny.but(pin_memory=True), ("pin_memory",)),
        Wanted("two", "fails", tiny.but(device="cuda:99")),
        Wanted("four", "there already", tiny),
    ]
    monkeypatch.setattr(recording, "wanted", lambda: listed)
    there = tmp_path / recording.slug(lk.machine().name)
    there.mkdir()
    (there / "four.jsonl.gz").touch()
    with pytest.raises(ValueError, match="available: one, two, four"):
        recording.record(tmp_path, only=["nothing"])
    done = recording.record(tmp_path, only=["one", "two", "four"])
    assert done.kept == ["four"] and "not here" in done.left_out["two"]
    assert "left out:  two" in repr(done)


def test_the_listing_says_what_on_what_and_when_and_refuses_other_names(
    finished, shipped, tmp_path
):
    listed = lk.recorded(folder=shipped)
    assert [each.name for each in listed] == ["tiny"]
    assert "1 run RECORDED on" in repr(listed) and "tiny" in repr(listed)
    assert list(listed.rows["title"]) == ["a tiny run"]
    (tmp_path / "bad.jsonl.gz").write_bytes(b"not a gzip file")
    assert not lk.recorded(folder=tmp_path) and not lk.recorded(folder=tmp_path / "missing")
    with pytest.raises(ValueError, match="available: tiny"):
        lk.recorded("nothing", folder=shipped)
    for name in ("../tiny", "/etc/passwd", "tiny.jsonl"):
        with pytest.raises(ValueError, match="letters, digits"):
            lk.recorded(name, folder=shipped)


def test_a_name_that_a_machine_lacks_is_answered_with_those_that_it_has():
    with pytest.raises(ValueError, match="NVIDIA-H200/nothing'; available: .*workers-4") as raised:
        lk.recorded("NVIDIA-H200/nothing")
    assert "compile-default" not in str(raised.value)  # another machine's
    with pytest.raises(ValueError, match="available: .*NVIDIA-H200/"):
        lk.recorded("H20/nothing")
