"""A script is watched to its end, and so is what runs beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import labkit as lk
from labkit.bench import gpu_meter
from labkit.results.failures import with_remedy
from labkit.view.watch_command import watch_script

ROOT = Path(__file__).parents[1]
posix_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


def environment(home):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"LABKIT_HOME": str(home), "PYTHONPATH": path}


def python(*arguments, home=os.environ["LABKIT_HOME"], **more):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(home),
        **more,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="telemetry beside a watch is for Linux")
def test_the_telemetry_does_not_outlive_a_process_that_is_killed(tmp_path):
    code = """
import time
from labkit.view.watch_live import watch
for i in watch(range(10**9)):
    time.sleep(0.01)
    telemetry = watch.last._recorder.telemetry
    if telemetry is not None:
        time.sleep(0.3); print(telemetry.pid, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


SCRIPT = """
import sys, time
from labkit.view.watch_live import watch
batches = list(range(20))
for epoch in range(2):
    for i in watch(batches):
        time.sleep(0.002)
        if epoch == 1 and i == int(sys.argv[1]): raise ValueError('my own mistake')
assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules
print('trained')
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fails_at", "rank"), [(-1, "0"), (15, "0"), (-1, "1")])
def test_a_script_keeps_its_output_and_ends_with_its_diagnosis(
    fails_at, rank, tmp_path, monkeypatch
):
    monkeypatch.setenv("RANK", rank)
    done = python("-c", SCRIPT, str(fails_at), home=tmp_path)
    run = lk.load(max((tmp_path / "runs").iterdir()))
    if fails_at > 0:
        assert done.returncode == 1 and "ValueError: my own mistake" in done.stderr
        assert run.outcome == "failed" and "my own mistake" in run.error and run.steps == 35
        return
    assert done.returncode == 0 and done.stdout == "trained\n" and run.steps == 40, done.stderr
    if rank == "0":
        assert "epoch 2" in done.stderr and "Bottleneck " in done.stderr
    else:  # other ranks of a distributed training record and keep quiet
        assert done.stderr == ""


# -- the command ---------------------------------------------------------------------------------

COMMAND = ["-m", "labkit", "watch"]


@pytest.mark.slow
@posix_signals
def test_with_json_the_verdict_is_the_only_thing_on_stdout_and_a_signal_is_told_as_by_a_shell():
    code = "import os, time; print(1, flush=True); time.sleep(1); os.kill(os.getpid(), 9)"
    done = python(*COMMAND, "--json", "--", sys.executable, "-c", code)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode == 137
    assert (found["bottleneck"], found["seen"]) == ("unsure", "nothing") and "1\n" in done.stderr
    assert "lk.watch(loader)" in found["advice"]


@pytest.mark.slow
@posix_signals
@pytest.mark.parametrize("to", ["kill", "killpg"])
def test_an_interrupt_reaches_the_script_once_and_an_ignored_hangup_never(to):
    code = (
        "import signal, time\nsignal.signal(signal.SIGHUP, signal.getsignal(signal.SIGHUP))\n"
        "seen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('up', flush=True)\n"
        "while not seen: time.sleep(0.05)\n"
        "time.sleep(1)\nraise SystemExit(3 + len(seen))\n"
    )
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        child = subprocess.Popen(
            [sys.executable, *COMMAND, "--", sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(os.environ["LABKIT_HOME"]),
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert child.stdout.readline() == "up\n"
    os.kill(child.pid, signal.SIGHUP)
    getattr(os, to)(child.pid, signal.SIGINT)
    assert child.wait(60) == 4
    assert "labkit watch: bottleneck" in child.stderr.read()


def test_other_processes_on_the_card_are_named(monkeypatch):
    own = os.getpid()
    other = os.getppid()
    running = [SimpleNamespace(pid=own), SimpleNamespace(pid=other)]
    monkeypatch.setattr(gpu_meter.pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: running)
    meter = gpu_meter.GpuMeter.__new__(gpu_meter.GpuMeter)
    meter.card = None
    meter.own_pid = own
    meter.ancestors = set()
    assert meter.named_others() == [{"pid": other, "name": psutil.Process(other).name()}]
    assert meter._others() == 1
    meter.ancestors = {other}  # the kernel that the run was started from
    assert meter._others() == 0


@pytest.mark.parametrize("error", [
    "AttributeError: Can't get attribute 'Images' on <module '__main__' (built-in)>",
    "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly",
])  # fmt: skip
def test_a_notebooks_dataset_that_workers_do_not_know_has_two_remedies_and_none_is_memory(error):
    text = with_remedy(error)
    assert ".py file" in text and "multiprocessing_context='fork'" in text
    assert "memory" not in text
    assert "out-of-memory" in with_remedy("Loader worker 7 was killed (signal SIGKILL).")


@pytest.mark.parametrize("command", [["--"], ["--", "no-such-command"]])
def test_a_command_that_cannot_be_started_is_bad_input(command):
    with pytest.raises(ValueError, match="give the script to watch|cannot start 'no-such-command'"):
        watch_script(command)


def test_a_script_is_run_by_our_python_where_it_cannot_run_by_itself(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    found, text = watch_script([str(tmp_path / "train.py")])
    assert found["exit_code"] == 7 and found["command"][0] == sys.executable
    assert "failed (exit code 7) before a training step was seen" in text
    monkeypatch.setattr("labkit.view.watch_command._judged", lambda *_: 1 / 0)
    found, text = watch_script([str(tmp_path / "train.py")])
    assert found["exit_code"] == 7 and "the verdict failed (ZeroDivisionError" in text
