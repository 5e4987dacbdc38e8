"""What surrounds a run is broken or missing: it says so, with the remedy, and leaves nothing.

Each row runs `labkit run --json` in surroundings made for it: mounts of its own, limits, packages
that do not import. .ci/nightly runs the whole table.
"""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers import processes_of
from planted import QUICK, TOOLS, no_tools_in, sampled

from labkit.api import launch
from labkit.process import folders, launcher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's limits and mounts"),
]
SETTINGS = "dataset=sleep prep_ms=1 model=mlp width=32 depth=1 xray=false"


def row(name, outcome, says="", sets="steps=20", before="true", torch=""):
    """One row: how the run ends, what its error says; a name with a star is in the plain command.

    `before`: what the shell does first; a mount is in a namespace of its own, and needs root.
    `torch`: what a package of that name does in place of the real one.
    """
    return SimpleNamespace(**(locals() | {"name": name.rstrip("*"), "always": name[-1] == "*"}))


MOUNT = "mount -t tmpfs -o"
ROWS = [
    row("torch does not import*", "failed", "^ImportError: libtorch_cpu.*Remedy: install",
        torch="raise ImportError('libtorch_cpu.so: cannot open shared object file')"),
    row("shm of 1 MB and large batches", "failed", "Remedy: /dev/shm is full.*--shm-size",
        sets="num_workers=2 batch_size=256 steps=40", before=f"{MOUNT} size=1m tmpfs /dev/shm"),
    row("disk full under the event log", "failed", "No space left.*Remedy: the disk is",
        sets="steps=1000000 seconds=60", before=f"{MOUNT} mode=700,size=560k tmpfs $LABKIT_HOME"),
    row("disk full before the run", "failed", "No space left.*Remedy: the disk is",
        before=f"{MOUNT} mode=700,size=200k tmpfs $LABKIT_HOME"),
    row("folder is read-only", "finished", before=f"{MOUNT} ro,mode=700 tmpfs $LABKIT_HOME"),
    row("too few file descriptors*", "failed", "Remedy: allow more open files.*ulimit",
        before="ulimit -n 64",
        sets="num_workers=4 prefetch_factor=32 batch_size=4 image_px=8 steps=400"),
]  # fmt: skip


@pytest.mark.parametrize("row", sampled(ROWS))
def test_in_broken_surroundings_a_run_ends_as_it_must(row, tmp_path):
    mounts = row.before.startswith("mount")
    if mounts and os.geteuid() != 0:
        pytest.skip("needs root for a mount")
    home = tmp_path / "home"
    home.mkdir()
    env = os.environ | {"LABKIT_HOME": str(home), "TMPDIR": str(tmp_path)}
    if row.torch:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(row.torch)
        env["PYTHONPATH"] = str(tmp_path)
    sets = " ".join(f"--set {setting}" for setting in f"{SETTINGS} {row.sets}".split())
    # what the run left is looked at from inside: its mounts go with it
    inside = f"{sys.executable} -m labkit run --json {sets}; code=$?; ls -R {home} >&2; exit $code"
    done = subprocess.run(
        [*(["unshare", "-m"] if mounts else []), "sh", "-c", f"{row.before} && ({inside})"],
        env=env,
        timeout=120,
        capture_output=True,
        text=True,
    )
    if mounts and "mount" in done.stderr and not done.stdout:
        pytest.skip(f"no mounts here: {done.stderr.strip()[-200:]}")
    assert not processes_of(home)
    assert "Traceback" not in done.stderr
    run = json.loads(done.stdout)
    assert run["outcome"] == row.outcome, run["error"]
    assert re.search(row.says, run["error"]) if row.says else run["error"] is None, run["error"]
    assert not TOOLS & set(done.stderr.split())
    assert not [*tmp_path.glob("pymp-*"), *tmp_path.glob("labkit-[0-9]*")]
    if "steps=1000000" in row.sets:  # the disk was full in the middle: what was done is there
        assert run["steps"] > 50


def test_without_its_interpreter_a_run_says_so(monkeypatch):
    before = set(folders.home().glob("runs/*"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/gone/bin/python")
        with pytest.raises(OSError, match="No run could be started.*Remedy: this kernel's Python"):
            launch(QUICK)
    assert set(folders.home().glob("runs/*")) <= before  # not even an empty folder
    start = launcher.Handle.start

    def gone(handle):
        handle.plan["bench"] = ["/gone/bin/python"]
        start(handle)

    monkeypatch.setattr(launcher.Handle, "start", gone)
    run = launch(QUICK).wait()
    assert run.outcome == "failed"
    assert re.search("could not start Python: .*Remedy: this kernel's Python", run.error)
    no_tools_in(run.path)
