"""What a watched loop that runs for days leaves: a small log, and honest sums of all that was."""

import io
import json
import subprocess
import sys

import pytest
import torch
from helpers import Waiting
from long_watch import KINDS, MS, LongWatch, record_of
from torch.utils.data import DataLoader

import labkit as lk
from labkit.bench import loader_work, telemetry
from labkit.bench.loader_progress import SINCE, STATE, WAITING
from labkit.process import events
from labkit.process.events import FILE_NAME
from labkit.results import record
from labkit.watching import hangs, saves, step_log
from labkit.watching.alternation import Alternation

FEW, MANY = 300, 2_400  # times that a writer is asked to write


@pytest.fixture
def little_room(monkeypatch):
    """Bounds a hundredth as large, so that a short loop reaches them."""
    monkeypatch.setattr(step_log, "KEEP_STEPS", 500)
    monkeypatch.setattr(step_log, "KEEP_PASSES", 100)
    monkeypatch.setattr(events, "MANY", 50)
    monkeypatch.setattr(loader_work, "MOST_ROWS", 100)
    monkeypatch.setattr(loader_work, "MOST_WRITES", 100)


@pytest.fixture
def watch(tmp_path, little_room):
    watch = LongWatch(tmp_path)
    watch.looks = hangs.HangWatch(lambda: [tmp_path], lambda _text: None)
    watch.looks.logged.room = events.MANY
    with watch.clock.ticks():
        yield watch


def steps_of_one_pass(watch, count):
    watch.one_pass(count)


def passes(watch, count):
    for _ in range(count):
        watch.one_pass(1)


def passes_without_a_step(watch, count):
    for _ in range(count):
        watch.one_pass(0)


def passes_that_fail(watch, count):
    for _ in range(count):
        watch.recorder.begin_epoch(watch.clock.now)
        watch.clock.now += MS
        watch.recorder.end_pass("failed", ValueError("bad file" * 1_000))


def starts_that_fail(watch, count):
    class Broken:
        def __iter__(self):
            raise ValueError("no workers" * 1_000)

    for _ in range(count):
        with pytest.raises(ValueError, match="no workers"):
            watch.recorder.iterate(Broken(), watch.recorder.beat)


def loops_that_go_on_after_a_pause(watch, count):
    for _ in range(count):
        watch.recorder.begin_epoch(watch.clock.now, counts=False)


def batches_of_persistent_workers(watch, count):
    watch.prepare(count, 200 * MS)


def looks_at_the_run_so_far(watch, count):
    watch.recorder.probes.has_grown = True
    for _ in range(count):
        watch.recorder.batches.add_padding((0.5, 0.0))
        watch.recorder.flush()


def replayed_passes(watch, count):
    for _ in range(count):
        Alternation([]).write(watch.recorder.log)


def checkpoints(watch, count):
    for _ in range(count):
        with torch.serialization._open_zipfile_writer(io.BytesIO()):
            watch.clock.now += MS


@pytest.fixture
def saved_nowhere(watch, monkeypatch):
    opener = torch.serialization._opener
    monkeypatch.setattr(opener, "__enter__", opener.__enter__)  # put back afterwards
    monkeypatch.setattr(saves, "now_ns", watch.clock)
    saves.hook_saving(watch.recorder.log)


def hangs_that_end(watch, count):
    words = watch.recorder.probes.words
    for _ in range(count):
        words[SINCE] = watch.clock.now
        words[STATE] = WAITING
        watch.looks.look(watch.clock.now)
        watch.looks.look(watch.clock.now + 100_000 * MS)


WRITERS = (
    steps_of_one_pass,
    passes,
    passes_without_a_step,
    passes_that_fail,
    starts_that_fail,
    loops_that_go_on_after_a_pause,
    batches_of_persistent_workers,
    looks_at_the_run_so_far,
    replayed_passes,
    checkpoints,
    hangs_that_end,
)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda each: each.__name__)
@pytest.mark.usefixtures("saved_nowhere")
def test_what_a_loop_writes_again_and_again_does_not_grow_with_its_length(writer, watch):
    log = watch.folder / FILE_NAME
    writer(watch, FEW)
    before = log.stat().st_size
    writer(watch, MANY - FEW)
    grown = log.stat().st_size - before
    watch.close()
    assert grown < before, (grown, before)  # eight times as much, and not twice the log


@pytest.mark.usefixtures("saved_nowhere")
def test_the_sums_of_what_was_left_out_are_exact(watch):
    for number in range(2_000):
        watch.one_pass(2, wait_ns=MS // 4 if number < 1_000 else 3 * MS // 4, batches=1)
        checkpoints(watch, 1)
    watch.close()
    run = lk.load(watch.folder)
    assert run.steps_made == 4_000 and run.samples == 16_000 and run.outcome == "finished"
    assert run.steps == 200 and "after 4,000 steps" in run.ended
    assert {worker.batches for worker in run.workers} == {2_000}
    shares = {part.part: part.seconds for part in run.wall_shares.parts}
    assert shares["training loop"] == pytest.approx(2_000 * 0.002, rel=0.01)
    assert shares["checkpoints"] == pytest.approx(2_000 * 0.001, rel=0.01)
    assert sum(part.share for part in run.wall_shares.parts) == pytest.approx(1)
    assert "first 200 of 4,000 steps are recorded" in str(run)
    assert "over all of them the loop waited for data 50% of the time" in str(run)
    assert any("first 200 of 4,000" in caveat for caveat in run.diagnose().caveats)
    assert run.diagnose().confidence < 0.8  # those that are not in the log wait for longer


def test_a_loop_that_is_killed_in_a_pass_beyond_the_log_has_not_finished(watch):
    passes(watch, 150)
    watch.recorder.flush()
    run = lk.load(watch.folder)
    assert run.outcome == "failed" and run.steps_made == 150


def test_a_short_loop_is_in_the_log_as_a_whole(tmp_path):
    watch = LongWatch(tmp_path)
    with watch.clock.ticks():
        passes(watch, 50)
        watch.close()
    run = lk.load(tmp_path)
    assert (run.steps, run.steps_made, run.sums) == (50, 50, None) and len(run.passes_ended) == 50
    assert "recorded" not in str(run).replace("RECORDED", "")


def test_the_telemetry_of_a_year_is_that_of_hours():
    due_s, count = 0.0, 0
    while due_s < 365 * 24 * 3_600:
        due_s += telemetry.period_s(due_s)
        count += 1
    assert count < 2 * 3_600 / telemetry.PERIOD_S + 10


@pytest.mark.slow
def test_workers_that_start_for_each_pass_record_ever_fewer_of_their_starts(monkeypatch):
    monkeypatch.setattr(loader_work, "STARTS", 2)
    monkeypatch.setattr("labkit.watching.probes.STARTS", 2)
    watched = lk.watch(DataLoader(Waiting(0.0, 8), 4, num_workers=2), live=False)
    for _ in range(12):
        for _batch in watched:
            pass
    watched.close()
    recorded = {worker.processes for worker in watched.run.workers}
    assert recorded == {5}  # the 1st, 2nd, 3rd, 5th and 9th
    assert len(watched.run.passes_ended) == 12 and watched.run.steps == 24


LOOK = """
import resource, sys, time
import labkit as lk
began = time.process_time()
run = lk.load(sys.argv[1])
told = [str(run), str(run.diagnose()), str(run.workers), str(run.lines)]
run.plot()
run.export(sys.argv[2])
print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.__name__)
def test_the_record_of_long_kinds_of_loops_says_what_they_were(
    kind, tmp_path, little_room, monkeypatch
):
    monkeypatch.setattr(record, "MAX_FEW", 100)  # of events that a week has few of
    made = record_of(tmp_path, kind, 0.005).recorder.steps
    run = lk.load(tmp_path)
    assert run.steps_made == made.next and run.samples == made.samples
    assert run.diagnose().findings and run.wall_shares.seconds > 0
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert all(json.loads(line) for line in lines)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.__name__)
def test_the_record_of_a_week_is_small_and_judged_in_seconds(kind, tmp_path):
    record_of(tmp_path, kind)
    assert (tmp_path / FILE_NAME).stat().st_size < 48 * 2**20
    look = [sys.executable, "-c", LOOK, tmp_path, tmp_path / "run.html"]
    seconds, gib = map(float, subprocess.check_output(look, text=True).split())
    assert gib < 1 and seconds < 20, (seconds, gib)  # 5 s on a quiet machine
