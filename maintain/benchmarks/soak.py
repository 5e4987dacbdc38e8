"""Soak: real runs with workers, killed at random moments, and what is left afterwards.

Each kill starts a kernel (a Python process), which starts a run, half of them on a standby; a
seeded choice of kernel, supervisor, bench, workers and telemetry is killed while it goes on, or
while it starts. What is left is looked for from outside: processes and shared memory in /proc and
/dev/shm, finished steps in a memory-mapped counter that the bench keeps past the log.
`python soak.py --kills 200 --seed 0` prints the figures of all kills.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from helpers import processes_of
from planted import counted, wait_until

import labkit

KERNEL = """
import json, sys, time
from labkit import Pipeline
from labkit.process import launcher
from labkit.results.launch import launch
shape, standby_s = json.loads(sys.argv[1])
if standby_s:
    launcher.stand_by(forced=True)
    time.sleep(standby_s)
run = launch(Pipeline(**shape), fault="planted:plant:nothing")
print(run.path, run._process.process.pid, flush=True)
run.wait()
print(json.dumps([run.outcome, run.error, run.steps]), flush=True)
"""
SHAPES = (
    {"dataset": "sleep", "prep_ms": 2},
    {"dataset": "array", "io_ms": 0},
    {"dataset": "jpeg", "io_ms": 0.2},
)
ALWAYS = {"model": "mlp", "width": 32, "depth": 1, "steps": 10**6, "seconds": 60, "xray": False}
KILLED_FIRST = ("kernel", "supervisor", "bench", "worker")
PATIENCE_S = 10.0  # before what is still there counts as an orphan
LEFT_FILES = ("*.ring", "reserve", "launch.json")


@dataclass
class Left:
    """What a kill has left behind: all but the first four should be 0."""

    killed: str  # roles
    processes: int  # that were killed
    seconds: float  # until the last process was gone
    finished: int = 0  # steps
    orphans: int = 0
    segments: int = 0  # of shared memory
    files: int = 0
    lost: int = 0  # finished steps that the log lacks
    bad: int = 0  # logs out of order, or that the kernel saw otherwise


class Kill:
    """One kernel with one run, and what is killed of them."""

    def __init__(self, seed: int, home: str):
        self.chance = random.Random(seed)
        shape = dict(self.chance.choice(SHAPES), num_workers=self.chance.randint(1, 4), **ALWAYS)
        standby_s = self.chance.choice([0, self.chance.uniform(0, 3)])
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        self.kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL, json.dumps([shape, standby_s])],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LABKIT_HOME": home, "PYTHONPATH": path},
        )
        folder, supervisor = self.line(60).rsplit(" ", 1)
        self.folder = Path(folder)
        self.supervisor = int(supervisor)
        self.kernel_saw: int | None = None  # steps

    def line(self, seconds: float) -> str:
        """Return the kernel's next line; raise TimeoutError when there is none."""
        if not self.says_something(seconds):
            raise TimeoutError("the kernel says nothing")
        return self.kernel.stdout.readline().strip()

    def says_something(self, seconds: float = 0) -> bool:
        return bool(select.select([self.kernel.stdout], [], [], seconds)[0])

    def wait_for_the_moment(self) -> None:
        """Wait for a random moment: mostly of a run that goes on, sometimes while it starts."""
        if self.chance.random() < 0.15:
            time.sleep(self.chance.uniform(0, 1.5))
            return
        wait_until(lambda: counted(self.folder) >= 3 or self.says_something())
        if self.says_something():
            raise RuntimeError(f"the run after a kill does not work: {self.line(1)}")
        time.sleep(self.chance.uniform(0, 0.8))

    def roles(self) -> dict[str, list[int]]:
        """Return the pids that play each role, of those that live."""
        found = defaultdict(list, kernel=[self.kernel.pid], supervisor=[self.supervisor])
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.supervisor).children():
                command = " ".join(child.cmdline())
                if "bench.telemetry" in command:
                    found["telemetry"].append(child.pid)
                elif "labkit.bench" in command:
                    found["bench"].append(child.pid)
                    for worker in child.children():
                        if "resource_tracker" not in " ".join(worker.cmdline()):
                            found["worker"].append(worker.pid)
        return found

    def strike(self) -> None:
        """Kill some, wait until all is gone; note for how long, and what did not go."""
        roles = self.roles()
        self.family = set(itertools.chain(processes_of(self.folder), *roles.values()))
        first = self.chance.choice([role for role in KILLED_FIRST if role in roles])
        killed = {role for role in roles if role == first or self.chance.random() < 0.25}
        victims = [pid for role in killed for pid in roles[role]]
        self.chance.shuffle(victims)
        gap_s = self.chance.choice([0, 0, 0.002, 0.02])
        asked = killed == {"kernel"} and gap_s > 0
        start = time.monotonic()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if asked else signal.SIGKILL)
            time.sleep(gap_s)
        while left := processes_of(self.folder):
            if time.monotonic() - start > PATIENCE_S:
                break
            self.family |= left.keys()
            time.sleep(0.004)
        seconds = time.monotonic() - start
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if "kernel" not in killed:
            outcome, error, self.kernel_saw = json.loads(self.line(30))
            assert outcome != "finished" and error, (outcome, error)
        self.kernel.wait()
        self.left = Left(" + ".join(sorted(killed)), len(victims), seconds, orphans=len(left))

    def judge(self) -> Left:
        """Return what is left, once the next run has been started: it has seen to it."""
        recorded = []
        if (self.folder / "events.jsonl").exists():
            recorded = [step["i"] for step in labkit.load(self.folder).steps_since(0)]
        left = self.left
        left.finished = counted(self.folder)
        left.lost = max(0, left.finished - len(set(recorded)))
        left.bad = int(recorded != list(range(len(recorded))))
        left.bad += self.kernel_saw not in (None, len(recorded))
        left.segments = sum(len(glob.glob(f"/dev/shm/torch_{pid}_*")) for pid in self.family)
        left.files = sum(len(list(self.folder.glob(name))) for name in LEFT_FILES)
        return left


def report(kills: pd.DataFrame) -> None:
    """Print what all kills left, and how long the clean-up took."""
    print(kills.drop(columns=["killed", "seconds"]).sum().to_string())
    worst = kills.loc[kills["seconds"].idxmax()]
    print(
        f"{len(kills)} kills; clean-up {kills['seconds'].median():.2f} s (median), "
        f"worst {worst['seconds']:.2f} s ({worst['killed']})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10, help="end earlier than after --kills")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    judged = []
    last: Kill | None = None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        for number in itertools.count(options.seed * 100_000):
            kill = Kill(number, home)
            kill.wait_for_the_moment()
            if last is not None:
                judged.append(last.judge())
            if len(judged) >= options.kills or time.monotonic() > deadline:
                kill.kernel.kill()  # this was only the run after the last kill: it works too
                kill.kernel.wait()
                break
            kill.strike()
            last = kill
    kills = pd.DataFrame(judged)
    report(kills)
    return int(kills[["orphans", "segments", "files", "lost", "bad"]].to_numpy().any())


if __name__ == "__main__":
    sys.exit(main())
