"""Soak: real runs with workers, killed at random moments, and what is left afterwards.

Each kill starts a kernel (a Python process), which starts a run, half of them on a standby; a
seeded choice of kernel, supervisor, bench, workers and telemetry is killed while it goes on, or
while it starts, or while it still stands by. What is left is looked for from outside: processes and
shared memory in /proc and /dev/shm, finished steps in a memory-mapped counter that the bench keeps
past the log.
`python soak.py --kills 200 --seed 0` works for `--minutes` and is called again to go on; it prints
the figures of all kills so far.
"""

import argparse
import collections
import contextlib
import glob
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from planted import counted

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
print(json.dumps([run.outcome, run.error, run.steps, 1 + 1]), flush=True)
"""
SHAPES = (
    {"dataset": "sleep", "prep_ms": 2},
    {"dataset": "array", "io_ms": 0},
    {"dataset": "jpeg", "io_ms": 0.2},
)
ALWAYS = {"model": "mlp", "width": 32, "depth": 1, "steps": 10**6, "seconds": 60, "xray": False}
ROLES = ("kernel", "supervisor", "bench", "worker", "telemetry")
PATIENCE_S = 10.0  # before what is still there counts as an orphan
TOOLS = ("*.ring", "reserve", "launch.json", "listener-*", "pym-*")


def processes():
    """{pid: (parent, command, environment, working folder)} of all that live, zombies left out."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            entry = Path("/proc") / name
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                texts = [(entry / part).read_bytes() for part in ("cmdline", "environ")]
                found[int(name)] = (int(parent), *texts, os.readlink(entry / "cwd"))
    return found


def of_run(folder):
    """The pids of the run in `folder`: by what they were told, or where they work."""
    name = str(folder).encode()
    return {
        pid
        for pid, (_, command, environment, place) in processes().items()
        if name in command or b"LABKIT_RUN=" + name in environment or place == str(folder)
    }


def roles(kernel, supervisor):
    """{role: pids} as they are now."""
    table = processes()
    below = {pid for pid, (parent, *_) in table.items() if parent == supervisor}
    found = {"kernel": [kernel], "supervisor": [supervisor]}
    found["telemetry"] = [p for p in below if b"labkit.bench.telemetry" in table[p][1]]
    found["bench"] = [p for p in below if b"labkit.bench\0" in table[p][1]]
    found["worker"] = [
        pid
        for pid, (parent, command, *_) in table.items()
        if parent in found["bench"] and b"resource_tracker" not in command
    ]
    return {role: pids for role, pids in found.items() if pids and pids[0] in table}


class Kill:
    """One kernel, one run, one kill."""

    def __init__(self, seed, home):
        self.chance = random.Random(seed)
        shape = dict(self.chance.choice(SHAPES), num_workers=self.chance.randint(1, 4), **ALWAYS)
        self.stands = self.chance.choices(["", "used", "idle"], [50, 35, 15])[0]
        if self.stands == "idle":  # what is killed is the standby; the run comes after
            shape["seconds"] = 1
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"LABKIT_HOME": str(home), "PYTHONPATH": path}
        command = [sys.executable, "-c", KERNEL, json.dumps([shape, self.stands])]
        self.kernel = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=env)
        self.result = {"seed": seed, "stands": self.stands}
        self.started()
        if self.stands == "used":
            time.sleep(self.chance.uniform(0, 3))
            self.go()
            self.started()

    def go(self):
        with contextlib.suppress(BrokenPipeError):
            print(file=self.kernel.stdin, flush=True)

    def started(self):
        path, supervisor = self.line(60).rsplit(" ", 1)
        self.folder, self.supervisor = Path(path), int(supervisor)

    def line(self, seconds):
        """The kernel's next line; an error when it does not come."""
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
        there = roles(self.kernel.pid, self.supervisor)
        self.family = {pid for pids in there.values() for pid in pids} | of_run(self.folder)
        first = self.chance.choice([role for role in ROLES[:4] if role in there])
        wanted = {first} | {role for role in ROLES if self.chance.random() < 0.25} & set(there)
        victims = [pid for role in wanted for pid in there[role]]
        if "worker" in wanted and self.chance.random() < 0.7:
            spared = set(there["worker"]) - {self.chance.choice(there["worker"])}
            victims = [pid for pid in victims if pid not in spared]
        self.chance.shuffle(victims)
        gap = self.chance.choice([0, 0, 0.002, 0.02])
        how = signal.SIGTERM if wanted == {"kernel"} and gap else signal.SIGKILL
        self.start = time.monotonic()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            time.sleep(gap)
        self.wanted = wanted
        self.result |= {"killed": sorted(wanted), "processes": len(victims)}

    def look(self):
        """Wait until all is gone; note for how long, and what the kernel says."""
        standby, alive = self.folder, "kernel" not in self.wanted
        if self.stands == "idle" and alive:
            self.go()
            self.started()
            said, self.start = self.line(60), time.monotonic()
        while (left := of_run(self.folder) | of_run(standby)) and (
            time.monotonic() - self.start < PATIENCE_S
        ):
            self.family |= left
            time.sleep(0.004)
        self.result |= {"seconds": time.monotonic() - self.start, "orphans": len(left)}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if alive:
            said = said if self.stands == "idle" else self.line(30)
            outcome, error, steps, answer = json.loads(said)
            assert (outcome == "finished") == (self.stands == "idle"), (outcome, error)
            assert answer == 2 and (error or outcome == "finished")
            self.result |= {"outcome": outcome, "error": error, "kernel_saw": steps}
        self.kernel.wait()

    def judge(self):
        """What the record holds, once the next run has been started."""
        import labkit

        recorded, torn = [], 0
        log = self.folder / "events.jsonl"
        for line in log.read_bytes().split(b"\n") if log.exists() else ():
            try:
                json.loads(line or b"{}")
            except ValueError:
                torn += 1
        if log.exists():
            recorded = [step["i"] for step in labkit.load(self.folder).steps_since(0)]
        finished = counted(self.folder)
        self.result |= {
            "finished": finished,
            "lost": max(0, finished - len(set(recorded))),
            "bad": sum(i != k for k, i in enumerate(recorded)),  # doubled, torn or out of order
            "torn": torn,
            "segments": sum(len(glob.glob(f"/dev/shm/torch_{pid}_*")) for pid in self.family),
            "files": sum(len(list(self.folder.glob(name))) for name in TOOLS),
        }
        if self.result.get("kernel_saw", len(recorded)) != len(recorded):
            self.result["bad"] += 1
        return self.result


def report(results):
    def total(name):
        return sum(r[name] for r in results)

    combinations = collections.Counter(" + ".join(r["killed"]) for r in results)
    worst = max(results, key=lambda r: r["seconds"])
    middle = sorted(r["seconds"] for r in results)[len(results) // 2]
    reasons = collections.Counter(
        re.sub(r"\d+", "N", r["error"])[:60] for r in results if r.get("error")
    )
    print(f"kills                      {len(results)} (of {total('processes')} processes)")
    print("standbys                  ", dict(collections.Counter(r["stands"] for r in results)))
    print(f"orphans                    {total('orphans')}")
    print(f"leftover /dev/shm segments {total('segments')}")
    print(f"leftover files in runs     {total('files')}")
    print(f"completed steps lost       {total('lost')} of {total('finished')}")
    print(f"torn lines accepted        {total('bad')} (torn lines seen: {total('torn')})")
    print(f"clean-up, median           {middle:.2f} s")
    print(f"clean-up, worst            {worst['seconds']:.2f} s ({' + '.join(worst['killed'])})")
    print("killed:", ", ".join(f"{name} {n}" for name, n in combinations.most_common()))
    print("said:", "; ".join(f"{n}x {text}" for text, n in reasons.most_common()))


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--minutes", type=float, default=5)
    options.add_argument("--home", type=Path, default=Path("/tmp/labkit-soak"))
    options = options.parse_args()
    options.home.mkdir(exist_ok=True)
    state = options.home / f"soak-{options.seed}.jsonl"
    lines = state.read_text().splitlines() if state.exists() else []
    results = [json.loads(line) for line in lines]
    deadline, before = time.monotonic() + 60 * options.minutes, None
    for number in range(len(results), options.kills + 1):
        last = number == options.kills or time.monotonic() > deadline
        kill = Kill(options.seed * 100_000 + number, options.home)
        if before is not None:
            results.append(before.judge())
            with state.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
        kill.wait_for_the_moment()
        if last:  # only the run after the last kill: it works too
            kill.kernel.kill()
            kill.kernel.wait()
            break
        kill.kill()
        kill.look()
        before = kill
    report(results)


if __name__ == "__main__":
    main()
