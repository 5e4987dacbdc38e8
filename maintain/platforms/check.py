"""What labkit promises on every system, step by step; `.github/workflows/ci.yml` runs these steps.

`python maintain/platforms/check.py [--start spawn] [--without-posix] [STEP ...]` runs the named
steps, or all of them, with another start method or without the names that Windows lacks.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent
PATIENCE_S = 20.0  # until the last process of a run is gone
TINY = {"dataset": "sleep", "prep_ms": 5, "model": "mlp", "width": 32, "depth": 1, "xray": False}

DATASET = """
import asyncio, time
import torch
import labkit as lk

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.full((3, 8, 8), i / 64), i % 10

def step(batch):
    return model(batch[0].flatten(1)).square().mean()

model = torch.nn.Linear(192, 10)
"""
TUNE = """
tuning = lk.tune(Images(), batch_size=8, seconds=0.5, max_workers=2)
failed = {trial.what: trial.error for trial in tuning.tried if trial.error}
assert tuning.speedup >= 1 and not failed, failed
"""
# A row that ends out of memory leaves the next one a fresh process, or this one
MEASURE = """
def epoch(bench, workers):
    if workers == 0:
        raise MemoryError("out of memory")
    batches = torch.utils.data.DataLoader(Images(), batch_size=8, num_workers=workers)
    return {"batches": len(list(batches))}

rows = lk.measure(epoch, workers=[0, 1]).rows
assert "out of memory" in rows.error[0] and rows.batches[1] == 8, rows.to_string()
"""
PANEL = """
async def press():
    shown = lk.panel(lk.Pipeline(num_workers=2, seconds=0.5, xray=False))
    shown.run_button.click()
    await asyncio.wait_for(shown.task, 100)
    assert shown.run.outcome == "finished" and shown.run.throughput, shown.run

asyncio.run(press())
"""
# In a cell a worker that is started anew cannot find the class; in a file it can
WATCH = """
if __name__ == "__main__":
    watch = lk.watch(torch.utils.data.DataLoader(Images(), batch_size=8, num_workers=2), live=False)
    try:
        for images, labels in watch:
            step((images, labels)).backward()
    except Exception:
        assert IN_A_CELL and torch.multiprocessing.get_start_method() != "fork"
        error = watch.run.error
        assert "move the dataset to a .py file" in error and "memory" not in error, error
    else:
        assert watch.run.steps == 8, watch.run
"""
ENDLESS = """
import time
import labkit as lk
run = lk.run(lk.Pipeline(**{knobs}), wait=False)
while run.running and run.steps < 5:
    time.sleep(0.05)
print(run.path, flush=True)
assert run.running, (run.error, run.event("error"))
{then}
"""


def python(*arguments):
    """Run Python; return what it prints, or end the step with what it says."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def machine():
    """The machine is described, its own command too."""
    found = json.loads(python("-m", "labkit", "machine", "--json"))
    assert found["device"] and found["cpu_cores"] >= 1, found


def runs():
    """A run without and with workers measures, and every line of its log is whole."""
    for workers in (0, 2):
        knobs = [f"--set={name}={value}" for name, value in TINY.items() if name != "xray"]
        knobs += [f"--set=num_workers={workers}", "--set=seconds=2", "--set=xray=false"]
        run = json.loads(python("-m", "labkit", "run", *knobs, "--json"))
        assert run["outcome"] == "finished" and run["steps"] > 20 and run["throughput"], run
        log = Path(os.environ["LABKIT_HOME"], "runs", run["id"], "events.jsonl")
        events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        assert sum(event["event"] == "step" for event in events) == run["steps"]


def watch():
    """A loop over a dataset of a file is recorded; of a cell, or the remedies are named."""
    python("-c", "IN_A_CELL = True" + DATASET + WATCH)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text("IN_A_CELL = False" + DATASET + WATCH)
        python(script)


def of_run(folder):
    """Return the processes that were started for the run in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LABKIT_RUN") == folder:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def nobody_left(folder):
    """Wait until the run's last process is gone."""
    deadline = time.monotonic() + PATIENCE_S
    while left := of_run(folder):
        assert time.monotonic() < deadline, [process.cmdline() for process in left]
        time.sleep(0.1)


def endless(then):
    """Start a kernel whose run does not end; return it, and the run's folder."""
    knobs = TINY | {"num_workers": 2, "seconds": None, "steps": 10**6}
    code = ENDLESS.format(knobs=knobs, then=then)
    kernel = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = kernel.stdout.readline().strip()
    assert of_run(folder), "the run ended before it was stopped"
    return kernel, folder


def stop():
    """Stop ends a run, and leaves no process."""
    kernel, folder = endless("input(); run.stop(); print(run.outcome)")
    said, _ = kernel.communicate("\n", timeout=60)
    assert said.strip() == "stopped" and kernel.returncode == 0, said
    nobody_left(folder)


def kill():
    """A killed kernel leaves no process."""
    kernel, folder = endless("input()")
    kernel.kill()
    kernel.communicate(timeout=60)
    nobody_left(folder)


# A cell that measures its own function; a dataset of a cell, tuned; the panel's first run
CELLS = {"measure": MEASURE, "tune": TUNE, "panel": PANEL}
STEPS = {step.__name__: step for step in (machine, runs, watch, stop, kill)}
STEPS |= {name: functools.partial(python, "-c", DATASET + cell) for name, cell in CELLS.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", choices=("fork", "forkserver", "spawn"))
    parser.add_argument("--without-posix", action="store_true")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    asked = parser.parse_args()
    if asked.start:
        os.environ["LABKIT_START_METHOD"] = asked.start
    if asked.without_posix:
        os.environ["LABKIT_WITHOUT_POSIX"] = "1"
    path = [str(HERE / "site"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ["LABKIT_HOME"] = home
        for name in asked.steps or STEPS:
            began = time.monotonic()
            STEPS[name]()
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
