"""Recorded runs: fit to ship, listed, replayed through the code that follows a live run."""

import getpass
import gzip
import json
import platform
import time

import pytest

import labkit as lk
from labkit.course import record as shipping
from labkit.course import wanted as course_records
from labkit.results import library
from labkit.results.launch import launch
from labkit.results.library import play as replay
from labkit.show.follow import Follower
from labkit.show.live import LiveView
from labkit.show.panels import replay_panel


@pytest.fixture(scope="module")
def shipped(finished, tmp_path_factory):
    """A record made here, in the layout that `record` writes."""
    folder = tmp_path_factory.mktemp("records")
    place = folder / shipping.slug(finished.machine.name)
    shipping.ship(finished.path, place / "tiny.jsonl.gz", name="tiny", title="a tiny run")
    return folder


class Clock:
    """Time that passes only when it is told to."""

    now = 0.0

    def __call__(self):
        return self.now


# -- fit to ship ------------------------------------------------------------------------------


def test_a_shipped_record_has_the_numbers_of_the_run(finished, shipped):
    run = lk.recorded("tiny", folder=shipped)
    mine, theirs = finished.to_dict(), run.to_dict()
    for name in ("throughput", "utilization", "wait_ms", "step_ms", "steps", "loss", "pipeline"):
        assert mine[name] == theirs[name], name


def test_nothing_personal_is_in_it(finished, shipped, tmp_path):
    text = gzip.open(next(shipped.glob("*/*.gz")), "rt").read()
    assert "pid" not in text and str(finished.path) not in text and '"uuid"' not in text
    line = json.dumps(
        {"event": "no_xray", "t_ns": 1,
         "why": f"cannot open /home/{getpass.getuser()}/x/y.py on {platform.node()}"}
    )  # fmt: skip
    (tmp_path / "events.jsonl").write_text(
        (finished.path / "events.jsonl").read_text() + line + "\n"
    )
    shipping.ship(tmp_path, tmp_path / "out" / "a.jsonl.gz", name="a", title="t")
    why = lk.load(tmp_path / "out" / "a.jsonl.gz").no_xray
    assert why.startswith("cannot open <path> on")
    assert platform.node() not in why.split()


def test_a_long_record_keeps_a_whole_stretch_and_says_what_it_was(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "MOST_STEPS", 12)
    shipping.ship(finished.path, tmp_path / "a.jsonl.gz", name="a", title="t")
    run = lk.load(tmp_path / "a.jsonl.gz")
    assert run.steps == 12 and run.event("thinned")["steps"] == finished.steps
    assert (run.stamps == finished.stamps[:12]).all()


# -- listed -----------------------------------------------------------------------------------


def test_the_listing_says_what_on_what_and_when(finished, shipped):
    listed = lk.recorded(folder=shipped)
    assert [each.name for each in listed] == ["tiny"]
    for text in (repr(listed), listed._repr_html_()):
        assert "RECORDED on" in text and "a tiny run" in text
        assert finished.machine.name[:20] in text.replace("&#x27;", "'")


def test_unknown_names_and_paths_are_refused_with_what_there_is(shipped):
    with pytest.raises(ValueError, match="available: tiny"):
        lk.recorded("nothing", folder=shipped)
    for name in ("../tiny", "a/../tiny", "/etc/passwd", "tiny.jsonl"):
        with pytest.raises(ValueError, match="letters, digits"):
            lk.recorded(name, folder=shipped)


def test_a_file_that_is_no_record_is_not_listed(shipped, tmp_path):
    (tmp_path / "bad.jsonl.gz").write_bytes(b"not a gzip file")
    (tmp_path / "odd.jsonl.gz").write_bytes(gzip.compress(b'["no", "event"]\n' * 3))
    assert not lk.recorded(folder=tmp_path)
    assert not lk.recorded(folder=tmp_path / "missing")


def test_the_packaged_records_load_quickly_and_are_small_enough():
    listed = lk.recorded()
    assert sum(each.path.stat().st_size for each in listed) < 4 * 2**20
    for each in listed:
        start = time.perf_counter()
        run = each.load()
        took = time.perf_counter() - start
        assert run.recorded and "RECORDED on" in repr(run)
        assert took < 1.0, each.name  # ten times what it takes: this machine may be busy


# -- replayed ---------------------------------------------------------------------------------


def live_assertions(run, steps):
    """What holds of a run followed to its end, live or replayed."""
    follower, seen = Follower(), []
    view = LiveView()
    while run.running:
        follower.read(run)
        view.update(run)
        seen.append(run.steps)
        yield
    view.finish(run)
    follower.read(run)
    assert seen == sorted(seen)
    assert run.outcome == "finished" and run.steps == steps == len(follower.done)
    assert run.utilization is not None and view.frame
    assert run.diagnose().bottleneck


def test_a_live_run_and_a_replay_pass_the_same_assertions(tiny, shipped):
    for run in (launch(tiny), replay(lk.recorded("tiny", folder=shipped).path, 5)):
        for _ in live_assertions(run, tiny.steps):
            time.sleep(0.02)


def test_a_replay_grows_at_the_pace_it_was_made(shipped):
    clock = Clock()
    path = lk.recorded("tiny", folder=shipped).path
    whole, played = lk.load(path), replay(path, 2.0, clock)
    assert played.running and played.steps == 0
    half = whole.stamps[len(whole.stamps) // 2, 5]
    clock.now = (half + 0.3) / 2 + 1e-6
    assert played.steps == len(whole.stamps) // 2 + 1
    clock.now = 1e9
    assert played.steps == whole.steps and not played.running


def test_a_stopped_replay_says_stopped_and_keeps_what_was_played(shipped):
    clock = Clock()
    played = replay(lk.recorded("tiny", folder=shipped).path, 1.0, clock)
    clock.now = 0.31
    played.refresh()
    played.stop()
    assert played.outcome == "stopped" and played.error is None


def test_a_replay_is_never_mistaken_for_a_measurement(shipped):
    played = lk.replay(lk.recorded("tiny", folder=shipped), speed=100)
    name = played.machine.name
    assert repr(played).startswith(f"RECORDED on {name}")
    assert played.to_dict()["mark"] == f"RECORDED on {name}"
    figure = played.plot()
    assert any("RECORDED" in text.get_text() for text in figure.texts)
    view = LiveView()
    view.finish(played)
    assert "RECORDED" in view.badge
    assert any("RECORDED" in t.get_text() for t in lk.beside(played).texts)


def test_bad_speeds_and_records_without_steps_are_refused(shipped, tmp_path):
    path = lk.recorded("tiny", folder=shipped).path
    for speed in (0, -1, float("nan"), "fast"):
        with pytest.raises(ValueError, match="speed"):
            replay(path, speed)
    lines = gzip.open(path, "rt").read().splitlines()
    (tmp_path / "events.jsonl").write_text(
        "\n".join(line for line in lines if '"event":"step"' not in line) + "\n"
    )
    with pytest.raises(lk.RecordError, match="no steps"):
        replay(tmp_path)


def test_the_replay_panel_plays_what_is_chosen(shipped):
    import asyncio

    async def play():
        panel = replay_panel("tiny", folder=shipped)
        panel.controls["speed"].widget.value = 5.0
        panel.start()
        await panel._task
        return panel

    panel = asyncio.run(play())
    assert panel.run.outcome == "finished"
    assert "RECORDED" in panel.verdict.value and panel.figure.value
    with pytest.raises(ValueError, match="available: tiny"):
        replay_panel("nothing", folder=shipped)


# -- made -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_record_of_the_course_has_a_name_and_a_title(kind):
    listed = course_records.wanted(kind)
    names = [each.name for each in listed]
    assert len(names) == len(set(names))
    assert all(library.NAME.fullmatch(name) for name in names)
    assert all(each.title for each in listed)


def test_records_of_a_gpu_show_there_what_their_titles_say():
    cpu, gpu = ({w.name: w.spec for w in course_records.wanted(kind)} for kind in ("cpu", "gpu"))
    assert set(cpu) <= set(gpu)
    # A batch is worth a copy, a stall is filled by workers that are faster than the card, formats
    # meet more than launches, and a compiler meets nothing else
    sides = [gpu[name] for name in ("pageable", "pinned", "prefetched")]
    assert min(side.batch_size * 3 * side.image_px**2 for side in sides) > 10e6
    assert len({side.but(**dict.fromkeys(CHANGED, False)) for side in sides}) == 1
    assert gpu["stall-8"].io_ms == 0 and cpu["stall-8"].io_ms is None
    assert gpu["precision-bf16"].width * gpu["precision-bf16"].batch_size > 100_000
    assert gpu["compile-off"].depth == 16 and cpu["compile-off"].depth is None


CHANGED = ("pin_memory", "non_blocking", "prefetch_to_device")


def test_record_writes_what_it_can_and_says_what_it_could_not(tmp_path, tiny, monkeypatch):
    made = [
        course_records.Wanted("one", "a run", tiny),
        course_records.Wanted("two", "needs a GPU", tiny.but(pin_memory=True), ("pin_memory",)),
        course_records.Wanted("three", "fails", tiny.but(device="cuda:99")),
    ]
    monkeypatch.setattr(shipping, "wanted", lambda: made)
    done = shipping.record(tmp_path)
    assert "one" in done.made and "not here" in done.left_out["three"]
    if lk.machine().kind == "cpu":
        assert "CUDA" in done.left_out["two"]
    assert lk.recorded("one", folder=tmp_path).recorded
    again = shipping.record(tmp_path, only=["one"])
    assert again.kept == ["one"] and not again.made
    with pytest.raises(ValueError, match="available: one"):
        shipping.record(tmp_path, only=["nothing"])


def test_a_run_that_takes_too_long_is_left_out(tmp_path, tiny, monkeypatch):
    slow = course_records.Wanted("slow", "a run", tiny.but(prep_ms=2000, steps=100, seconds=60))
    monkeypatch.setattr(shipping, "wanted", lambda: [slow])
    monkeypatch.setattr(shipping, "LONGEST_S", 1.0)
    assert "longer than" in shipping.record(tmp_path).left_out["slow"]
