"""Sample NVML and psutil in a process of their own: a hung driver stops only the samples.

`python -m labkit.instruments.telemetry SUPERVISOR_PID [FILE]` runs in the run's folder and appends
`telemetry` events to its log until the supervisor ends it. A metric that is not here is None, or
not in the sample.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from labkit import quotas
from labkit.instruments.gpu_meter import GpuMeter, answer_to, name_of, spare_card
from labkit.instruments.lifetime import wait_for_run
from labkit.instruments.loader_clocks import thread_times
from labkit.process.family import die_with
from labkit.stamps.events import FILE_NAME, EventLog, events_named

PERIOD_S = 0.2
THIN_AFTER_S = 3_600.0  # a run of days must not fill the disk
POLL_S = 0.02  # between looks at a log that does not have all it should yet
FAMILY_S = 1.0  # between two looks at which processes the run has
NAMED_EVERY = 25  # samples between two looks at what else uses the cores: 5 s
NAMED_FIRST = 5  # the sample with the first of them: runs may last seconds only
MOST_NAMED = 3
LEAST_CORES = 0.1  # that a program uses, to be named


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

    def wait_for(self, name: str) -> dict[str, Any]:
        """Return the event of a name from the log in this folder, as soon as it is there."""
        while (event := next(events_named(name, FILE_NAME), None)) is None:
            self.sleep(POLL_S)
        return event


def _has_ended(process: psutil.Process) -> bool:
    return answer_to(process.status) in (None, psutil.STATUS_ZOMBIE)


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Return all that a process has started, and they; [] where it has ended."""
    return answer_to(lambda: process.children(recursive=True)) or []


def cpu_samples(bench: psutil.Process) -> Iterator[dict[str, float]]:
    """Yield samples: shares of all cores, and the memory of the run while it goes on.

    `line_cpu` is the share of the cores' time for which threads of the run stood in line for one,
    `launch_line` the share of the time for which the one that launches kernels did: they need the
    kernel's scheduler statistics (Linux).
    """
    main = Path(f"/proc/{bench.pid}/task/{bench.pid}")  # the thread that launches kernels
    cores = quotas.cpu_cores().of
    family = [bench]  # and all that it started
    family_due = 0.0
    waited: dict[Path, int] = {}  # ns that each of their threads stood in line for a core
    psutil.cpu_percent()
    looked_at = time.monotonic()
    spent_s = sum(map(_spent_s, family))
    while True:
        found = {"cpu": psutil.cpu_percent() / 100, "cpus": cores}
        if _has_ended(bench):
            yield found
            continue
        now = time.monotonic()
        if now > family_due:  # psutil looks at every process: milliseconds
            family_due = now + FAMILY_S
            family = [*children_of(bench), bench]
        elapsed_s = max(now - looked_at, 1e-9)
        before_s, spent_s = spent_s, sum(map(_spent_s, family))
        found["own_cpu"] = round(max(0.0, spent_s - before_s) / elapsed_s / cores, 3)
        found["rss_gib"] = round(sum(map(_rss, family)) / 2**30, 4)
        before, waited = (
            waited,
            {task: ns for each in family for task, _, ns in thread_times(each.pid)},
        )
        if before and waited:
            more_s = {task: (ns - before.get(task, ns)) / 1e9 for task, ns in waited.items()}
            found["line_cpu"] = round(sum(more_s.values()) / elapsed_s / cores, 3)
            found["launch_line"] = round(more_s.get(main, 0) / elapsed_s, 3)
        looked_at = now
        yield found


def _spent_s(process: psutil.Process) -> float:
    """Return the CPU time of a process and of those that it started and that have ended, s."""
    return answer_to(lambda: sum(process.cpu_times()[:4])) or 0.0


def _rss(process: psutil.Process) -> int:
    """Return the bytes that a process has in memory."""
    return answer_to(lambda: process.memory_info().rss) or 0


def others(own: list[psutil.Process]) -> list[dict[str, Any]]:
    """Return the programs that used most cores since the last call, the busiest first.

    Not the processes `own`, nor what these started.
    """
    family = {each.pid for process in own for each in (process, *children_of(process))}
    cores = {
        each.pid: round((answer_to(each.cpu_percent) or 0.0) / 100, 2)
        for each in psutil.process_iter()  # the same objects again, which know the last look
        if each.pid not in family
    }
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
    bench = psutil.Process(lifetime.wait_for("hello")["pid"])
    machine = lifetime.wait_for("machine")
    lifetime.processes.append(bench)
    cpu = cpu_samples(bench)
    card = _card_of(machine.get("uuid"), bench.pid, log)
    spare = machine["kind"] == "cpu" and spare_card(machine["versions"].get("cuda"))
    if spare:
        log.write("spare_card", name=spare)
    others(lifetime.processes)
    begun = due = time.monotonic()
    for count in itertools.count():
        log.write("telemetry", **next(cpu), **(card.read() if card else {}))
        if count % NAMED_EVERY == NAMED_FIRST:
            log.write("beside", processes=others(lifetime.processes))
            if card and (found := card.named_others()):
                log.write("on_the_card", processes=found)
        # From when it was due: no drift. All samples are at most two hours'
        due += PERIOD_S * max(1.0, (due - begun) / THIN_AFTER_S) ** 2
        lifetime.sleep(due - time.monotonic())


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))
