"""Watch an unmodified script from the process that started it: its processes and its GPUs."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from statistics import fmean

import psutil
import pynvml

from labkit import quotas
from labkit.bench.cpu_use import CpuUse
from labkit.bench.gpu_meter import GpuMeter, GpuReading

MOST_SAMPLES = 14_400  # that are kept: an hour of them, then every other one
SAMPLE_S = 0.25  # between samples
LOOK_S = 0.04  # between looks at the processes' states
WORKER = "pt_data_worker"  # the name that torch gives its loader workers (Linux)
SPAWNED = "multiprocessing"  # in the command line of a worker that was spawned or forkserved
NO_WORKERS = ("resource_tracker", "forkserver import", "resource_sharer")
STATUS_TELLS = not psutil.WINDOWS  # whose processes are all "running", whatever they wait for


class CardReading(GpuReading):
    """A card's sample, and whether one of the script's processes has a context on it."""

    own: bool | None


@dataclass(frozen=True)
class Sample:
    """A quarter of a second: CPU cores in use by role, and each GPU's state."""

    at_s: float
    main: float
    main_runs: float  # share of looks at which the main process had work
    workers: float
    workers_run: float
    worker_count: int
    others: float
    machine: float
    gpus: dict[str, CardReading]  # by UUID


class Outside:
    """Looks at the family of `pid` four times a second, from a thread, until `stop`."""

    def __init__(self, pid: int):
        self.root = psutil.Process(pid)
        self.samples: list[Sample] = []
        self.period_s = SAMPLE_S
        self.use = CpuUse()
        self.start = time.monotonic()
        self.ended = threading.Event()
        psutil.cpu_percent()
        self.thread = threading.Thread(target=self._look, daemon=True)  # a driver may hang
        self.thread.start()

    def stop(self) -> list[Sample]:
        """End, and return the samples."""
        self.ended.set()
        self.thread.join(2 * SAMPLE_S)
        return list(self.samples)

    def _look(self) -> None:
        cards = _all_cards(self.root.pid)
        while not self.ended.is_set():
            with contextlib.suppress(psutil.Error):  # it has just ended
                family = [self.root, *self.root.children(recursive=True)]
                self._keep(self._sample(family, self._states(family), cards))

    def _keep(self, sample: Sample) -> None:
        """Keep a sample; of too many every other one, and from now on at that pace."""
        self.samples.append(sample)
        if len(self.samples) >= MOST_SAMPLES:
            del self.samples[::2]
            self.period_s *= 2

    def _states(self, family: list[psutil.Process]) -> dict[psutil.Process, float]:
        """Look at every process for a while; return the share of looks in which it had work."""
        seen: dict[psutil.Process, list[bool]] = {}
        until = self.use.looked_at + self.period_s
        while not self.ended.wait(LOOK_S) and time.monotonic() < until:
            for process in family:
                with contextlib.suppress(psutil.Error):
                    runs = process.status() == psutil.STATUS_RUNNING  # on a core, or waiting for it
                    seen.setdefault(process, []).append(runs)
        return {process: fmean(looks) for process, looks in seen.items()}

    def _sample(
        self,
        family: list[psutil.Process],
        states: dict[psutil.Process, float],
        cards: dict[str, GpuMeter],
    ) -> Sample:
        cores = self.use.look(family)
        if not STATUS_TELLS:
            states = {each: min(1.0, used) for each, used in cores.items()}
        workers = {each for each in cores if each is not self.root and is_worker(each)}
        others = cores.keys() - workers
        main = max((self.root, *others), key=lambda process: cores.get(process, 0.0))
        return Sample(
            at_s=self.use.looked_at - self.start,
            main=cores.get(main, 0.0),
            main_runs=states.get(main, 0.0),
            workers=sum(cores[each] for each in workers),
            worker_count=len(workers),
            workers_run=sum(states.get(each, 0.0) for each in workers) / max(1, len(workers)),
            others=sum(cores[each] for each in others - {main}),
            machine=psutil.cpu_percent() / 100 * quotas.cpu_cores().of,
            gpus={uuid: _read(card, {each.pid for each in cores}) for uuid, card in cards.items()},
        )


def _all_cards(own_pid: int) -> dict[str, GpuMeter]:
    """Return a meter for each card of the machine, by UUID; {} without a driver that answers."""
    cards = {}
    with contextlib.suppress(Exception):  # no driver, another version
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            cards[uuid] = GpuMeter(uuid, own_pid)
    return cards


def _read(card: GpuMeter, pids: set[int]) -> CardReading:
    """Return a card's sample, with whether one of these processes is on it."""
    own = None
    reading = card.read()
    with contextlib.suppress(pynvml.NVMLError):
        own = card.has_context_of(pids)
    return {**reading, "own": own}


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process prepares batches, as far as its name and command line tell."""
    with contextlib.suppress(psutil.Error):  # it has just ended
        command = " ".join(process.cmdline())
        spawned = SPAWNED in command and not any(word in command for word in NO_WORKERS)
        return spawned or process.name() == WORKER
    return False
