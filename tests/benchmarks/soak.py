"""Soak: real runs with workers, killed at random moments, and what is left afterwards.

Each kill starts a kernel (a Python process), which starts a run; a seeded choice of kernel,
supervisor, bench, workers and telemetry is killed while it goes on, or while it starts. What is
left is looked for from outside: processes and shared memory in /proc and /dev/shm, finished steps
in a memory-mapped counter that the bench keeps past the log. `python soak.py --kills 200 --seed 0`
works for `--minutes` and is called again to go on; it prints the figures of all kills so far.
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
import struct
import subprocess
import sys
import time
from pathlib import Path

KERNEL = """
import json, sys
from labkit import Pipeline
from labkit.results.launch import launch
run = launch(Pipeline(**json.loads(sys.argv[1])), fault="planted:plant:nothing")
print(run.path, run._process.process.pid, flush=True)
run.wait()
print(json.dumps([run.outcome, run.error, run.steps, 1 + 1]), flush=True)
"""
# The bench imports tests/planted.py
PATH = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
SHAPES = (
    {"dataset": "sleep", "prep_ms": 2},
    {"dataset": "array", "io_ms": 0},
    {"dataset": "jpeg", "io_ms": 0.2},
)
ALWAYS = {"model": "mlp", "width": 32, "depth": 1, "steps": 10**6, "seconds": 60, "xray": False}
ROLES = ("kernel", "supervisor", "bench", "worker", "telemetry")
PATIENCE_S = 10.0  # before what is still there counts as an orphan


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
    found = {"kernel": [kernel], "supervisor": [supervisor], "worker": []}
    found["telemetry"] = [p for p in below if b"labkit.bench.telemetry" in table[p][1]]
    found["bench"] = [p for p in below if b"labkit.bench\0" in table[p][1]]
    for pid, (parent, command, *_) in table.items():
        if parent in found["bench"] and b"resource_tracker" not in command:
            found["worker"].append(pid)
    return {role: pids for role, pids in found.items() if pids and pids[0] in table}


def counted(folder):
    """How many steps the bench says it has finished."""
    with contextlib.suppress(OSError, struct.error):
        return struct.unpack("<q", (folder / "steps.count").read_bytes())[0]
    return 0


def segments(pids):
    return [path for pid in pids for path in glob.glob(f"/dev/shm/torch_{pid}_*")]


def steps_of(folder):
    """Indices of the steps in the record, and how many torn lines lie in its log."""
    import labkit

    log = (folder / "events.jsonl").read_bytes()
    torn = 0
    for line in log.split(b"\n"):
        try:
            json.loads(line or b"{}")
        except ValueError:
            torn += 1
    return [step["i"] for step in labkit.load(folder).steps_since(0)], torn


class Kill:
    """One kernel, one run, one kill."""

    def __init__(self, seed, home):
        self.chance = random.Random(seed)
        shape = dict(self.chance.choice(SHAPES), num_workers=self.chance.randint(1, 4), **ALWAYS)
        self.kernel = subprocess.Popen(
            [sys.executable, "-c", KERNEL, json.dumps(shape)],
            stdout=-1, text=True, env=os.environ | {"LABKIT_HOME": str(home), "PYTHONPATH": PATH},
        )  # fmt: skip
        path, supervisor = self.line(60).rsplit(" ", 1)
        self.folder, self.supervisor = Path(path), int(supervisor)
        self.result = {"seed": seed}

    def line(self, seconds):
        """The kernel's next line; an error when it does not come."""
        if not select.select([self.kernel.stdout], [], [], seconds)[0]:
            raise TimeoutError("the kernel says nothing")
        return self.kernel.stdout.readline().strip()

    def wait_for_the_moment(self):
        if self.chance.random() < 0.15:
            time.sleep(self.chance.uniform(0, 1.5))  # while it starts
            return
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
        while (left := of_run(self.folder)) and time.monotonic() - self.start < PATIENCE_S:
            self.family |= left
            time.sleep(0.004)
        self.result |= {"seconds": time.monotonic() - self.start, "orphans": len(left)}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if "kernel" in self.wanted:
            self.kernel.wait()
            return
        outcome, error, steps, answer = json.loads(self.line(30))
        assert outcome == "failed" and error and answer == 2, (outcome, error)
        self.result |= {"outcome": outcome, "error": error, "kernel_saw": steps}
        self.kernel.wait()

    def judge(self):
        """What the record holds, once the next run has been started."""
        recorded, torn = steps_of(self.folder)
        finished = counted(self.folder)
        kept = ("*.ring", "reserve", "launch.json", "listener-*", "pym-*")
        self.result |= {
            "finished": finished,
            "lost": max(0, finished - len(set(recorded))),
            "bad": sum(i != k for k, i in enumerate(recorded)),  # doubled, torn or out of order
            "torn": torn,
            "segments": len(segments(self.family)),
            "files": sum(len(list(self.folder.glob(name))) for name in kept),
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
    results = (
        [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    )
    deadline, before = time.monotonic() + 60 * options.minutes, None
    with state.open("a") as file:

        def judged(kill):
            results.append(kill.judge())
            file.write(json.dumps(results[-1]) + "\n")
            file.flush()

        for number in range(len(results), options.kills + 1):
            last = number == options.kills or time.monotonic() > deadline
            kill = Kill(options.seed * 100_000 + number, options.home)
            if before is not None:
                judged(before)
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
