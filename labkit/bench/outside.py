"""Observe an unmodified script from outside: its processes' CPU use, and the GPUs' counters.

Reads /proc through psutil and the driver through NVML, in the process that started the script and
never in the script's own. Whatever this machine does not tell is None.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil
import pynvml

from labkit.bench.telemetry import GpuMeter

PERIOD_S, LOOK_S = 0.25, 0.04  # between samples; between looks at the processes' states
WORKER = "pt_data_worker"  # the name that torch gives its loader workers (Linux)
SPAWNED = "multiprocessing"  # in the command line of a worker that was spawned or forkserved
NO_WORKERS = ("resource_tracker", "forkserver import", "resource_sharer")


@dataclass(frozen=True)
class Sample:
    """A quarter of a second: CPU cores in use by role, and each GPU's state."""

    at_s: float
    main: float
    main_runs: float
    workers: float
    workers_run: float
    worker_count: int
    others: float
    machine: float
    gpus: dict[str, dict[str, Any]]  # by UUID: the GpuMeter's reading, and `own`


class Outside:
    """Looks at the family of `pid` four times a second, from a thread, until `stop`."""

    def __init__(self, pid: int):
        self.root, self.samples = psutil.Process(pid), []
        self.spent: dict[tuple[int, float], float] = {}  # CPU seconds of each process so far
        self.start = self.before = time.monotonic()
        self.ended = threading.Event()
        psutil.cpu_percent()
        self.thread = threading.Thread(target=self._look, daemon=True)  # a driver may hang
        self.thread.start()

    def stop(self) -> list[Sample]:
        """End, and return the samples."""
        self.ended.set()
        self.thread.join(2 * PERIOD_S)
        return list(self.samples)

    def _look(self) -> None:
        cards = {}
        with contextlib.suppress(Exception):  # no driver, another version
            pynvml.nvmlInit()
            for i in range(pynvml.nvmlDeviceGetCount()):
                uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i))
                cards[uuid] = GpuMeter(uuid, self.root.pid)
        while not self.ended.is_set():
            with contextlib.suppress(psutil.Error):  # it has just ended
                family = [self.root, *self.root.children(recursive=True)]
                self.samples.append(self._sample(family, self._states(family), cards))

    def _states(self, family: list[psutil.Process]) -> dict[int, float]:
        """Look at every process for a while: {pid: share of looks in which it had work}."""
        seen: dict[int, list[bool]] = {}
        until = self.before + PERIOD_S
        while not self.ended.wait(LOOK_S) and time.monotonic() < until:
            for process in family:
                with contextlib.suppress(psutil.Error):
                    runs = process.status() == psutil.STATUS_RUNNING  # on a core, or waiting for it
                    seen.setdefault(process.pid, []).append(runs)
        return {pid: sum(looks) / len(looks) for pid, looks in seen.items()}

    def _sample(
        self, family: list[psutil.Process], states: dict[int, float], cards: dict[str, GpuMeter]
    ) -> Sample:
        now = time.monotonic()
        elapsed, self.before = now - self.before, now
        spent, cores, workers = {}, {}, set()
        for process in family:
            with contextlib.suppress(psutil.Error):
                times, key = process.cpu_times(), (process.pid, process.create_time())
                spent[key] = times.user + times.system
                cores[process.pid] = (spent[key] - self.spent.get(key, 0.0)) / elapsed
                if process is not self.root and is_worker(process):
                    workers.add(process.pid)
        self.spent = spent
        main = max(cores.keys() - workers, key=cores.get, default=self.root.pid)
        gpus = {}
        for uuid, card in cards.items():
            gpus[uuid] = card.read() | {"own": None}
            with contextlib.suppress(pynvml.NVMLError):
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(card.card)
                gpus[uuid]["own"] = any(process.pid in cores for process in running)
        return Sample(
            at_s=now - self.start, main=cores.get(main, 0.0), main_runs=states.get(main, 0.0),
            workers=sum(cores[pid] for pid in workers), worker_count=len(workers),
            workers_run=sum(states.get(pid, 0.0) for pid in workers) / max(1, len(workers)),
            others=sum(cores[pid] for pid in cores.keys() - workers - {main}),
            machine=psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1), gpus=gpus,
        )  # fmt: skip


def is_worker(process: psutil.Process) -> bool:
    """Whether a process prepares batches, as far as its name and command line tell."""
    command = " ".join(process.cmdline())
    spawned = SPAWNED in command and not any(word in command for word in NO_WORKERS)
    return spawned or process.name() == WORKER
