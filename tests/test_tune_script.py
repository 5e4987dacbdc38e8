"""`labkit tune -- python train.py`: every answer is a run of the script, and none leaves anything.

The search is tested on made-up runs whose rates are known; what happens to a script, on real ones.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers import script_in

from labkit.results.hardware import Machine
from labkit.tuning.script_bench import NO_STEP, ScriptBench, runnable
from labkit.tuning.search import ScriptSearch
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import Outcome, Trial, of_loader

SCRIPT = """
import os, sys, time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return {length}
    def __getitem__(self, i):
        time.sleep({item_s})
        return torch.full((8,), float(i)), i % 2
def feed_itself():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for step in range(10**9):
        optimizer.step()
def main():
    {first}
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers={workers})
    for epoch in range({epochs}):
        for inputs, targets in loader:
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            {step}
if __name__ == "__main__":
    try:
        main()
    finally:
        {last}
"""
USUAL = {
    "length": 100_000,
    "item_s": 0.004,
    "workers": 0,
    "epochs": 1,
    "first": "pass",
    "step": "pass",
    "last": "pass",
}


def command_of(folder, **parts):
    return [sys.executable, str(script_in(folder, SCRIPT.format(**USUAL | parts)))]


def looked(folder, seconds=0.3, **parts):
    """Return what has run a script once as it is, and what it has found."""
    bench, tuning = ScriptBench(command_of(folder, **parts), seconds), Tuning("train.py", {})
    bench.look(tuning)
    return bench, tuning


def left_over(folder):
    """Return the processes that still run a script, and its shared memory."""
    running = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    named = [path.name.split("_") for path in Path("/dev/shm").glob("torch_[0-9]*")]
    shared = [name for name in named if not psutil.pid_exists(int(name[1]))]  # torch_<pid>_...
    return [line for line in running if str(folder) in " ".join(line)], shared


@pytest.mark.measures
def test_a_script_is_run_as_it_is_then_with_workers_and_nothing_is_left(tmp_path):
    kept = tmp_path / "folders"
    first = f"folder = os.environ['LABKIT_TUNE_DIR']; open({str(kept)!r}, 'a').write(folder + ';');"
    first += " open(folder + '/model.pt', 'w').close()"
    bench, tuning = looked(tmp_path, 0.5, first=first)
    assert tuning.loader == "train.py:17" and tuning.start["num_workers"] == 0
    alone = tuning.tried[0].rate
    more = bench.measure({"num_workers": 4, "library_threads": 1}).rate
    ready = bench.measure({"ready": True}).rate
    assert 2 * alone < more < ready  # items that wait
    assert left_over(tmp_path) == ([], [])
    folders = kept.read_text().split(";")[:-1]  # a scratch folder for each run
    assert len({*folders}) == len(folders) and not any(map(os.path.exists, folders))


def test_a_script_may_clean_up_once_and_is_killed_where_it_does_not_end(tmp_path, monkeypatch):
    note = tmp_path / "note"
    wrote = f"open({str(note)!r}, 'a').write(sys.exc_info()[0].__name__ + ' ')"
    looked(tmp_path, last=wrote)
    assert note.read_text() == "KeyboardInterrupt "
    monkeypatch.setattr("labkit.tuning.script_bench.GRACE_S", 0.5)
    _, tuning = looked(tmp_path, workers=2, last="time.sleep(600)")
    assert tuning.tried[0].outcomes[0].seconds < 60
    processes, shared = left_over(tmp_path)
    assert not processes and not shared


@pytest.mark.parametrize(
    "parts, said",
    [
        ({"first": "input('which one?')"}, "asks something on stdin"),
        ({"first": "raise OSError('no data')"}, "the script failed (exit code 1): OSError: no"),
        ({"length": 40}, "to compare: give it more epochs or data"),
        ({"first": "feed_itself()"}, NO_STEP),
    ],
)
def test_what_cannot_be_tuned_says_why(tmp_path, parts, said, monkeypatch):
    longest_s = 5 if said is NO_STEP else 20
    monkeypatch.setattr("labkit.tuning.script_bench.FIRST_STEP_S", longest_s)
    with pytest.raises(RuntimeError) as refused:
        looked(tmp_path, **parts)
    assert said in str(refused.value)
    assert not left_over(tmp_path)[0]


def test_a_command_that_is_none_is_refused_before_anything_runs():
    for command in ([], ["--"], ["no-such-program", "train.py"]):
        with pytest.raises(ValueError, match="labkit tune -- python"):
            runnable(command)


def test_the_terminal_says_what_will_happen_and_a_copy_keeps_the_folder_as_it_is(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    command_of(folder, first="open('checkpoint', 'w').close()", item_s=0, step="time.sleep(0.05)")
    line = [sys.executable, "-m", "labkit", "tune", "--json", "--seconds", "0.3", "--cwd-copy"]
    done = subprocess.run(
        [*line, "--", sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "again and again" in done.stderr and "in a copy of this folder" in done.stderr
    assert [each.name for each in folder.iterdir()] == ["train.py"], done.stderr
    found = json.loads(done.stdout)
    assert found["command"].endswith("train.py") and found["diagnosis"]
    assert found["loader"] == "train.py:17" and found["ready_batches"] > 0
    assert {"limit", "environment", "speedup", "speedup_range"} <= set(found)


@pytest.mark.slow
def test_a_ctrl_c_in_the_middle_keeps_what_is_known_and_leaves_nothing(tmp_path):
    home = tmp_path / "home"
    named = "torch.multiprocessing.set_sharing_strategy('file_system')"  # segments and sockets
    command_of(tmp_path, first=f"torch.set_num_threads(1); {named}", workers=1, item_s=0.02)
    scratch = Path(tempfile.mkdtemp())  # short: the path of a socket has 108 characters at most
    line = [sys.executable, "-m", "labkit", "tune", "--seconds", "0.3", "--"]
    tuning = subprocess.Popen(
        [*line, sys.executable, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "LABKIT_HOME": str(home),
            "TMPDIR": str(scratch),
        },
    )
    said = []
    for said_line in tuning.stdout:
        said.append(said_line)
        if said_line.startswith("ready batches"):  # the next run has begun, or is about to
            break
    until = time.monotonic() + 60
    while not psutil.Process(tuning.pid).children(recursive=True) and time.monotonic() < until:
        assert tuning.poll() is None, said
    for _ in range(2):  # impatient
        tuning.send_signal(signal.SIGINT)
        time.sleep(0.1)
    said = "".join([*said, *tuning.stdout])
    assert tuning.wait() in (130, -signal.SIGINT), said  # 130 for a shell
    assert "this is what was done by then" in said and "nothing faster so far" in said
    assert "ready batches" in said.partition("this is what was done by then")[2]
    assert "import torch" not in said  # there is nothing to paste
    assert left_over(tmp_path) == ([], [])
    assert not [*home.glob("runs/*")] and not [*scratch.glob("torch-shm-dir*")]
    shutil.rmtree(scratch)


def searched(rates, *, others=lambda _run: 0.0, budget_s=600.0, start=0):
    """Return the tuning of a script whose samples/s are `rates(knobs)`, and how often it ran."""
    runs = []

    def measure(knobs, _rate, whole=False):
        runs.append(knobs)
        return Outcome(rates(knobs), seconds=0.01, others=others(len(runs)))

    knobs = of_loader({"num_workers": start})
    first = Trial(dict(knobs), outcomes=[measure(knobs, None)])
    tuning = Tuning("train.py", knobs, command="python train.py", tried=[first])
    tuning.loader = "train.py:9"
    bench = SimpleNamespace(measure=measure, epochs=False)
    search = ScriptSearch(tuning, bench, Machine(device="cpu"), budget_s)
    return search.run(), len(runs)


def test_where_ready_batches_gain_nothing_two_runs_say_so():
    tuning, runs = searched(lambda knobs: 105 if knobs.get("ready") else 100)
    assert runs == 2 and not tuning.changes and "not what holds this loop back" in tuning.headline
    assert tuning.to_dict()["limit"] != "loader"


def waiting(knobs):
    """Items that wait: each worker brings its whole, up to what the model takes."""
    return 1000 if knobs.get("ready") else min(600, 100 * max(1, knobs["num_workers"]))


def threaded(knobs):
    """Workers whose library takes every core: one thread each is what they lack."""
    if knobs.get("ready"):
        return 2000
    if not knobs["num_workers"]:
        return 300
    return 100 * min(4, knobs["num_workers"]) if knobs.get("library_threads") else 20


@pytest.mark.parametrize(
    "rates, start, changes",
    [
        (waiting, 0, {"num_workers": 6, "prefetch_factor": 2}),
        (threaded, 2, {"num_workers": 4, "library_threads": 1}),
    ],
)
def test_the_cheapest_change_that_ties_is_confirmed_in_pairs(rates, start, changes):
    tuning, runs = searched(rates, start=start)
    assert tuning.changes == changes and len(tuning.pairs) == 3 and runs < 30
    for name, value in changes.items():
        assert f"{name}={value}" in tuning.headline
        assert str(value) in tuning.snippet


def one_worker(knobs):
    """Only the one worker that there is does any good."""
    return (900 if knobs.get("ready") else 600) - 500 * (knobs["num_workers"] != 1)


@pytest.mark.parametrize(
    "rates, start, said",
    [
        (waiting, 12, "nothing gained beyond the noise"),
        (lambda knobs: 900 if knobs.get("ready") else 100, 2, "nothing gained beyond the noise"),
        (one_worker, 1, "nothing that was tried"),
    ],
)
def test_nothing_is_recommended_that_does_not_gain_in_pairs(rates, start, said):
    tuning, _ = searched(rates, start=start)
    assert not tuning.changes and not tuning.snippet and said in str(tuning)


def test_a_pair_with_other_neighbours_is_measured_again_and_a_shared_machine_is_said():
    tuning, alone = searched(waiting)
    loud, more = searched(waiting, others=lambda run: 0.5 * (run == alone))
    assert more == alone + 2 and len(loud.pairs) == 3
    assert "50% of the cores: only the pairs count" in str(loud)
    assert "Other programs" not in str(tuning)


def test_what_the_budget_leaves_out_is_said():
    tuning, runs = searched(waiting, budget_s=0.0)
    assert runs == 2 and "The budget is spent" in str(tuning) and "--budget" in str(tuning)
    assert not tuning.changes and tuning.ready_batches == 10
