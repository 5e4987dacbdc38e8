"""What labkit writes: who may read it, what it replaces, how long it stays."""

import errno
import os
from unittest.mock import Mock

import pytest
from planted import planted

import labkit as lk
from labkit.api import launch
from labkit.process import folders, leftovers
from labkit.stamps import events

KEY = "hf_planted-for-this-test"


posix_files = pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions and ids")


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """A cache folder for one test."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# -- how long a run stays --------------------------------------------------------------------------


def test_the_oldest_runs_go_unless_they_are_of_today_or_have_a_supervisor(own_home, monkeypatch):
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


# -- what is replaced ------------------------------------------------------------------------------


@posix_files
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
