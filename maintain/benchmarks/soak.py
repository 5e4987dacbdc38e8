"""Soak: real runs with workers, killed at random moments, and what is left afterwards.

Each kill starts a kernel (a Python process), which starts a run, half of them on a standby; a
seeded choice of kernel, guard, supervisor, bench, workers and telemetry is killed while it goes on,
or while it starts. What is left is looked for from outside: processes and shared memory in /proc
and /dev/shm, finished steps in a memory-mapped counter that the bench keeps past the log.
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
from pathlib import Path

import pandas as pd
import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from helpers import processes_of
from planted import counted, wait_until

from labkit.stamps.record import events_of

KERNEL = """
import json, sys, time
from labkit import Pipeline
from labkit.process import launcher
from labkit.api import launch
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
KILLED_FIRST = ("kernel", "guard", "supervisor", "bench", "worker")
PATIENCE_S = 10.0  # before what is still there counts as an orphan
LEFT_FILES = ("*.ring", "launch.json")


class Kill:
    """One kernel with one run, and what is killed of them."""

    def __init__(self, seed: int, home: str):
        self.chance = random.Random(seed)
        shape = dict(self.chance.choice(SHAPES), num_workers=self.chance.randint(1, 4), **ALWAYS)
        standby_s = self.chance.choice([0, 1, 3])
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        self.kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL, json.dumps([shape, standby_s])],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LABKIT_HOME": home, "PYTHONPATH": path},
        )
        folder, guard = self.line(60).rsplit(" ", 1)
        self.folder = Path(folder)
        self.guard = int(guard)
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
        found = defaultdict(list, kernel=[self.kernel.pid], guard=[self.guard])
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            supervisor = psutil.Process(self.guard).children()[0]
            found["supervisor"].append(supervisor.pid)
            for child in supervisor.children():
                command = " ".join(child.cmdline())
                if ".telemetry" in command:
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
        while (left := processes_of(self.folder)) and time.monotonic() - start < PATIENCE_S:
            self.family |= left.keys()
            time.sleep(0.004)
        self.left = {
            "killed": " + ".join(sorted(killed)),
            "seconds": time.monotonic() - start,
            "processes": len(victims),
            "orphans": len(left),
        }
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if "kernel" not in killed:
            outcome, error, self.kernel_saw = json.loads(self.line(30))
            assert outcome != "finished" and error, (outcome, error)
        self.kernel.wait()

    def judge(self) -> dict[str, object]:
        """Return what is left, once the next run has been started: it has seen to it."""
        recorded = []
        if (self.folder / "events.jsonl").exists():
            recorded = [event["i"] for event in events_of(self.folder) if event["event"] == "step"]
        finished = counted(self.folder)
        in_order = recorded == list(range(len(recorded)))
        return self.left | {
            "finished": finished,  # steps
            "lost": max(0, finished - len(set(recorded))),  # of these, that the log lacks
            "bad": not in_order or self.kernel_saw not in (None, len(recorded)),  # logs
            "segments": sum(len(glob.glob(f"/dev/shm/torch_{pid}_*")) for pid in self.family),
            "files": sum(len(list(self.folder.glob(name))) for name in LEFT_FILES),
        }


def judged(kills: int, first: int, home: str) -> pd.DataFrame:
    """Kill `kills` times; return what each has left behind."""
    rows = []
    last: Kill | None = None
    for number in range(first, first + kills + 1):
        kill = Kill(number, home)
        kill.wait_for_the_moment()
        if last is not None:
            rows.append(last.judge())
        if len(rows) < kills:
            kill.strike()
        last = kill
    last.kernel.kill()  # this was only the run after the last kill: it works too
    last.kernel.wait()
    return pd.DataFrame(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        kills = judged(options.kills, options.seed * 100_000, home)
    print(kills.drop(columns=["killed", "seconds"]).sum().to_string())
    print("clean-up, s:", kills["seconds"].describe().to_string(), sep="\n")
    return int(kills[["orphans", "segments", "files", "lost", "bad"]].to_numpy().any())


if __name__ == "__main__":
    sys.exit(main())
