"""Sample NVML and psutil in a process of their own: a hung driver stops only the samples.

`python -m labkit.instruments.telemetry PID [FILE]` runs in the run's folder and appends `telemetry`
events to its log, until the run or process PID is over, or FILE is deleted. A metric that is not
here is None, or not in the sample.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from labkit import quotas
from labkit.instruments.lifetime import wait_for_run
from labkit.instruments.loader_work import in_line_ns
from labkit.process.family import die_with
from labkit.stamps.events import FILE_NAME, EventLog, events_named

PERIOD_S = 0.2
THIN_AFTER_S = 3_600.0  # a run of days must not fill the disk
POLL_S = 0.02  # between looks at a log that does not have all it should yet
SM_ACTIVITY = 2  # NVML_GPM_METRIC_SM_UTIL
MOST_SHARE = 100  # %: drivers return leftovers of their buffer with shares above it
Answer = TypeVar("Answer")
FAMILY_EVERY = 5  # samples between two looks at which processes the run has: 1 s


def answer_to(question: Callable[[], Answer]) -> Answer | None:
    """Return the answer, or None where this card or driver has none."""
    # NVMLError, or pynvml's own where the driver is older than it expects
    with contextlib.suppress(Exception):
        return question()
    return None


def spare_card(cuda: str | None) -> str | None:
    """Return the name of a card for a torch that is built with this CUDA; None without one.

    A card that CUDA_VISIBLE_DEVICES hides is none.
    """
    if not cuda or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    answer_to(pynvml.nvmlInit)
    return answer_to(lambda: pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))


class GpuMeter:
    """One card: utilization, memory, power, energy, clocks, the SMs' activity."""

    def __init__(self, uuid: str, own_pid: int):
        """Open the card by UUID (NVML's order is not CUDA's); raises NVMLError where it cannot."""
        self.own_pid = own_pid
        pynvml.nvmlInit()
        self.card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.shares_us = time.time_ns() // 1000  # the driver's stamp of the last share of the SMs
        self.sm = sm_activity(self.card)
        answer_to(lambda: next(self.sm))  # from now on

    def read(self) -> dict[str, Any]:
        """Return one sample of everything the card reports, None where it does not."""
        card = self.card
        rates: Any = pynvml.nvmlDeviceGetUtilizationRates  # its structures have no types
        answers: dict[str, Callable[[], Any]] = {
            "gpu_now": lambda: rates(card).gpu / 100,
            "memory_gib": lambda: round(pynvml.nvmlDeviceGetMemoryInfo(card).used / 2**30, 3),
            "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(card) / 1e3,
            "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3,
            "energy_j": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3,
            "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
            # in bits: 0x4 is the power limit, 0x60 heat
            "clock_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(card),
            "others_sm": self._others_sm,
            "gpm": lambda: {"sm": next(self.sm)},
        }
        return {name: answer_to(ask) for name, ask in answers.items()}

    def _others_sm(self) -> float | None:
        """Return the share of the time (0 to 1) in which kernels of others ran, since last asked.

        None where the run is not among those who computed, as in a container without the host's
        ids.
        """
        reported = pynvml.nvmlDeviceGetProcessUtilization(self.card, self.shares_us)
        shares = {
            each.pid: each.smUtil / 100
            for each in reported
            if each.timeStamp > self.shares_us and each.smUtil <= MOST_SHARE
        }
        self.shares_us = max([self.shares_us, *(each.timeStamp for each in reported)])
        others = [share for pid, share in shares.items() if not self._is_own(pid)]
        return round(sum(others), 4) if len(others) < len(shares) else None

    def _is_own(self, pid: int) -> bool:
        """Return whether `pid` is the run's process, a thread of it (newer drivers), or a child."""
        if pid == self.own_pid or Path(f"/proc/{self.own_pid}/task/{pid}").exists():
            return True
        parents = answer_to(lambda: psutil.Process(pid).parents()) or []
        return any(parent.pid == self.own_pid for parent in parents)


def sm_activity(card: object) -> Iterator[float | None]:
    """Yield the average (0 to 1) since the last time of the SMs' activity, by a hardware counter.

    Hopper and later cards have it; of others there is nothing.
    """
    if not pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
        return
    samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
    pynvml.nvmlGpmSampleGet(card, samples[0])
    yield None  # there is no time to speak of yet
    while True:
        pynvml.nvmlGpmSampleGet(card, samples[1])
        query: Any = pynvml.c_nvmlGpmMetricsGet_t()
        query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = 1
        query.sample1, query.sample2 = samples
        slot = query.metrics[0]
        slot.metricId = SM_ACTIVITY
        pynvml.nvmlGpmMetricsGet(query)
        samples.reverse()
        is_known = slot.nvmlReturn == 0 and math.isfinite(slot.value)
        yield slot.value / 100 if is_known else None


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
    """Yield samples: shares of all cores' time, from the second on of the run as well.

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
