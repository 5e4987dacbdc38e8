"""A script is watched to its end, from inside or from outside, and so is what runs beside it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
import torch
from planted import wait_until
from played_gpu import CPU, lines_of, written

import labkit as lk
from labkit.bench import gpu_meter, rank, telemetry
from labkit.diagnosis.outside_verdict import judge
from labkit.diagnosis.watched_script import one_batch_a_pass
from labkit.results.failures import with_remedy
from labkit.view.watch_command import watch_script
from labkit.watching import outside
from labkit.watching.outside import Sample

posix_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="telemetry beside a watch is for Linux")
def test_the_telemetry_does_not_outlive_a_process_that_is_killed():
    code = """
import time
from labkit.view.watch_live import watch
for i in watch(range(10**9)):
    time.sleep(0.01)
    telemetry = watch.last._recorder.probes.telemetry
    if telemetry is not None:
        time.sleep(0.3); print(telemetry.pid, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
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
@pytest.mark.parametrize("fails_at, rank", [(-1, "0"), (15, "1")])
def test_a_script_keeps_its_output_and_ends_with_its_diagnosis(
    fails_at, rank, tmp_path, monkeypatch
):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    command = [sys.executable, "-c", SCRIPT, str(fails_at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    run = lk.load(max((tmp_path / "runs").iterdir()))
    if rank == "0":
        assert done.returncode == 0 and done.stdout == "trained\n" and run.steps == 40, done.stderr
        assert "epoch 2" in done.stderr and "Bottleneck " in done.stderr
        return
    assert done.returncode == 1 and "ValueError: my own mistake" in done.stderr
    assert run.outcome == "failed" and "my own mistake" in run.error and run.steps == 35
    assert done.stderr.startswith("Traceback")  # other ranks of a distributed training keep quiet


A_BATCH_EACH = """
import torch
loader = torch.utils.data.DataLoader(torch.zeros(64, 4), 8, shuffle=True)
for step in range(20):
    batch = next(iter(loader))
for each in range(2):  # as validation does
    for batch in loader:
        batch.sum()
"""


@pytest.mark.slow
def test_a_loop_that_makes_an_iterator_for_each_batch_is_told_to_keep_one(tmp_path, labkit_command):
    script = tmp_path / "train.py"
    script.write_text(A_BATCH_EACH)
    found = json.loads(labkit_command("watch", "--json", script).stdout)
    assert (found["bottleneck"], found["seen"]) == ("input", "inside")
    assert found["findings"][0]["cause"] == "one_batch_a_pass"
    assert "(train.py:5, 20 times)" in found["evidence"]
    assert "batches = iter(loader)" in found["findings"][0]["remedies"][0]["code"]


@pytest.mark.parametrize("count, apart, costs", [(20, 6, True), (20, 400, False), (2, 6, False)])
def test_a_glance_at_a_loader_or_a_little_cost_is_no_iterator_for_each_batch(
    count, apart, costs, tmp_path
):
    passes = [
        {"event": "pass", "n": number, "began": number * apart, "ended": number * apart + 5}
        for number in range(count)
    ]
    folder = tmp_path / "0-1-loop"
    folder.mkdir()
    written(folder / "events.jsonl", lines_of(CPU, {"num_workers": 0}, *passes))
    assert bool(one_batch_a_pass(tmp_path)) == costs


# -- from outside --------------------------------------------------------------------------------


@pytest.mark.slow
@posix_signals
def test_with_json_the_verdict_is_the_only_thing_on_stdout_and_a_signal_is_told_as_by_a_shell(
    labkit_command,
):
    code = "import os, time; print(1, flush=True); time.sleep(1); os.kill(os.getpid(), 9)"
    done = labkit_command("watch", "--json", "--outside", "--", sys.executable, "-c", code)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode == 137
    assert "1\n" in done.stderr


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
    child = subprocess.Popen(
        [sys.executable, "-m", "labkit", "watch", "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as nohup does
    )
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
    nvml = Mock()
    nvml.nvmlDeviceGetComputeRunningProcesses.return_value = computing
    nvml.nvmlDeviceGetGraphicsRunningProcesses.return_value = computing[2:]
    monkeypatch.setattr(gpu_meter, "pynvml", nvml)
    meter = gpu_meter.GpuMeter("GPU-0", own)
    meter.ancestors = set()
    assert meter.named_others() == [{"pid": other, "name": psutil.Process(other).name()}]
    meter.ancestors = {other}  # the kernel that the run was started from
    assert meter.named_others() == []


def test_the_programs_that_use_most_of_the_cores_are_named_and_none_of_the_run(monkeypatch):
    def process(pid, parent, spent_s):
        times = [SimpleNamespace(user=seconds, system=0.0) for seconds in (0.0, spent_s)]
        return Mock(pid=pid, **{"ppid.return_value": parent, "cpu_times.side_effect": times})

    init = process(1, 0, 0.5)
    run = [process(50, 1, 3.0), process(51, 50, 10.0)]
    others = [process(60, 1, 4.0), process(61, 60, 9.0)]
    monkeypatch.setattr(telemetry.psutil, "process_iter", lambda: [init, *run, *others])
    monkeypatch.setattr(telemetry, "name_of", {60: "chrome", 61: "python"}.get)
    programs = telemetry.OtherPrograms({50})
    programs.use.looked_at -= 10
    found = [(each["pid"], each["name"], round(each["cores"], 1)) for each in programs.read()]
    assert found == [(61, "python", 0.9), (60, "chrome", 0.4)]


def test_a_notebooks_dataset_that_workers_do_not_know_has_two_remedies_and_none_is_memory():
    for error in (
        "AttributeError: Can't get attribute 'Images' on <module '__main__' (built-in)>",
        "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly",
    ):
        text = with_remedy(error)
        assert ".py file" in text and "multiprocessing_context='fork'" in text
        assert "memory" not in text
    assert "out-of-memory" in with_remedy("Loader worker 7 was killed (signal SIGKILL).")


def test_a_script_is_run_by_our_python_where_it_cannot_run_by_itself(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    for says in ("failed (exit code 7) before a training step was seen", "ZeroDivisionError"):
        found, code = watch_script(["train.py"])
        assert code == found.values["exit_code"] == 7 and says in found.text
        assert found.values["command"] == [Path(sys.executable).name, "train.py"]
        monkeypatch.setattr("labkit.view.watch_command._judged", lambda *_: 1 / 0)


def samples(main, workers=0.0, count=0, **card):
    """Return 20 s of samples from outside: cores of the script and of `count` workers, a card."""
    known = {"own": True, "gpu_now": None, "gpu": [], "others_sm": None}
    gpus = {"GPU-1": known | card} if card else {}
    return [
        Sample(i / 4, main, main, count * workers, workers, count, 0.0, 2.0, gpus)
        for i in range(80)
    ]


def test_on_windows_a_process_runs_as_far_as_it_takes_cpu_time(monkeypatch):
    monkeypatch.setattr(outside, "STATUS_TELLS", False)
    this = psutil.Process()
    use = SimpleNamespace(look=lambda family: {this: 0.1}, looked_at=1.0)
    watcher = SimpleNamespace(use=use, root=this, start=0.0)
    assert outside.Outside._sample(watcher, [this], {this: 1.0}, {}).main_runs == 0.1


@pytest.mark.parametrize(
    "seen, bottleneck, confidence, says",
    [
        (samples(0.9, gpu_now=0.95), "compute", "medium", "95% of the time NVML"),
        (
            samples(1.0, 0.1, 2, gpu_now=0.95, others_sm=0.7),
            "launch",
            "low",
            "25% of the time NVML",
        ),
        (samples(1.0, 0.1, 2, memory_gib=2.0), "unsure", "none", "NVML tells nothing of its GPU"),
        (samples(0.1, 0.95, 2), "input", "medium", "no GPU in use"),
        ([], "unsure", "none", ""),
    ],
)
def test_the_verdict_from_outside_goes_as_far_as_the_evidence(seen, bottleneck, confidence, says):
    found = judge(seen)
    assert (found["bottleneck"], found["confidence"]) == (bottleneck, confidence)
    assert says in found["evidence"] and "on this CPU" not in found["advice"]
    assert "lk.watch(loader)" in found["advice"]
    json.dumps(found, allow_nan=False)
