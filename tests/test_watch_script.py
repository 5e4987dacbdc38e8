"""A script is watched to its end, from inside or from outside, and so is what runs beside it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from planted import wait_until

import labkit as lk
from labkit.bench import gpu_meter, rank, telemetry
from labkit.diagnosis.outside_verdict import judge
from labkit.results.failures import with_remedy
from labkit.view.watch_command import watch_script
from labkit.watching import outside
from labkit.watching.outside import Sample

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
    telemetry = watch.last._recorder.probes.telemetry
    if telemetry is not None:
        time.sleep(0.3); print(telemetry.pid, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    wait_until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    )


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
@pytest.mark.parametrize("fails_at, rank", [(-1, "0"), (15, "0"), (-1, "1")])
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


A_BATCH_EACH = """
import time, torch
loader = torch.utils.data.DataLoader(torch.zeros(64, 4), 8, shuffle=True)
for step in range(TIMES):
    batch = next(iter(loader))
    time.sleep(PAUSE)
for each in range(2):  # as validation does
    for batch in loader:
        batch.sum()
"""


@pytest.mark.slow
def test_a_loop_that_makes_an_iterator_for_each_batch_is_told_to_keep_one(tmp_path):
    def found_of(times, pause):
        script = tmp_path / "train.py"
        script.write_text(A_BATCH_EACH.replace("TIMES", times).replace("PAUSE", pause))
        return json.loads(python("-m", "labkit", "watch", "--json", str(script)).stdout)

    found = found_of("20", "0")
    assert (found["bottleneck"], found["seen"]) == ("input", "inside")
    assert found["findings"][0]["cause"] == "one_batch_a_pass"
    assert "(train.py:5, 20 times)" in found["evidence"] and "worker" not in found["evidence"]
    assert "batches = iter(loader)" in found["findings"][0]["remedies"][0]["code"]
    for other in (found_of("20", "0.4"), found_of("2", "0")):  # a little cost; a glance
        assert "one_batch_a_pass" not in json.dumps(other["findings"])


# -- from outside --------------------------------------------------------------------------------

COMMAND = ["-m", "labkit", "watch"]


@pytest.mark.slow
@posix_signals
def test_with_json_the_verdict_is_the_only_thing_on_stdout_and_a_signal_is_told_as_by_a_shell():
    code = "import os, time; print(1, flush=True); time.sleep(1); os.kill(os.getpid(), 9)"
    done = python(*COMMAND, "--json", "--outside", "--", sys.executable, "-c", code)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode == 137
    assert found["confidence"] in ("none", "low", "medium") and "1\n" in done.stderr


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


def test_a_rank_on_a_gpu_has_its_own_card_sampled_into_its_own_log(tmp_path, monkeypatch):
    sampled = []
    monkeypatch.setattr(rank, "telemetry_beside", sampled.append)
    rank.watch_card(torch.device("cpu"), tmp_path, 0)
    rank.watch_card(torch.device("cuda", 1), tmp_path, 1)
    assert sampled == [tmp_path / "rank1"]


def test_other_programs_that_compute_on_the_card_are_named_and_none_that_draws(monkeypatch):
    own = os.getpid()
    other = os.getppid()
    computing = [SimpleNamespace(pid=pid) for pid in (own, other, 1)]
    for name in ("nvmlInit", "nvmlDeviceGetHandleByUUID"):
        monkeypatch.setattr(gpu_meter.pynvml, name, lambda *_: None)
    for kind, found in (("Compute", computing), ("Graphics", computing[2:])):
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        monkeypatch.setattr(gpu_meter.pynvml, name, lambda _, found=found: found)
    meter = gpu_meter.GpuMeter("GPU-0", own)
    meter.ancestors = set()
    assert meter.named_others() == [{"pid": other, "name": psutil.Process(other).name()}]
    assert meter._others() == 1
    meter.ancestors = {other}  # the kernel that the run was started from
    assert meter._others() == 0


def test_the_programs_that_use_most_of_the_cores_are_named_and_none_of_the_run(monkeypatch):
    spent_s = {1: 0.0, 50: 0.0, 51: 0.0, 60: 0.0, 61: 0.0}
    started_by = {1: 0, 50: 1, 51: 50, 60: 1, 61: 60}  # 50 is the run

    class Process:
        def __init__(self, pid):
            self.pid = pid

        def cpu_times(self):
            return SimpleNamespace(user=spent_s[self.pid], system=0.0)

        def ppid(self):
            return started_by[self.pid]

    processes = [Process(pid) for pid in spent_s]
    monkeypatch.setattr(telemetry.psutil, "process_iter", lambda: processes)
    monkeypatch.setattr(telemetry, "name_of", {60: "chrome", 61: "python"}.get)
    programs = telemetry.OtherPrograms({50})
    programs.use.looked_at -= 10
    spent_s |= {1: 0.5, 51: 10.0, 60: 4.0, 61: 9.0}
    found = [(each["pid"], each["name"], round(each["cores"], 1)) for each in programs.read()]
    assert found == [(61, "python", 0.9), (60, "chrome", 0.4)]


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: Can't get attribute 'Images' on <module '__main__' (built-in)>",
        "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly",
    ],
)
def test_a_notebooks_dataset_that_workers_do_not_know_has_two_remedies_and_none_is_memory(error):
    text = with_remedy(error)
    assert ".py file" in text and "multiprocessing_context='fork'" in text
    assert "memory" not in text
    assert "out-of-memory" in with_remedy("Loader worker 7 was killed (signal SIGKILL).")


def test_a_script_is_run_by_our_python_where_it_cannot_run_by_itself(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    found, code = watch_script([str(tmp_path / "train.py")])
    assert code == found.values["exit_code"] == 7 and found.values["command"][0] == sys.executable
    assert "failed (exit code 7) before a training step was seen" in found.text
    monkeypatch.setattr("labkit.view.watch_command._judged", lambda *_: 1 / 0)
    found, code = watch_script([str(tmp_path / "train.py")])
    assert code == found.values["exit_code"] == 7
    assert "the verdict failed (ZeroDivisionError" in found.text


def samples(main, workers=0.0, count=0, gpu=None, seconds=20, **of_card):
    card = {"own": True, "gpu_now": gpu, "gpu": [], "others_sm": None} | of_card
    gpus = {} if gpu is None and not of_card else {"GPU-1": card}
    return [
        Sample(i / 4, main, main, count * workers, workers, count, 0.0, 2.0, gpus)
        for i in range(4 * seconds)
    ]


def test_on_windows_a_process_runs_as_far_as_it_takes_cpu_time(monkeypatch):
    monkeypatch.setattr(outside, "STATUS_TELLS", False)
    this = psutil.Process()
    use = SimpleNamespace(look=lambda family: {this: 0.1}, looked_at=1.0)
    watcher = SimpleNamespace(use=use, root=this, start=0.0)
    assert outside.Outside._sample(watcher, [this], {this: 1.0}, {}).main_runs == 0.1


SHARED_CARD = samples(1.0, 0.1, 2, gpu=0.95, others_sm=0.7)
PART_OF_A_CARD = samples(1.0, 0.1, 2, memory_gib=2.0)


@pytest.mark.parametrize(
    "seen, bottleneck, confidence, says",
    [
        (samples(0.9, gpu=0.95), "compute", "medium", ""),
        (samples(0.95, 0.1, 4, gpu=0.3), "launch", "low", ""),
        (SHARED_CARD, "launch", "low", "25% of the time NVML saw a kernel running"),
        (PART_OF_A_CARD, "unsure", "none", "NVML tells nothing of its GPU"),
        (samples(0.1, 0.95, 2), "input", "medium", ""),
        ([], "unsure", "none", ""),
    ],
)
def test_the_verdict_from_outside_goes_as_far_as_the_evidence(seen, bottleneck, confidence, says):
    found = judge(seen)
    assert (found["bottleneck"], found["confidence"]) == (bottleneck, confidence)
    assert says in found["evidence"] and (says == "" or "no GPU" not in found["evidence"])
    assert says == "" or "on this CPU" not in found["advice"]
    assert "lk.watch(loader)" in found["advice"]
    json.dumps(found, allow_nan=False)
