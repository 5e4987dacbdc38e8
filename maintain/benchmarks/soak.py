"""Soak: real runs with workers, killed at random moments, and what is left afterwards.

Each kill starts a kernel (a Python process), which starts a run, half of them on a standby; a
seeded choice of kernel, supervisor, bench, workers and telemetry is killed while it goes on, or
while it starts, or while it still stands by. What is left is looked for from outside: processes and
shared memory in /proc and /dev/shm, finished steps in a memory-mapped counter that the bench keeps
past the log. `python soak.py --kills 200 --seed 0` prints the figures of all kills.
"""

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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from planted import counted

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
SHAPES = ({"dataset": "sleep", "prep_ms": 2}, {"dataset": "array", "io_ms": 0},
          {"dataset": "jpeg", "io_ms": 0.2})  # fmt: skip
ALWAYS = {"model": "mlp", "width": 32, "depth": 1, "steps": 10**6, "seconds": 60, "xray": False}
ROLES = ("kernel", "supervisor", "bench", "worker", "telemetry")
PATIENCE_S = 10.0  # before what is still there counts as an orphan
TOOLS = ("*.ring", "reserve", "launch.json", "listener-*", "pym-*")


def processes():
    """Return {pid: (parent, command, environment, working folder)} of all that live."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                texts = [(entry / part).read_bytes() for part in ("cmdline", "environ")]
                found[int(entry.name)] = (int(parent), *texts, os.readlink(entry / "cwd"))
    return found


def of_run(*folders):
    """Return the pids of the runs in `folders`: by what they were told, or where they work."""
    return {
        pid
        for pid, (_, command, environment, place) in processes().items()
        for name in map(str, folders)
        if name.encode() in command + environment or place == name
    }


def roles(kernel, supervisor):
    table = processes()
    below = {pid: command for pid, (parent, command, *_) in table.items() if parent == supervisor}
    found = {"kernel": [kernel], "supervisor": [supervisor]}
    found["telemetry"] = [p for p, command in below.items() if b"bench.telemetry" in command]
    found["bench"] = [p for p, command in below.items() if b"labkit.bench\0" in command]
    found["worker"] = [
        pid for pid, (parent, command, *_) in table.items()
        if parent in found["bench"] and b"resource_tracker" not in command
    ]  # fmt: skip
    return {role: pids for role, pids in found.items() if pids and pids[0] in table}


class Kill:
    def __init__(self, seed, home):
        self.chance = random.Random(seed)
        shape = dict(self.chance.choice(SHAPES), num_workers=self.chance.randint(1, 4), **ALWAYS)
        self.stands = self.chance.choices(["", "used", "idle"], [50, 35, 15])[0]
        if self.stands == "idle":  # what is killed is the standby; the run comes after
            shape["seconds"] = 1
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"LABKIT_HOME": home, "PYTHONPATH": path}
        command = [sys.executable, "-c", KERNEL, json.dumps([shape, self.stands])]
        self.kernel = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=env)
        self.result = {"seed": seed, "stands": self.stands}
        self.started()
        if self.stands == "used":
            time.sleep(self.chance.uniform(0, 3))
            self.go()

    def go(self):
        with contextlib.suppress(BrokenPipeError):
            print(file=self.kernel.stdin, flush=True)
        self.started()

    def started(self):
        path, supervisor = self.line(60).rsplit(" ", 1)
        self.folder, self.supervisor = Path(path), int(supervisor)

    def line(self, seconds):
        """Return the kernel's next line; an error when it does not come."""
        if not select.select([self.kernel.stdout], [], [], seconds)[0]:
            raise TimeoutError("the kernel says nothing")
        return self.kernel.stdout.readline().strip()

    def wait_for_the_moment(self):
        if self.stands == "idle" or self.chance.random() < 0.15:
            time.sleep(self.chance.uniform(0, 3 if self.stands == "idle" else 1.5))
            return  # while it starts
        deadline = time.monotonic() + 60
        while counted(self.folder) < 3:
            if time.monotonic() > deadline or select.select([self.kernel.stdout], [], [], 0)[0]:
                raise RuntimeError(f"the run after a kill does not work: {self.line(1)}")
            time.sleep(0.005)
        time.sleep(self.chance.uniform(0, 0.8))

    def kill(self):
        """Kill some, wait until all is gone; note for how long, and what the kernel says."""
        there = roles(self.kernel.pid, self.supervisor)
        self.family = {pid for pids in there.values() for pid in pids} | of_run(self.folder)
        first = self.chance.choice([role for role in ROLES[:4] if role in there])
        wanted = {first} | {role for role in ROLES if self.chance.random() < 0.25} & set(there)
        victims = [pid for role in wanted for pid in there[role]]
        self.chance.shuffle(victims)
        gap = self.chance.choice([0, 0, 0.002, 0.02])
        how = signal.SIGTERM if wanted == {"kernel"} and gap else signal.SIGKILL
        start = time.monotonic()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            time.sleep(gap)
        standby, alive, said = self.folder, "kernel" not in wanted, None
        if self.stands == "idle" and alive:
            time.sleep(0.3)  # a run that starts at that very moment may still get what was killed
            self.go()
            said, start = self.line(60), time.monotonic()
        while (left := of_run(self.folder, standby)) and time.monotonic() - start < PATIENCE_S:
            self.family |= left
            time.sleep(0.004)
        self.result |= {"killed": " + ".join(sorted(wanted)), "processes": len(victims),
                        "seconds": time.monotonic() - start, "orphans": len(left)}  # fmt: skip
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if alive:
            outcome, error, self.result["kernel saw"] = json.loads(said or self.line(30))
            assert (outcome == "finished") == (self.stands == "idle"), (outcome, error)
            assert error or outcome == "finished"
        self.kernel.wait()

    def judge(self):
        """Return what the record holds, once the next run has been started."""
        log, recorded = self.folder / "events.jsonl", []
        if log.exists():
            recorded = [step["i"] for step in labkit.load(self.folder).steps_since(0)]
        finished, saw = counted(self.folder), self.result.get("kernel saw", len(recorded))
        return self.result | {
            "finished": finished,
            "lost": max(0, finished - len(set(recorded))),
            "bad": (recorded != list(range(len(recorded)))) + (saw != len(recorded)),
            "segments": sum(len(glob.glob(f"/dev/shm/torch_{pid}_*")) for pid in self.family),
            "files": sum(len(list(self.folder.glob(name))) for name in TOOLS),
        }


def report(results):
    """Print what all kills left, and how long the clean-up took."""
    for what in ("processes", "orphans", "segments", "files", "lost", "finished", "bad"):
        print(f"{what:10} {sum(result[what] for result in results)}")
    by_time = sorted(results, key=lambda result: result["seconds"])
    print(f"{len(results)} kills; clean-up {by_time[len(by_time) // 2]['seconds']:.2f} s (median), "
          f"worst {by_time[-1]['seconds']:.2f} s ({by_time[-1]['killed']})")  # fmt: skip


options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--kills", type=int, default=200)
options.add_argument("--seed", type=int, default=0)
options.add_argument("--minutes", type=float, default=10, help="end earlier than after --kills")
options = options.parse_args()
results, unjudged, deadline = [], [], time.monotonic() + 60 * options.minutes
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
    for number in itertools.count(options.seed * 100_000):
        kill = Kill(number, home)
        kill.wait_for_the_moment()
        if kill.stands != "idle":  # a run has started: it has seen to what was left
            results += [each.judge() for each in unjudged]
            unjudged = []
            if len(results) >= options.kills or time.monotonic() > deadline:
                kill.kernel.kill()  # this was only the run after the last kill: it works too
                kill.kernel.wait()
                break
        kill.kill()
        unjudged.append(kill)
report(results)
left = ("orphans", "segments", "files", "lost", "bad")
sys.exit(any(result[what] for result in results for what in left))
