"""Keys of services come from the environment, go to the process that logs, and nowhere else."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

import labkit as lk
from labkit.process import family as processes
from labkit.results.launch import launch

ROOT = Path(__file__).parents[1]
KEYS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_planted0for0the0test0000000000",
    "JUPYTER_TOKEN": "planted-token-of-the-server",
}
PATTERNS = [
    r"(?i)wandb[^\n]{0,40}\b[0-9a-f]{40}\b",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bsk-[A-Za-z0-9_-]{32,}",
    r"\bgh[pousr]_[A-Za-z0-9]{36}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"(?i)\b(api_?key|token|secret)\b[\"']?\s*[:=]\s*[\"'][0-9a-f]{32,}[\"']",
]


@pytest.fixture
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_no_process_of_a_run_has_a_key_and_nothing_it_writes_holds_one(tiny, keys, tmp_path):
    run = launch(tiny.but(num_workers=2, steps=10**6, seconds=60))
    deadline = time.monotonic() + 60
    while run.steps < 5:
        assert time.monotonic() < deadline and run.running, run.error
        time.sleep(0.01)
    family = [run._process.process.pid, *processes.descendants(run._process.process.pid)]
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in family]
    run.stop()
    saved = run.save(tmp_path / "saved.jsonl").read_bytes()
    written = [file.read_bytes() for file in run.path.rglob("*") if file.is_file()]
    assert len(environments) >= 5  # supervisor, telemetry, bench, two workers
    for key in KEYS.values():
        assert not any(key.encode() in data for data in (*environments, *written, saved))
        assert key not in repr(run) + json.dumps(run.to_dict())


def test_the_process_that_logs_is_given_the_key(tiny, keys):
    import sys

    code = "import os; open('keys.txt', 'w').write(os.environ.get('WANDB_API_KEY', 'none'))"
    run = launch(tiny, after=[sys.executable, "-c", code]).wait()
    deadline = time.monotonic() + 30
    while not (run.path / "keys.txt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    assert (run.path / "keys.txt").read_text() == KEYS["WANDB_API_KEY"]
    assert KEYS["WANDB_API_KEY"] not in (run.path / "events.jsonl").read_text()


def test_cloud_storage_of_a_readers_own_dataset_stays_reachable():
    environment = {"AWS_SESSION_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "HF_TOKEN": "z"}
    assert set(processes.without_keys(environment)) == {
        "AWS_SESSION_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
    }


def files():
    """Every file of the repository (as git sees it, or as it lies here)."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    found = [ROOT / name for name in listed] or [p for p in ROOT.rglob("*") if p.is_file()]
    return [f for f in found if f.is_file() and f.suffix not in {".png", ".gz", ".pyc", ".jpg"}]


def test_no_key_lies_in_the_repository_nor_in_a_notebooks_stored_output():
    planted = set(KEYS.values())
    for file in files():
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.name != Path(__file__).name:
            for pattern in PATTERNS:
                assert not re.search(pattern, text), f"{file}: {pattern}"
        for name, value in os.environ.items():
            secret = name.upper().endswith(processes.KEY_ENDINGS) and len(value) > 15
            assert not (secret and value not in planted and value in text), f"{file}: ${name}"


def test_no_key_lies_in_a_shipped_record():
    import gzip

    for file in Path(lk.__file__).parent.rglob("*.jsonl*"):
        data = gzip.open(file).read() if file.suffix == ".gz" else file.read_bytes()
        for pattern in PATTERNS:
            assert not re.search(pattern, data.decode(errors="replace")), file
