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
from types import SimpleNamespace

import pytest
from helpers import processes_of
from planted import COUNT_NAME, QUICK, counted, no_tools_in, planted, sampled, wait_until

from labkit import load
from labkit.process import leftovers
from labkit.process.events import now_ns
from labkit.process.step_ring import SLOT
from labkit.results.launch import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

FORCED_S = 1.5  # for clean-up where the bench does not answer; else 1 s
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


def kill(*roles):
    def act(run):
        pids = {
            "bench": min(leftovers.logged_pids(run.path, "hello")),
            "worker": min(leftovers.logged_pids(run.path, "workers")),
            "supervisor": run._process.process.pid,
        }
        start = now_ns()
        for role in roles:
            os.kill(pids[role], signal.SIGKILL)
        return start

    return after_steps(act)


def stop(run):
    start = now_ns()
    run.stop()
    return start


def stop_during_import(run):
    wait_until(lambda: run.stage["name"] == "importing torch")
    time.sleep(0.2)
    return stop(run)


def fault(name, outcome, says="", plant="nothing", do=lambda run: None, limit_s=1.0, **knobs):
    """One row: what happens, how the run ends, what its error says.

    `do(run)` returns when it acted, in ns, if it did; a name with a star is in the plain command.
    """
    always = name.endswith("*")
    return SimpleNamespace(**(locals() | {"name": name.rstrip("*")}))


forced = {"do": after_steps(stop, 5, pause_s=0.3), "limit_s": FORCED_S, **LONG}
FAULTS = [
    fault("step raises", "failed", "^ValueError: planted: this sample", "step_raises"),
    fault("dataset raises", "failed", "^ValueError: planted: .*worker", "dataset_raises"),
    fault("sample cannot be pickled*", "failed", "^TypeError: cannot pickle.*Remedy: .*tensors",
          "sample_unpicklable"),
    fault("worker SIGKILL*", "failed", "orker .*(SIGKILL|Killed).*Remedy: .*num_workers",
          "worker_dies"),
    fault("worker segfault", "failed", "orker .*(SIGSEGV|Segmentation)", "worker_segfaults"),
    fault("worker exit code", "failed", "orker .*exit code 7.*Remedy", "worker_exits"),
    fault("worker hangs", "failed", "timed out after 2.* Remedy: .*num_workers=0", "worker_hangs"),
    fault("bench SIGSEGV", "failed", "SIGSEGV.*Remedy: .*bench.stderr", "bench_segfaults"),
    fault("bench SIGABRT", "failed", "SIGABRT.*Remedy", "bench_aborts"),
    fault("bench os._exit", "failed", "exit code 7, before the run was done", "bench_exits"),
    fault("bench SIGKILL*", "failed", "SIGKILL.*Remedy: .*out-of-memory", "bench_dies"),
    fault("CUDA out of memory", "failed", "^OutOfMemoryError: CUDA out.*Remedy: lower batch_size",
          "cuda_out_of_memory"),
    fault("the loss becomes NaN", "finished", plant="loss_is_nan"),
    fault("100 MB on stdout*", "finished", plant="floods_stdout"),
    fault("an escapee that double-forks", "finished", plant="escapes"),
    fault("hang with the GIL held, Stop*", "stopped", plant="bench_hangs", **forced),
    fault("SIGINT ignored, Stop", "stopped", plant="ignores_stop", **forced),
    fault("bench SIGSTOP, Stop", "stopped", plant="bench_is_stopped", **forced),
    fault("Stop*", "stopped", do=after_steps(stop), **LONG),
    fault("Stop at once", "stopped", do=stop, **LONG),
    fault("Stop during import", "stopped", do=stop_during_import, **LONG),
    fault("bench killed from outside", "failed", "SIGKILL.*Remedy", do=kill("bench"), **LONG),
    fault("all but the kernel killed", "failed", "supervisor was killed",
          do=kill("worker", "bench", "supervisor"), **LONG),
    fault("supervisor of an escapee killed*", "failed", "supervisor was killed", "escapes",
          kill("supervisor"), **LONG),
]  # fmt: skip


@pytest.mark.parametrize("fault", sampled(FAULTS))
def test_a_fault_ends_the_run_as_it_must_and_leaves_nothing(fault):
    run = launch(WITH_WORKERS.but(**fault.knobs), fault=planted(fault.plant))
    acted = fault.do(run)
    run.wait()
    wait_until(lambda: not processes_of(run.path))
    over = now_ns()
    last = next((e["t_ns"] for e in map(run.event, ("error", "done")) if e), None)
    steps = run.steps_since(0)
    cleaned = (over - (acted or last or steps[-1]["t"][3])) / 1e9
    assert run.outcome == fault.outcome, run.error
    assert re.search(fault.says, run.error or "") if fault.says else run.error is None, run.error
    assert run.steps >= counted(run.path)
    assert [step["i"] for step in steps] == list(range(run.steps))
    assert cleaned < fault.limit_s + SLACK_S
    no_tools_in(run.path)
    pids = leftovers.logged_pids(run.path, "workers") | leftovers.logged_pids(run.path, "hello")
    for pid in pids:
        assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{pid}_")]
    assert load(run.path).steps == run.steps
    if fault.name == "Stop":
        assert run.event("end")["code"] == 130  # the bench left by itself
    if fault.plant == "loss_is_nan":
        assert run.loss[0] == run.loss[0] and run.to_dict()["loss"][-1] is None
    if fault.plant == "floods_stdout":
        assert (run.path / "bench.stdout").stat().st_size < 1e6  # its head and its tail


def test_steps_finished_before_a_kill_are_in_the_record():
    run = launch(QUICK.but(**LONG))
    wait_until(lambda: run.steps >= 15)
    bench = min(leftovers.logged_pids(run.path, "hello"))
    os.kill(bench, signal.SIGSTOP)  # hold it still between two writes of its log
    data = (run.path / "steps.ring").read_bytes()
    slots = [SLOT.unpack_from(data, at) for at in range(0, len(data) - SLOT.size + 1, SLOT.size)]
    os.kill(bench, signal.SIGKILL)
    assert run.wait().steps == max(slot[4] for slot in slots if slot[4] == slot[-1])


KERNEL = f"""
import labkit as lk
from labkit.results.launch import launch
run = launch(lk.{WITH_WORKERS.but(**LONG)!r}, fault={planted("escapes")!r})
print(run.path, run._process.process.pid, flush=True)
run.wait()
"""


@pytest.mark.parametrize("victims", ["kernel", "kernel and supervisor"])
def test_a_kernel_that_dies_takes_its_run_along(victims, tmp_path):
    """Where its supervisor dies too, the run that starts next sees to what is left."""
    env = os.environ | {"LABKIT_HOME": str(tmp_path)}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], env=env, stdout=-1, text=True)
    path, supervisor = kernel.stdout.readline().split()
    file = os.path.join(path, COUNT_NAME)
    wait_until(lambda: os.path.exists(file) and open(file, "rb").read() > b"\x09")
    kernel.kill()
    if "supervisor" in victims:
        os.kill(int(supervisor), signal.SIGKILL)
        kernel.wait()
        code = f"import labkit as lk; print(lk.run(lk.{QUICK!r}).outcome)"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout.strip() == "finished", done.stderr
    kernel.wait()
    wait_until(lambda: not processes_of(path) and not os.path.exists(f"{path}/launch.json"))
    run = load(path)
    assert run.outcome == "stopped"
    assert run.steps >= int.from_bytes(open(file, "rb").read(), "little")
    assert [step["i"] for step in run.steps_since(0)] == list(range(run.steps))
    no_tools_in(run.path)
