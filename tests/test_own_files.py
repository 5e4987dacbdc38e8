"""What labkit writes: its user's alone; nothing of anybody else's is used, changed or believed."""

import errno
import json
import os
import re
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from planted import planted

import labkit as lk
from labkit import Pipeline
from labkit.api import launch
from labkit.process import device_lock, family, folders, leftovers
from labkit.results.saving import FileKept, replacing
from labkit.stamps import events
from labkit.stamps.folder_rights import NotOurs, is_locked

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions and ids")

NOBODY = 65534
KEY = "hf_planted-for-this-test"
as_root = pytest.mark.skipif(
    getattr(os, "getuid", int)() != 0, reason="only root gives files to others"
)


def mode(path):
    return os.lstat(path).st_mode & 0o7777


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "labkit"))
    return tmp_path / "labkit"


# -- a home that others can write ------------------------------------------------------------------


def foreign(path):
    os.chown(path, NOBODY, NOBODY)


OPEN = {
    "for all to write": lambda home: home.chmod(0o777),
    "another user's": foreign,
    "with runs for all to write": lambda home: (
        (home / "runs").mkdir(),
        (home / "runs").chmod(0o777),
    ),
}


@as_root
@pytest.mark.parametrize("what", OPEN)
def test_a_home_that_others_can_write_is_refused_with_the_line_that_sets_another(what, home):
    home.mkdir()
    OPEN[what](home)
    with pytest.raises(NotOurs, match="export LABKIT_HOME="):
        folders.new_run()
    assert not list(home.rglob("labkit-run"))


def test_all_that_is_made_is_its_users_alone_also_with_an_open_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "deep" / "labkit"))
    before = os.umask(0)
    try:
        run = folders.new_run()
        os.close(device_lock.hold(folders.home(), "cpu", "run-1", waiting=print))
    finally:
        os.umask(before)
    for path in (tmp_path / "deep").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert leftovers.is_run(run)


# -- what is planted in a home ---------------------------------------------------------------------


def fifo(path, _victim):
    os.mkfifo(path)


def theirs(path, victim):
    shutil.copy(victim, path)
    foreign(path)


PLANTED = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a second name": lambda path, victim: os.link(victim, path),
    "a FIFO": fifo,
    "another user's": theirs,
    "garbage": lambda path, _victim: path.write_bytes(b"\xff{[" * 1000),
}


def lock(home, plant):
    os.close(device_lock.hold(home, "cpu", "run-1", waiting=print))
    [path] = (home / "locks").iterdir()
    path.unlink()
    plant(path)
    is_locked(path)
    os.close(device_lock.hold(home, "cpu", "run-1", waiting=print))


def in_a_run(name, home, plant):
    run = folders.new_run()
    for each in (leftovers.PLAN_NAME, "events.jsonl", "steps.ring"):
        if each != name:
            plan = {"system": family.this_system(), "kernel_pid": 2**22 + 1}
            (run / each).write_text(json.dumps(plan) if each == leftovers.PLAN_NAME else "")
    (run / name).unlink(missing_ok=True)
    plant(run / name)
    leftovers.clear(home / "runs")
    folders.new_run()


def in_part(part, home, plant):
    folders.home()
    plant(home / part)
    folders.new_run()


ENTRIES = {
    "the lock of a device": lock,
    "runs": partial(in_part, "runs"),
    "a plan": partial(in_a_run, leftovers.PLAN_NAME),
    "a log": partial(in_a_run, "events.jsonl"),
    "a run's mark": partial(in_a_run, leftovers.MARK_NAME),
}


@as_root
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_in_a_home_harms_no_file_and_blocks_nothing(what, entry, home, tmp_path):
    victim = tmp_path / ".bashrc"
    victim.write_text("victim=4\n")
    victim.chmod(0o640)
    os.utime(victim, (1, 1))
    places = []

    def plant(path):
        places.append(path)
        PLANTED[what](path, victim)

    started = time.monotonic()
    try:
        ENTRIES[entry](home, plant)
    except OSError as error:
        assert re.search(
            "of your own|symbolic links|Is a directory|Not a directory|File exists", str(error)
        )
    assert time.monotonic() - started < 30  # a FIFO would block for ever
    assert victim.read_text() == "victim=4\n"
    assert mode(victim) == 0o640 and victim.stat().st_mtime == 1
    assert entry == "a log" or os.path.lexists(places[0])  # it is rewritten in a folder of our own


# -- what a log or a plan names --------------------------------------------------------------------


@as_root
def test_pids_in_a_log_harm_no_process_and_no_shared_memory_but_the_runs(home):
    run = folders.new_run()
    with subprocess.Popen(["sleep", "60"], env={}, start_new_session=True) as innocent:
        segments = {
            "living": Path(f"/dev/shm/torch_{innocent.pid}_1"),
            "theirs": Path(f"/dev/shm/torch_{2**22 + 5}_1"),
            "ours": Path(f"/dev/shm/torch_{2**22 + 5}_2"),
        }
        for path in segments.values():
            path.touch()
        foreign(segments["theirs"])
        lines = [{"event": "hello", "pid": innocent.pid}, {"event": "hello", "pid": "../../*"}]
        lines += [{"event": "workers", "pids": [innocent.pid, 2**22 + 5, -1, "*", None]}]
        log = run / "events.jsonl"
        log.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        plan = {"system": family.this_system(), "kernel_pid": 2**22 + 1}
        (run / leftovers.PLAN_NAME).write_text(json.dumps(plan))
        try:
            leftovers.clear(home / "runs")
            there = {name for name, path in segments.items() if path.exists()}
            assert there == {"living", "theirs"} and innocent.poll() is None
            assert not (run / leftovers.PLAN_NAME).exists()  # it was seen to
        finally:
            innocent.kill()
            for path in segments.values():
                path.unlink(missing_ok=True)


# -- what is deleted, and what is replaced ---------------------------------------------------------

NO_RUNS = {
    "without the mark": lambda run: (run / leftovers.MARK_NAME).unlink(),
    "a copy": lambda run: run.rename(run.with_name("20200101-000000-abcdef")),
    "renamed": lambda run: run.rename(run.with_name("my best run")),
    "a link": lambda run: run.symlink_to(run.rename(run.with_name("kept"))),
    "written by all": lambda run: run.chmod(0o777),
}


@pytest.mark.parametrize("what", NO_RUNS)
def test_a_folder_without_labkits_own_mark_is_never_deleted(what, home, monkeypatch):
    run = folders.new_run()
    (run / "notes.txt").write_text("mine")
    NO_RUNS[what](run)
    monkeypatch.setattr(folders, "KEPT_RUNS", 0)
    for place in (home / "runs").iterdir():
        leftovers.delete_run(place)
    folders.new_run()
    assert [path.read_text() for path in (home / "runs").rglob("notes.txt")] == ["mine"]


def test_the_oldest_runs_go_unless_they_are_of_today_or_have_a_supervisor(home, monkeypatch):
    young, supervised, old = (folders.new_run() for _ in range(3))
    monkeypatch.setattr(folders, "KEPT_RUNS", 1)
    (supervised / leftovers.PLAN_NAME).write_text("{}")
    for folder in (supervised, old):
        os.utime(folder, (1, 1))
    _, plan = leftovers.plan_of(supervised)
    folders.new_run()
    assert young.exists() and supervised.exists() and not old.exists()
    plan.close()
    folders.new_run()
    assert young.exists() and not supervised.exists()


def record():
    return lk.recorded("workers-6")


WRITES = {
    "run.html": lambda path, **how: record().export(path, **how),
    "run.csv": lambda path, **how: record().export(path, **how),
    "run.jsonl.gz": lambda path, **how: record().save(path, **how),
    "train.py": lambda path, **how: lk.script(Pipeline()).save(path, **how),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_is_there_is_replaced_only_when_that_is_asked_for(name, home, tmp_path):
    write, path = WRITES[name], tmp_path / name
    path.write_bytes(b"mine")
    with pytest.raises(FileKept, match="overwrite=True"):
        write(path)
    assert path.read_bytes() == b"mine" and os.listdir(tmp_path).count(name) == 1
    path.chmod(0o640)
    write(path, overwrite=True)
    assert mode(path) == 0o640 and path.read_bytes() != b"mine"


@as_root
def test_no_file_is_written_through_another_users_link(home, tmp_path):
    victim = tmp_path / ".bashrc"
    victim.write_text("mine")
    link = tmp_path / "run.html"
    link.symlink_to(victim)
    with pytest.raises(FileKept), replacing(link) as file:
        file.write(b"new")
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(FileKept, match="another user"), replacing(link, overwrite=True) as file:
        file.write(b"new")
    assert victim.read_text() == "mine" and sorted(os.listdir(tmp_path))[-1] == "run.html"


def test_a_run_that_is_saved_where_it_was_loaded_from_stays_whole(tmp_path):
    path = lk.recorded("workers-0").save(tmp_path / "run.jsonl.gz")
    before = path.read_bytes()
    link = tmp_path / "link.jsonl.gz"
    link.symlink_to(path)
    same = tmp_path / "same.jsonl.gz"
    os.link(path, same)
    for there in (path, link, same):
        lk.load(path).save(there)
        assert path.read_bytes() == before
    lk.recorded("workers-6").save(link, overwrite=True)
    assert link.is_symlink() and path.read_bytes() != before


def test_a_record_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    run = lk.recorded("workers-0")
    path = run.save(tmp_path / "run.jsonl")
    before = path.read_bytes()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(run, "extra_lines", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        run.save(path, overwrite=True)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.jsonl"]


# -- keys ------------------------------------------------------------------------------------------


def test_a_key_is_in_no_event(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", KEY)
    monkeypatch.setenv("DB_PASSWORD", 'pass"word\\1')
    monkeypatch.setenv("SHORT_TOKEN", "event")
    monkeypatch.setenv("PIN_SECRET", "123456789")
    log = events.EventLog(tmp_path)
    log.write("error", message=f'no access with {KEY}: pass"word\\1 123456789')
    text = (tmp_path / events.FILE_NAME).read_text()
    assert '"no access with ***: *** 123456789"' in text


@pytest.mark.slow
def test_the_users_dataset_has_the_users_keys_and_the_record_of_its_failure_none(tiny, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", KEY)
    run = launch(tiny.but(num_workers=2), fault=planted("tells_a_key")).wait()
    assert "no access with ***" in run.error, run.error
    assert "printed: ***" in (run.path / "bench.stderr").read_text()
    for path in run.path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
