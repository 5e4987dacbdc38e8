"""A script is watched to its end, by a process in its place, and so is what runs beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import psutil
import pytest
from helpers import script_in
from planted import wait_until

import labkit as lk
from labkit.results.failures import with_remedy
from labkit.view.watch_command import watch_script

posix_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="telemetry beside a watch is for Linux")
@pytest.mark.parametrize("by", [[], ["-m", "labkit", "watch", "--", sys.executable]])
def test_telemetry_is_no_child_of_the_script_and_does_not_outlive_it_when_it_is_killed(by):
    code = """
import os, psutil, time
from labkit import watch
def telemetry():
    for each in psutil.process_iter(["cmdline", "cwd"]):
        if "labkit.instruments.telemetry" in (each.info["cmdline"] or ()):
            if each.info["cwd"] == str(watch.last._recorder.folder): return each.pid
for i in watch(range(10**9), live=False):
    time.sleep(0.02)
    if i % 20 == 19 and (found := telemetry()):
        try: os.waitpid(-1, os.WNOHANG)
        except ChildProcessError: print(found, flush=True)
        os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, *by, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120
    )
    pid = int(done.stdout)
    wait_until(lambda: not psutil.pid_exists(pid))


KILLED = """
import os, pathlib, time
from labkit.view.watch_live import watch
for i in watch(range(10**9), live=False):
    time.sleep(0.001)
    if i > 900:  # and as soon as some steps are in the ring alone
        [log] = pathlib.Path(os.environ["LABKIT_HOME"]).rglob("events.jsonl")
        if log.read_text().count('"event":"step"') < i:
            print(i, flush=True)
            os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX kills")
def test_a_script_that_is_killed_has_all_its_finished_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, timeout=120)
    assert done.returncode == -9
    [folder] = (tmp_path / "runs").iterdir()
    assert lk.load(folder).steps == int(done.stdout) and lk.load(folder).steps == int(done.stdout)
    assert not (folder / "steps.ring").exists()


SCRIPT = """
import sys, time
from labkit import watch
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
    assert found["bottleneck"] == "input"
    assert "a new iterator is made for each batch (20 times)" in found["text"]


# -- a process in the script's place ---------------------------------------------------------------


@pytest.mark.slow
@posix_signals
def test_with_json_the_verdict_is_the_only_thing_on_stdout_and_a_signal_is_told_as_by_a_shell(
    labkit_command,
):
    code = "import os, time; print(1, flush=True); time.sleep(1); os.kill(os.getpid(), 9)"
    done = labkit_command("watch", "--json", "--", sys.executable, "-c", code)
    found = json.loads(done.stdout)
    assert done.returncode == 137
    assert "1\n" in done.stderr and "failed (SIGKILL)" in found["text"]


def begun(code, **how):
    """Start to watch some code that says "up", in a session of its own."""
    command = [sys.executable, "-m", "labkit", "watch", "--", sys.executable, "-c", code]
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **how
    )
    assert child.stdout.readline() == "up\n"
    return child


NOTE_SIGNALS = """
import collections, json, signal, time
seen = collections.Counter()
for name in %s:
    signal.signal(getattr(signal, name), lambda number, _: seen.update([number]))
print("up", flush=True)
while not seen[signal.SIGUSR2]: time.sleep(0.02)
time.sleep(0.3)
print(json.dumps(seen))
raise SystemExit(5)
"""


@pytest.mark.slow
@posix_signals
@pytest.mark.parametrize("to", ["kill", "killpg"])
def test_every_signal_reaches_the_script_once_whether_it_is_sent_to_us_or_to_our_group(to):
    names = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]
    child = begun(NOTE_SIGNALS % names)
    numbers = [getattr(signal, name) for name in names]
    # as under nohup, or behind an `&`
    numbers = [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]
    for number in numbers:
        getattr(os, to)(child.pid, number)
        time.sleep(0.15)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 5
    assert json.loads(said) == {str(int(number)): 1 for number in numbers}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it goes on")
def test_the_script_ends_with_us_where_we_are_killed():
    child = begun("import os, time; print('up\\n', os.getpid(), flush=True); time.sleep(99)")
    script = int(child.stdout.readline())
    child.kill()
    child.communicate()
    wait_until(lambda: not psutil.pid_exists(script))


OPEN_FILES = """
import os
for each in sorted(os.listdir("/proc/self/fd")):
    try: print(each, os.path.basename(os.readlink("/proc/self/fd/" + each)), file=file)
    except OSError: pass
try: os.write(3, b"three")
except OSError: pass
raise SystemExit(4)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="open files are in /proc")
def test_the_script_has_the_same_open_files_as_without_us(tmp_path):
    (tmp_path / "files.py").write_text(f"file = open('seen', 'w'){OPEN_FILES}")
    python = f"{sys.executable} -S files.py >out 2>err 3>log <<<typed 4< <(echo made)"
    seen = []
    for command in (python, f"{sys.executable} -m labkit watch -- {python}"):
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=60)
        assert done.returncode == 4
        seen.append((tmp_path / "seen").read_text().replace("pipe:", "").split())
    named = [[word for word in words if not word.startswith("[")] for words in seen]
    assert named[0] == named[1]


@pytest.mark.parametrize(
    "command, says",
    [
        ([sys.executable, "-I", "-c", "1"], "hook was not loaded"),
        (["true"], "hook was not loaded"),
        ([sys.executable, "-c", "1"], "no loader seen here"),
    ],
)
@pytest.mark.slow
@posix_signals
def test_what_could_not_be_watched_has_its_reason_and_is_no_verdict(command, says):
    found, code = watch_script(command)
    assert (code, found["bottleneck"], found["findings"]) == (0, None, [])
    assert says in found["text"] and "lk.watch(loader)" in found["text"]


def test_a_script_runs_plainly_where_nothing_can_be_recorded_and_that_is_said_once(
    monkeypatch, capfd
):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("labkit.process.folders.new_run", full)
    code = "import os, sys; print('LABKIT_WATCHING' in os.environ); sys.exit(6)"
    found, exit_code = watch_script([sys.executable, "-c", code])
    said = capfd.readouterr()
    assert exit_code == 6 and said.out == "False\n" and not said.err
    assert "not recorded: [Errno 28] No space left" in found["text"]


OWN_LABKIT = """
import labkit, sys
from torch.utils.data import DataLoader
for batch in DataLoader(range(80), 4): pass
import labkit.sub
assert labkit.MINE and labkit.sub.__file__.startswith(sys.path[0])
assert not [name for name in sys.modules if name.startswith("labkit.") and name != "labkit.sub"]
"""


@pytest.mark.slow
def test_a_script_keeps_a_labkit_of_its_own_and_is_told_why_it_is_not_watched(
    tmp_path, labkit_command
):
    package = tmp_path / "labkit"
    package.mkdir()
    (package / "sub.py").write_text("")
    (package / "__init__.py").write_text("MINE = 1\n")
    (tmp_path / "train.py").write_text(OWN_LABKIT)
    done = labkit_command("watch", "--json", "--", sys.executable, tmp_path / "train.py")
    found = json.loads(done.stdout)
    assert (done.returncode, found["record"]) == (0, None), done.stderr
    assert "another labkit" in str(found["text"])


WATCHED_TWICE = """
import os, torch
from labkit import watch
from torch.utils.data import DataLoader
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in watch(DataLoader(torch.randn(80, 8), 4)):
    net(batch).square().mean().backward()
    optimizer.step()
runs = [each for each in os.scandir(os.environ["LABKIT_WATCHING"]) if each.is_dir()]
assert len(runs) == 1 and watch.last.run.steps == 20
"""


@pytest.mark.slow
def test_a_loop_that_the_script_watches_itself_has_one_record(tmp_path, labkit_command):
    script = script_in(tmp_path, WATCHED_TWICE)
    done = labkit_command("watch", "--json", "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert lk.load(json.loads(done.stdout)["record"]).steps == 20
    assert done.stderr.count("labkit") == 0


def test_a_notebooks_dataset_that_workers_do_not_know_has_two_remedies_and_none_is_memory():
    for error in (
        "AttributeError: Can't get attribute 'Images' on <module '__main__' (built-in)>",
        "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly",
    ):
        text = with_remedy(error)
        assert ".py file" in text and "multiprocessing_context='fork'" in text
        assert "memory" not in text
    assert "out-of-memory" in with_remedy("Loader worker 7 was killed (signal SIGKILL).")
