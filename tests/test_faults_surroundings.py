"""What surrounds a run is broken or missing: it says so, with the remedy, and leaves nothing.

Each row runs `labkit run --json` in surroundings made for it: mounts of its own, limits, packages
that do not import, a clock that jumps.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import processes_of

from labkit import Pipeline
from labkit.process import folders, launcher
from labkit.results.launch import launch

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's limits and mounts"),
]

ALL = os.environ.get("LABKIT_ALL_FAULTS") == "1"
SETTINGS = ("dataset=sleep", "prep_ms=1", "model=mlp", "width=32", "depth=1", "xray=false")
QUICK = Pipeline(dataset="sleep", prep_ms=1, model="mlp", width=32, depth=1, steps=20, xray=False)
TOOLS = {"steps.ring", "reserve", "launch.json"}


@dataclass(frozen=True)
class Surroundings:
    """One row: what is broken, how the run ends, what its error says."""

    name: str
    outcome: str
    says: str = ""
    sets: tuple = ("steps=20",)
    mount: str = ""  # shell, in a mount namespace of its own; needs root
    limits: dict = field(default_factory=dict)
    torch: str = ""  # what a package named torch does in place of the real one
    jumps: bool = False  # the wall clock
    short: bool = False


NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
NO_LIBRARY = "raise ImportError('libtorch_cpu.so: cannot open shared object file')"
MANY = ("num_workers=4", "prefetch_factor=32", "batch_size=4", "image_px=8", "steps=400")
ROWS = [
    Surroundings("torch is not installed", "failed", "^ModuleNotFoundError: .*Remedy: install",
                 torch=NO_TORCH),
    Surroundings("torch does not import", "failed", "^ImportError: libtorch_cpu.*Remedy: install",
                 torch=NO_LIBRARY, short=True),
    Surroundings("shm of 1 MB and small batches", "finished", sets=("num_workers=2", "steps=40"),
                 mount="mount -t tmpfs -o size=1m tmpfs /dev/shm"),
    Surroundings("shm of 1 MB and large batches", "failed", "Remedy: /dev/shm is full.*--shm-size",
                 sets=("num_workers=2", "batch_size=256", "steps=40"),
                 mount="mount -t tmpfs -o size=1m tmpfs /dev/shm", short=True),
    Surroundings("disk full under the event log", "failed", "No space left.*Remedy: the disk is",
                 sets=("steps=1000000", "seconds=60"),
                 mount="mount -t tmpfs -o size=560k tmpfs $LABKIT_HOME", short=True),
    Surroundings("disk full before the run", "failed", "No space left.*Remedy: the disk is",
                 mount="mount -t tmpfs -o size=280k tmpfs $LABKIT_HOME"),
    Surroundings("no place for anything", "nothing", "No run could be started: .*No space left"
                 ".*Remedy: the disk is", mount="mount -t tmpfs -o size=100k tmpfs $LABKIT_HOME"),
    Surroundings("folder is read-only", "finished",
                 mount="mount -t tmpfs -o ro tmpfs $LABKIT_HOME", short=True),
    Surroundings("too few file descriptors", "failed", "Too many open files.*Remedy: .*ulimit",
                 sets=MANY, limits={resource.RLIMIT_NOFILE: 64}, short=True),
    Surroundings("hardly any file descriptors", "failed", "Too many open files.*Remedy: .*ulimit",
                 limits={resource.RLIMIT_NOFILE: 12}),
    Surroundings("clock jumps", "finished", sets=("num_workers=2", "steps=60"), jumps=True,
                 short=True),
]  # fmt: skip


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.short or ALL], ids=lambda row: row.name.replace(" ", "-")
)
def test_in_broken_surroundings_a_run_ends_as_it_must(row, tmp_path):
    if row.mount and os.geteuid() != 0:
        pytest.skip("needs root for a mount")
    home = tmp_path / "home"
    home.mkdir()
    env = os.environ | {"LABKIT_HOME": str(home), "TMPDIR": str(tmp_path)}
    if row.torch:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(row.torch)
        env["PYTHONPATH"] = str(tmp_path)
    if row.jumps:
        env["LD_PRELOAD"] = str(jumping_clock(tmp_path))
    sets = [part for setting in (*SETTINGS, *row.sets) for part in ("--set", setting)]
    command = [sys.executable, "-m", "labkit", "run", "--json", *sets]
    # what the run left is looked at from inside: its mounts go with it
    inside = f"{' '.join(command)}; code=$?; ls -R {home} >&2; exit $code"
    inside = f"{row.mount} && ({inside})" if row.mount else inside

    def limit():
        for which, most in row.limits.items():
            resource.setrlimit(which, (most, most))

    done = subprocess.run(
        [*(["unshare", "-m"] if row.mount else []), "sh", "-c", inside], env=env, timeout=120,
        preexec_fn=limit, capture_output=True, text=True,
    )  # fmt: skip
    if row.mount and "mount" in done.stderr and not done.stdout:
        pytest.skip(f"no mounts here: {done.stderr.strip()[-200:]}")
    assert not processes_of(home)
    assert "Traceback" not in done.stderr
    if row.outcome == "nothing":
        assert done.returncode == 1 and re.search(row.says, done.stderr), done.stderr
        return
    run = json.loads(done.stdout)
    assert run["outcome"] == row.outcome, run["error"]
    assert re.search(row.says, run["error"]) if row.says else run["error"] is None, run["error"]
    assert not TOOLS & set(done.stderr.split())
    assert not [*tmp_path.glob("pymp-*"), *tmp_path.glob("labkit-[0-9]*")]
    if "steps=1000000" in row.sets:  # the disk was full in the middle: what was done is there
        assert run["steps"] > 200
    if row.jumps:
        assert 0 < run["utilization"] < 1 and run["throughput"] > 0 and run["steps"] == 60


JUMPS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static long leap(void) { static int n = 0; return (++n / 7 % 2) ? 86400 : -86400; }
int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec += leap();
  return code;
}
int gettimeofday(struct timeval *t, void *zone) {
  struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000; return 0;
}
time_t time(time_t *out) {
  struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


def jumping_clock(folder):
    """Compile a library under which the wall clock jumps a day ahead and back, again and again."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc to compile a clock that jumps")
    source, library = folder / "jumps.c", folder / "jumps.so"
    source.write_text(JUMPS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source, "-ldl"], check=True)
    code = "import time; t = {round(time.time() / 86400) for _ in range(40)}; print(len(t))"
    env = os.environ | {"LD_PRELOAD": str(library)}
    seen = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if int(seen.stdout) < 2:
        pytest.skip("this Python does not ask the C library for the time")
    return library


def test_without_its_interpreter_a_run_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/gone/bin/python")
    before = set(folders.home().glob("runs/*"))
    with pytest.raises(OSError, match="No run could be started.*Remedy: the Python of this kernel"):
        launch(QUICK)
    assert set(folders.home().glob("runs/*")) <= before  # not even an empty folder


def test_a_bench_that_cannot_be_started_fails_the_run(monkeypatch):
    monkeypatch.setattr(launcher, "bench_command", lambda *_: ["/gone/bin/python"])
    run = launch(QUICK).wait()
    assert run.outcome == "failed"
    assert re.search("could not start Python: .*Remedy: the Python of this kernel", run.error)
    assert not TOOLS & {path.name for path in run.path.iterdir()}


@pytest.mark.skipif(not ALL, reason="takes 12 s: set LABKIT_ALL_FAULTS=1")
def test_two_kernels_at_once_take_turns_and_say_for_whom_they_wait(tmp_path):
    code = (
        "import labkit as lk, sys\n"
        f"run = lk.run(lk.{QUICK.but(steps=10**6, seconds=4, num_workers=2)!r}, wait=False)\n"
        "seen = set()\n"
        "while run.running: seen.add(run.stage['name'])\n"
        "print(run.id, run.outcome, run.steps, [text for text in seen if 'in use by' in text])"
    )
    env = os.environ | {"LABKIT_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    kernels = [subprocess.Popen(command, env=env, stdout=-1, text=True) for _ in range(2)]
    said = [kernel.communicate(timeout=120)[0].strip() for kernel in kernels]
    assert all(" finished " in text for text in said), said
    (waited,) = (text for text in said if "in use by run" in text)
    assert all(text.split()[0] in waited for text in said)
    spans = sorted(map(span, (tmp_path / "runs").iterdir()))
    assert spans[0][1] <= spans[1][0]  # one after the other


def span(folder):
    """When the first step of a run began and its last one ended, ns."""
    lines = (Path(folder) / "events.jsonl").read_text().splitlines()
    steps = [event for event in map(json.loads, lines) if event["event"] == "step"]
    return steps[0]["t"][0], steps[-1]["t"][3]


# -- what a machine lacks --------------------------------------------------------------------------

RUN = ("run", "--json", "--set", "model=mlp", "--set", "steps=20", "--set", "xray=false")


def test_without_a_compiler_nothing_eager_is_called_compiled(labkit_command, tmp_path):
    """And nothing is written into the folder that it is started from."""
    (tmp_path / "empty").mkdir()
    bare = os.environ | {"PATH": str(tmp_path), "CXX": ""}
    compiled = ("--set", "compile=default")
    run = json.loads(labkit_command(*RUN, *compiled, env=bare, cwd=tmp_path / "empty").stdout)
    if run["machine"]["kind"] == "gpu":
        pytest.skip("a GPU needs no C++ compiler for this")
    assert run["outcome"] == "finished"
    assert run["pipeline"]["compile"] is None and run["compile_s"] is None
    assert "C++ compiler" in run["not_applied"]["compile"]
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_compilation_is_over_before_the_first_step(labkit_command):
    run = json.loads(labkit_command(*RUN, "--set", "compile=default").stdout)
    eager = json.loads(labkit_command(*RUN).stdout)
    assert run["outcome"] == "finished", run["error"]
    assert run["compile_s"] > 0 and run["steps"] == 20
    assert run["loss"] == pytest.approx(eager["loss"], rel=1e-3)  # the same training


def test_telemetry_without_a_driver_is_a_gap_and_not_an_error(finished):
    assert finished.telemetry
    if finished.machine.kind == "cpu":
        assert finished.energy_j is None
        assert all(sample.get("gpu") is None for sample in finished.telemetry)


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    code = "from labkit.process.folders import home; print(home())"
    env = os.environ | {"LABKIT_HOME": str(blocked)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "labkit-" in done.stdout
