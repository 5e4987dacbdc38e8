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
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from labkit import quotas
from labkit.instruments.gpu_meter import GpuMeter, answer_to, spare_card
from labkit.instruments.lifetime import wait_for_run
from labkit.instruments.loader_work import in_line_ns
from labkit.process.family import die_with
from labkit.stamps.events import FILE_NAME, EventLog, events_named

PERIOD_S = 0.2
THIN_AFTER_S = 3_600.0  # a run of days must not fill the disk
POLL_S = 0.02  # between looks at a log that does not have all it should yet
FAMILY_EVERY = 5  # samples between two looks at which processes the run has: 1 s


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


def cpu_samples(bench: psutil.Process) -> Iterator[dict[str, float]]:
    """Yield samples: shares of all cores, of the run while it goes on too.

    `line_cpu` is the share of the cores' time for which threads of the run stood in line for one.
    """
    cores = quotas.cpu_cores().of
    family = [bench]  # and all that it started
    waited: dict[Path, int] = {}  # ns that each thread of the run stood in line for a core
    spent_s = 0.0
    looked_at = 0.0
    psutil.cpu_percent()
    for count in itertools.count():
        if count % FAMILY_EVERY == 0:  # psutil looks at every process: milliseconds
            family = [bench, *(answer_to(partial(bench.children, recursive=True)) or [])]
        found = {"cpu": psutil.cpu_percent() / 100, "cpus": cores}
        known = [answer_to(each.cpu_times) or () for each in family]
        before_s, spent_s = spent_s, sum(sum(times[:4]) for times in known)
        tasks = [task for each in family for task in Path(f"/proc/{each.pid}/task").glob("*")]
        before, waited = waited, {task: in_line_ns(task) for task in tasks}
        now = time.monotonic()
        elapsed_s, looked_at = now - looked_at, now
        if count and not _has_ended(bench):
            found["own_cpu"] = round(max(0.0, spent_s - before_s) / elapsed_s / cores, 3)
            more_s = [(ns - before.get(task, ns)) / 1e9 for task, ns in waited.items()]
            found["line_cpu"] = round(sum(more_s) / elapsed_s / cores, 3) if more_s else None
        yield found


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
    next(cpu)
    card = answer_to(lambda: GpuMeter(machine["uuid"], bench.pid))  # None without a driver
    if machine["kind"] == "cpu" and (spare := spare_card(machine["versions"].get("cuda"))):
        log.write("spare_card", name=spare)
    begun = due = time.monotonic()
    while True:
        log.write("telemetry", **next(cpu), **(card.read() if card else {}))
        # From when it was due: no drift. All samples are at most two hours'
        due += PERIOD_S * max(1.0, (due - begun) / THIN_AFTER_S) ** 2
        lifetime.sleep(due - time.monotonic())


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))
