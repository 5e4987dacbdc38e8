"""Soak: real runs with workers, killed at random moments, and what is left afterwards.

Each kill starts a kernel (a Python process), which starts a run, half of them on a standby; a
seeded choice of kernel, supervisor, bench, workers and telemetry is killed while it goes on, or
while it starts, or while it still stands by. What is left is looked for from outside: processes and
shared memory in /proc and /dev/shm, finished steps in a memory-mapped counter that the bench keeps
past the log. `python soak.py --kills 200 --seed 0` prints the figures of all kills.
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
import json, sys
from labkit import Pipeline
from labkit.process import launcher
from labkit.results.launch import launch
shape, stands = json.loads(sys.argv[1])
if stands:
    launcher.stand_by(forced=True)
    print(launcher._standby.folder, launcher._standby.process.pid, flush=True)
    input()
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
ROLES = (*KILLED_FIRST, "telemetry")
PATIENCE_S = 10.0  # before what is still there counts as an orphan
LEFT_FILES = ("*.ring", "reserve", "launch.json", "listener-*", "pym-*")


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
        self.standby_is = self.chance.choices(["", "used", "idle"], [50, 35, 15])[0]
        if self.standby_is == "idle":  # what is killed is the standby; the run comes after
            shape["seconds"] = 1
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        self.kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL, json.dumps([shape, self.standby_is])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LABKIT_HOME": home, "PYTHONPATH": path},
        )
        self.kernel_saw: int | None = None  # steps
        self.read_folder()
        if self.standby_is == "used":
            time.sleep(self.chance.uniform(0, 3))
            self.run_on_standby()

    def run_on_standby(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(file=self.kernel.stdin, flush=True)
        self.read_folder()

    def read_folder(self) -> None:
        path, supervisor = self.line(60).rsplit(" ", 1)
        self.folder = Path(path)
        self.supervisor = int(supervisor)

    def line(self, seconds: float) -> str:
        """Return the kernel's next line; raise TimeoutError when there is none."""
        if not self.says_something(seconds):
            raise TimeoutError("the kernel says nothing")
        return self.kernel.stdout.readline().strip()

    def says_something(self, seconds: float = 0) -> bool:
        return bool(select.select([self.kernel.stdout], [], [], seconds)[0])

    def wait_for_the_moment(self) -> None:
        if self.standby_is == "idle":
            time.sleep(self.chance.uniform(0, 3))
        elif self.chance.random() < 0.15:  # while it starts
            time.sleep(self.chance.uniform(0, 1.5))
        else:
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

    def strike(self) -> Left:
        """Kill some, wait until all is gone; return for how long, and what did not go."""
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
        struck = self.folder
        said = None
        if self.standby_is == "idle" and "kernel" not in killed:
            time.sleep(0.3)  # a run that starts at that very moment may still get what was killed
            self.run_on_standby()
            said = self.line(60)
            start = time.monotonic()
        while left := {*processes_of(struck), *processes_of(self.folder)}:
            if time.monotonic() - start > PATIENCE_S:
                break
            self.family |= left
            time.sleep(0.004)
        seconds = time.monotonic() - start
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if "kernel" not in killed:
            outcome, error, self.kernel_saw = json.loads(said or self.line(30))
            assert (outcome == "finished") == (self.standby_is == "idle"), (outcome, error)
            assert error or outcome == "finished"
        self.kernel.wait()
        self.left = Left(" + ".join(sorted(killed)), len(victims), seconds, orphans=len(left))
        return self.left

    def judge(self) -> None:
        """Note what the record holds, once the next run has been started."""
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
    struck: list[Left] = []
    unjudged: list[Kill] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        for number in itertools.count(options.seed * 100_000):
            kill = Kill(number, home)
            kill.wait_for_the_moment()
            if kill.standby_is != "idle":  # a run has started: it has seen to what was left
                for each in unjudged:
                    each.judge()
                unjudged = []
                if len(struck) >= options.kills or time.monotonic() > deadline:
                    kill.kernel.kill()  # this was only the run after the last kill: it works too
                    kill.kernel.wait()
                    break
            struck.append(kill.strike())
            unjudged.append(kill)
    kills = pd.DataFrame(struck)
    report(kills)
    return int(kills[["orphans", "segments", "files", "lost", "bad"]].to_numpy().any())


if __name__ == "__main__":
    sys.exit(main())
