"""Every fault inside a run: how it must end, what it must say, and what must be left: nothing.

One row is one fault. The plain test command runs a choice of them, .ci/nightly all. The steps that
the bench has finished are counted past the log (`steps.count`), so that a lost one shows.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import processes_of, steps_in, torch_segments
from planted import (
    HELPER_NAME,
    HELPERS,
    QUICK,
    counted,
    no_tools_in,
    planted,
    sampled,
    wait_until,
)

from labkit import load
from labkit.api import launch
from labkit.process import family, leftovers
from labkit.stamps.events import now_ns
from labkit.stamps.step_ring import FinishedStep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SLACK_S = 2.0  # of a machine that does other things
WITH_WORKERS = QUICK.but(num_workers=2, prep_ms=2)
LONG = {"steps": 10**6, "seconds": 60}


def after_steps(act, steps=8, pause_s=0.0):
    """What to do to a run: `act(run)` once it has finished some steps."""

    def do(run):
        wait_until(lambda: counted(run.path) >= steps or not run.running)
        time.sleep(pause_s)
        return act(run)

    return do


def kill_supervisor(run):
    start = now_ns()
    os.kill(run._process.process.pid, signal.SIGKILL)
    return start


def stop(run):
    start = now_ns()
    run.stop()
    return start


def fault(name, outcome, says="", plant="nothing", do=lambda run: None, limit_s=1.0, **knobs):
    """One row: what happens, how the run ends, what its error says.

    `do(run)` returns when it acted, in ns, if it did; a name with a star is in the plain command.
    """
    always = name.endswith("*")
    return SimpleNamespace(**(locals() | {"name": name.rstrip("*")}))


# The bench does not answer: its clean-up may take half a second more
forced = {"do": after_steps(stop, 5, pause_s=0.3), "limit_s": 1.5, **LONG}
FAULTS = [
    fault("step raises", "failed", "^ValueError: planted: this sample", "step_raises"),
    fault("sample cannot be pickled*", "failed", "^TypeError: cannot pickle.*Remedy: .*tensors",
          "sample_unpicklable"),
    fault("worker SIGKILL*", "failed", "orker .*(SIGKILL|Killed).*Remedy: .*num_workers",
          "worker_dies"),
    fault("bench SIGSEGV", "failed", "SIGSEGV.*Remedy: .*bench.stderr", "bench_segfaults"),
    fault("bench os._exit", "failed", "was ended by exit code 7", "bench_exits"),
    fault("bench SIGKILL*", "failed", "SIGKILL.*Remedy: .*out-of-memory", "bench_dies"),
    fault("100 MB on stdout*", "finished", plant="floods_stdout"),
    fault("an escapee that double-forks", "finished", plant="escapes"),
    fault("hang with the GIL held, Stop*", "stopped", plant="bench_hangs", **forced),
    fault("bench SIGSTOP, Stop", "stopped", plant="bench_is_stopped", **forced),
    fault("Stop*", "stopped", do=after_steps(stop), **LONG),
    fault("Stop at once", "stopped", do=stop, **LONG),
    fault("supervisor of an escapee killed*", "failed", "supervisor was killed", "escapes",
          after_steps(kill_supervisor), **LONG),
]  # fmt: skip


@pytest.mark.parametrize("fault", sampled(FAULTS))
def test_a_fault_ends_the_run_as_it_must_and_leaves_nothing(fault):
    run = launch(WITH_WORKERS.but(**fault.knobs), fault=planted(fault.plant))
    acted = fault.do(run)
    run.wait()
    wait_until(lambda: not processes_of(run.path))
    over = now_ns()
    last = next((e["t_ns"] for e in map(run.event, ("error", "done")) if e), None)
    steps = steps_in(run.path)
    cleaned = (over - (acted or last or steps[-1]["t"][3])) / 1e9
    assert run.outcome == fault.outcome, run.error
    assert re.search(fault.says, run.error or "") if fault.says else run.error is None, run.error
    assert run.steps >= counted(run.path)
    assert [step["i"] for step in steps] == list(range(run.steps))
    assert cleaned < fault.limit_s + SLACK_S
    no_tools_in(run.path)
    pids = leftovers.logged_pids(run.path, "workers") | leftovers.logged_pids(run.path, "hello")
    assert not [name for name in torch_segments() if int(name.split("_")[1]) in pids]
    assert load(run.path).steps == run.steps
    if fault.name == "Stop":
        assert run.event("end")["code"] == 130  # the bench left by itself
    if fault.plant == "floods_stdout":
        assert (run.path / "bench.stderr").stat().st_size < 1e6  # its end


@pytest.mark.parametrize("killed", ["guard", "supervisor", "both"])
@pytest.mark.parametrize("way", HELPERS)
def test_no_helper_of_an_empty_environment_outlives_a_supervisor_that_is_killed(way, killed):
    if killed == "both" and way != "in the session":
        pytest.skip("nothing tells it from other processes of the user")
    run = launch(QUICK.but(**LONG), fault=planted(f"helper {way}"))
    named = run.path / HELPER_NAME
    wait_until(lambda: named.exists() and named.read_text())
    helper = int(named.read_text())
    other = subprocess.Popen(["sleep", "3600"], env={}, start_new_session=True)  # another's
    guard = run._process.process.pid
    supervisor = family.descendants(guard)[0]
    for pid in {"guard": [guard], "supervisor": [supervisor]}.get(killed, [guard, supervisor]):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    assert "supervisor was killed" in run.error
    assert not family.exists(helper) and other.poll() is None
    other.kill()
    assert [step["i"] for step in steps_in(run.path)] == list(range(run.steps))
    no_tools_in(run.path)


def test_a_loss_that_is_no_number_is_null_in_the_log():
    assert '"loss":null' in FinishedStep(0, (1, 2, 3, 4), 16, float("nan")).line()


KERNEL = f"""
import labkit as lk
from labkit.api import launch
run = launch(lk.{WITH_WORKERS.but(**LONG)!r}, fault={planted("escapes")!r})
print(run.path, run._process.process.pid, flush=True)
run.wait()
"""


@pytest.mark.parametrize("with_supervisor", [False, True])
def test_a_kernel_that_dies_takes_its_run_along(with_supervisor, tmp_path, monkeypatch):
    """Where its supervisor dies too, when a run has just begun, that one sees to what is left."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=-1, text=True)
    folder, supervisor = kernel.stdout.readline().split()
    path = Path(folder)
    wait_until(lambda: counted(path) > 9)
    if with_supervisor:
        os.kill(int(supervisor), signal.SIGSTOP)
    kernel.kill()
    kernel.wait()
    if with_supervisor:
        run = launch(QUICK)
        os.kill(int(supervisor), signal.SIGKILL)
        assert run.wait().outcome == "finished"
    wait_until(lambda: not processes_of(path) and not (path / "launch.json").exists())
    run = load(path)
    assert run.outcome == "stopped"
    assert run.steps >= counted(path)
    assert [step["i"] for step in steps_in(run.path)] == list(range(run.steps))
    no_tools_in(path)
