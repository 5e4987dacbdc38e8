"""Sample NVML and psutil in a process of their own: a hung driver stops only the samples.

`python -m labkit.instruments.telemetry SUPERVISOR_PID [FILE]` runs in the run's folder and appends
`telemetry` events to its log until the supervisor ends it. A metric that is not here is None in
every sample.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from labkit import quotas
from labkit.instruments.gpu_meter import GpuMeter, name_of
from labkit.instruments.lifetime import wait_for_run
from labkit.instruments.loader_clocks import thread_times
from labkit.instruments.spare_card import spare_card
from labkit.process.family import die_with
from labkit.stamps.events import FILE_NAME, EventLog, events_named

PERIOD_S = 0.2
THIN_AFTER_S = 3_600.0  # a run of days must not fill the disk
POLL_S = 0.02  # between looks at a log that does not have all it should yet
AUTOGRAD = "pt_autograd"  # torch's name of the threads that launch a device's backward pass
NAMED_EVERY = 25  # samples between two looks at what else uses the cores: 5 s
NAMED_FIRST = 5  # the sample with the first of them: runs may last seconds only
MOST_NAMED = 3
LEAST_CORES = 0.1  # that a program uses, to be named


def period_s(age_s: float) -> float:
    """Return the time between samples of a run of that age: all of them are at most two hours'."""
    return PERIOD_S * max(1.0, age_s / THIN_AFTER_S) ** 2


@dataclass
class Lifetime:
    """For how long to sample: as long as some processes live, and a file is there, if one is given.

    A supervisor ends the process sooner.
    """

    processes: list[psutil.Process]
    while_there: Path | None

    def sleep(self, seconds: float) -> None:
        """Sleep; ends this process where it is over, after a second at most."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            gone = self.while_there is not None and not self.while_there.exists()
            if gone or any(map(_has_ended, self.processes)):
                sys.exit()


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def wait_for(name: str, lifetime: Lifetime) -> dict[str, Any]:
    """Return the event of a name from the log in this folder, as soon as it is there."""
    while (event := next(events_named(name, FILE_NAME), None)) is None:
        lifetime.sleep(POLL_S)
    return event


class CpuMeter:
    """CPU use of the whole machine, and memory of the run's own processes."""

    def __init__(self, bench_pid: int):
        self.bench = psutil.Process(bench_pid)
        self.tasks = Path(f"/proc/{bench_pid}/task")
        self.below: dict[int, psutil.Process] = {}  # all that it started, and what these did
        self.waited: dict[Path, int] = {}  # ns that each of their threads stood in line for a core
        self.cores = quotas.cpu_cores().of
        psutil.cpu_percent()
        self.looked_at = time.monotonic()
        self.spent_s = sum(map(_spent_s, self._family()))

    def read(self) -> dict[str, float | None]:
        """Return one sample: shares of all cores, and the memory of the run's own processes.

        None of the run where it has just ended. `line_cpu` is the share of the cores' time for
        which threads stood in line for one, `launch_line` the share of the time for which one that
        launches kernels did: they need the kernel's scheduler statistics (Linux).
        """
        reading: dict[str, float | None] = dict.fromkeys(
            ("own_cpu", "rss_gib", "line_cpu", "launch_line")
        )
        with contextlib.suppress(psutil.Error):
            reading |= self._read_family()
        return {"cpu": psutil.cpu_percent() / 100, "cpus": self.cores, **reading}

    def _read_family(self) -> dict[str, float]:
        """Return what is known of the run's own processes; raises psutil.Error if it is gone."""
        family = self._family()
        resident = self.bench.memory_info().rss + sum(map(_resident, family[:-1]))
        now = time.monotonic()
        elapsed_s = max(now - self.looked_at, 1e-9)
        spent_s = sum(map(_spent_s, family))
        own = max(0.0, spent_s - self.spent_s) / elapsed_s / self.cores
        found = {"rss_gib": round(resident / 2**30, 4), "own_cpu": round(own, 3)}
        waited = {task: ns for each in family for task, _, ns in thread_times(each.pid)}
        if waited and self.waited:
            more = {task: ns - self.waited.get(task, ns) for task, ns in waited.items()}
            launching = sum(ns for task, ns in more.items() if self._launches(task))
            found["line_cpu"] = round(sum(more.values()) / 1e9 / elapsed_s / self.cores, 3)
            found["launch_line"] = round(launching / 1e9 / elapsed_s, 3)
        self.looked_at = now
        self.spent_s = spent_s
        self.waited = waited
        return found

    def _launches(self, task: Path) -> bool:
        """Return whether a thread (its folder) is the bench's first, or autograd's."""
        if task.parent != self.tasks:
            return False
        return task.name == str(self.bench.pid) or _thread_name(task).startswith(AUTOGRAD)

    def _family(self) -> list[psutil.Process]:
        """Return all that the bench started, each before what started it, and the bench as last.

        Psutil would look at every process: milliseconds.
        """
        if not self.tasks.exists():  # another system than Linux
            return [*reversed(self.bench.children(recursive=True)), self.bench]
        pids = _children(self.bench.pid, "*")
        for pid in pids:  # grows meanwhile
            pids += _children(pid, str(pid))
        found: dict[int, psutil.Process] = {}
        for pid in pids:
            with contextlib.suppress(psutil.Error):  # it has just ended
                found[pid] = self.below.get(pid) or psutil.Process(pid)
        self.below = found
        return [*reversed(found.values()), self.bench]


def _children(pid: int, threads: str) -> list[int]:
    """Return the processes that threads of a process have started (Linux)."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob(f"{threads}/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found += map(int, path.read_text().split())
    return found


def _spent_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and of those that it started and that have ended, s."""
    with contextlib.suppress(psutil.Error):  # it has ended: its parent has its time
        return sum(process.cpu_times()[:4])
    return 0.0


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


@functools.lru_cache(4096)
def _thread_name(task: Path) -> str:
    with contextlib.suppress(OSError):  # it has just ended
        return (task / "comm").read_text()
    return ""


class OtherPrograms:
    """The programs outside of the run that use the machine's cores most."""

    def __init__(self, own: list[psutil.Process]):
        """`own` are the processes that, with all that they started, are the run."""
        self.own = own
        self.read()

    def read(self) -> list[dict[str, Any]]:
        """Return those since the last call, the busiest first."""
        own = {each.pid for each in self.own}
        for each in self.own:
            with contextlib.suppress(psutil.Error):
                own |= {child.pid for child in each.children(recursive=True)}
        cores: dict[int, float] = {}
        for process in psutil.process_iter():  # the same objects again, which know the last look
            if process.pid not in own:
                with contextlib.suppress(psutil.Error):
                    cores[process.pid] = round(process.cpu_percent() / 100, 2)
        busiest = sorted(cores, key=cores.__getitem__, reverse=True)[:MOST_NAMED]
        return [
            {"pid": pid, "name": name_of(pid), "cores": cores[pid]}
            for pid in busiest
            if cores[pid] >= LEAST_CORES
        ]


def _card_of(uuid: str | None, bench_pid: int, log: EventLog) -> GpuMeter | None:
    """Return the meter of the run's card; None without a card, or where NVML does not answer."""
    if not uuid:
        return None
    try:
        return GpuMeter(uuid, bench_pid)
    except Exception as error:  # no driver, another version, a card that is lost
        log.write("no_nvml", why=f"{type(error).__name__}: {error}")
    return None


def main(parent: int, while_there: Path | None = None) -> None:
    """Sample until the supervisor ends this process, or the run's own one is over.

    `while_there` is a file that is deleted to end it, where it is nobody's child.
    """
    if while_there is None:
        die_with(parent)
    wait_for_run()
    log = EventLog(".")
    lifetime = Lifetime([psutil.Process(parent)], while_there)
    hello = wait_for("hello", lifetime)
    machine = wait_for("machine", lifetime)
    cpu = CpuMeter(hello["pid"])
    lifetime.processes.append(cpu.bench)
    card = _card_of(machine.get("uuid"), hello["pid"], log)
    spare = machine["kind"] == "cpu" and spare_card(machine["versions"].get("cuda"))
    if spare:
        log.write("spare_card", name=spare)
    programs = OtherPrograms(lifetime.processes)
    begun = time.monotonic()
    due = begun
    for count in itertools.count():
        log.write("telemetry", **cpu.read(), **(card.read() if card else {}))
        if count % NAMED_EVERY == NAMED_FIRST:
            named = {"beside": programs.read(), "on_the_card": card.named_others() if card else []}
            for event, processes in named.items():
                if processes:
                    log.write(event, processes=processes)
        due += period_s(due - begun)  # from when it was due: no drift
        lifetime.sleep(due - time.monotonic())


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))
