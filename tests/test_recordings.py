"""Recorded runs: fit to ship, listed, replayed through the code that follows a live run."""

import asyncio
import getpass
import gzip
import json
import platform
import time

import pytest

import labkit as lk
from labkit.course import record as recording
from labkit.course.record import Wanted, wanted
from labkit.results.launch import launch
from labkit.results.library import NAME, play
from labkit.show.live import Follower, LiveView

pytestmark = pytest.mark.slow  # all read one run that is made here


@pytest.fixture(scope="module")
def shipped(finished, tmp_path_factory):
    """A record made here, in the layout that `record` writes."""
    folder = tmp_path_factory.mktemp("records")
    place = folder / recording.slug(finished.machine.name)
    recording.ship(finished.path, place / "tiny.jsonl.gz", name="tiny", title="a tiny run")
    return folder


class Clock:
    """Time that passes only when it is told to."""

    now = 0.0

    def __call__(self):
        return self.now


# -- fit to ship ---------------------------------------------------------------------------------


def test_a_shipped_record_has_the_numbers_of_the_run_and_nothing_personal(
    finished, shipped, tmp_path
):
    mine, theirs = finished.to_dict(), lk.recorded("tiny", folder=shipped).to_dict()
    for name in ("throughput", "utilization", "wait_ms", "step_ms", "steps", "loss", "pipeline"):
        assert mine[name] == theirs[name], name
    text = gzip.open(next(shipped.glob("*/*.gz")), "rt").read()
    assert "pid" not in text and str(finished.path) not in text and '"uuid"' not in text
    why = f"cannot open /home/{getpass.getuser()}/x/y.py on {platform.node()}"
    line = json.dumps({"event": "no_xray", "t_ns": 1, "why": why})
    log = (finished.path / "events.jsonl").read_text() + line + "\n"
    (tmp_path / "events.jsonl").write_text(log)
    recording.ship(tmp_path, tmp_path / "out" / "a.jsonl.gz", name="a", title="t")
    why = lk.load(tmp_path / "out" / "a.jsonl.gz").no_xray
    assert why.startswith("cannot open <path> on") and platform.node() not in why.split()


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
        Wanted("one", "a run", tiny.but(pin_memory=True)),
        Wanted("two", "needs a GPU", tiny.but(pin_memory=True), ("pin_memory",)),
        Wanted("three", "fails", tiny.but(device="cuda:99")),
        Wanted("four", "takes too long", tiny.but(prep_ms=2000, steps=100, seconds=60)),
    ]
    monkeypatch.setattr(recording, "wanted", lambda: listed)
    done = recording.record(tmp_path, only=["one", "two", "three"])
    assert "one" in done.made and "not here" in done.left_out["three"]
    if lk.machine().kind == "cpu":
        assert "CUDA" in done.left_out["two"]
    assert lk.recorded("one", folder=tmp_path).recorded
    monkeypatch.setattr(recording, "LONGEST_S", 1.0)
    again = recording.record(tmp_path, only=["one", "four"])
    assert again.kept == ["one"] and not again.made and "longer than" in again.left_out["four"]
    with pytest.raises(ValueError, match="available: one"):
        recording.record(tmp_path, only=["nothing"])


# -- listed --------------------------------------------------------------------------------------


def test_the_listing_says_what_on_what_and_when(finished, shipped, tmp_path):
    listed = lk.recorded(folder=shipped)
    assert [each.name for each in listed] == ["tiny"]
    for text in (repr(listed), listed._repr_html_()):
        assert "RECORDED on" in text and "a tiny run" in text
        assert finished.machine.name[:20] in text.replace("&#x27;", "'")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"not a gzip file")
    (tmp_path / "odd.jsonl.gz").write_bytes(gzip.compress(b'["no", "event"]\n' * 3))
    assert not lk.recorded(folder=tmp_path) and not lk.recorded(folder=tmp_path / "missing")


def test_unknown_names_and_paths_are_refused_with_what_there_is(shipped):
    with pytest.raises(ValueError, match="available: tiny"):
        lk.recorded("nothing", folder=shipped)
    for name in ("../tiny", "a/../tiny", "/etc/passwd", "tiny.jsonl"):
        with pytest.raises(ValueError, match="letters, digits"):
            lk.recorded(name, folder=shipped)


def test_the_packaged_records_load_quickly_and_are_small_enough():
    listed = lk.recorded()
    assert sum(each.path.stat().st_size for each in listed) < recording.SHIPPED_MIB * 2**20
    for each in listed:
        start = time.perf_counter()
        run = each.load()
        took = time.perf_counter() - start
        assert run.recorded and "RECORDED on" in repr(run)
        assert took < 1.0, each.name  # ten times what it takes: this machine may be busy


# -- replayed ------------------------------------------------------------------------------------


def test_a_live_run_and_a_replay_pass_the_same_assertions(tiny, shipped):
    for run in (launch(tiny), play(lk.recorded("tiny", folder=shipped).path, 5)):
        follower, view, seen = Follower(), LiveView(), []
        while run.running:
            follower.read(run)
            view.update(run)
            seen.append(run.steps)
            time.sleep(0.02)
        view.finish(run)
        follower.read(run)
        assert seen == sorted(seen)
        assert run.outcome == "finished" and run.steps == tiny.steps == len(follower.done)
        assert run.utilization is not None and view.frame and run.diagnose().bottleneck


def test_a_replay_grows_at_the_pace_it_was_made_and_can_be_stopped(shipped):
    path = lk.recorded("tiny", folder=shipped).path
    for stop in (False, True):
        clock = Clock()
        whole, played = lk.load(path), play(path, 2.0, clock)
        assert played.running and played.steps == 0
        half = whole.stamps[len(whole.stamps) // 2, 5]
        clock.now = (half + 0.3) / 2 + 1e-6
        assert played.steps == len(whole.stamps) // 2 + 1
        if stop:
            played.stop()
            assert played.outcome == "stopped" and played.error is None
        clock.now = 1e9
        assert played.steps == (len(whole.stamps) // 2 + 1 if stop else whole.steps)
        assert not played.running


def test_a_replay_is_never_mistaken_for_a_measurement(shipped):
    played = lk.replay(lk.recorded("tiny", folder=shipped), speed=100)
    name, view = played.machine.name, LiveView()
    assert repr(played).startswith(f"RECORDED on {name}")
    assert played.to_dict()["mark"] == f"RECORDED on {name}"
    for figure in (played.plot(), lk.beside(played)):
        assert any("RECORDED" in text.get_text() for text in figure.texts)
    view.finish(played)
    assert "RECORDED" in view.badge


def test_bad_speeds_and_records_without_steps_are_refused(shipped, tmp_path):
    path = lk.recorded("tiny", folder=shipped).path
    for speed in (0, -1, float("nan"), "fast"):
        with pytest.raises(ValueError, match="speed"):
            play(path, speed)
    lines = gzip.open(path, "rt").read().splitlines()
    rest = [line for line in lines if '"event":"step"' not in line]
    (tmp_path / "events.jsonl").write_text("\n".join(rest) + "\n")
    with pytest.raises(lk.RecordError, match="no steps"):
        play(tmp_path)


def test_the_replay_panel_plays_what_is_chosen(shipped):
    async def play_it():
        panel = lk.replay_panel("tiny", folder=shipped)
        panel.controls["speed"].widget.value = 5.0
        panel.start()
        await panel._task
        return panel

    panel = asyncio.run(play_it())
    assert panel.run.outcome == "finished"
    assert "RECORDED" in panel.verdict.value and panel.figure.value
    with pytest.raises(ValueError, match="available: tiny"):
        lk.replay_panel("nothing", folder=shipped)
