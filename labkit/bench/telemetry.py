"""Sample NVML and psutil in a process of their own: a hung driver stops only the samples.

`python -m labkit.bench.telemetry SUPERVISOR_PID` runs in the run's folder and appends `telemetry`
events to its log until the supervisor ends it. A metric that is not here is None in every sample.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from labkit import quotas
from labkit.bench.process import die_with, wait_for_run
from labkit.process.events import FILE_NAME, EventLog, now_ns

PERIOD_S = 0.2
THIN_AFTER_S = 3_600.0  # a run of days must not fill the disk
MOST_OUTSIDE = 14_400  # samples from outside that are kept: an hour of them, then every other one
SAMPLE_S, LOOK_S = 0.25, 0.04  # outside: between samples; between looks at processes' states
TEGRA = Path("/etc/nv_tegra_release")  # of a Jetson, whose driver has little of NVML
AUTOGRAD = "pt_autograd"  # torch's name of the threads that launch a device's backward pass
WORKER = "pt_data_worker"  # the name that torch gives its loader workers (Linux)
SPAWNED = "multiprocessing"  # in the command line of a worker that was spawned or forkserved
NAMED_EVERY = 25  # samples between two looks at what else uses the cores: 5 s
NAMED_FIRST = 5  # the sample with the first of them: runs may last seconds only
MOST_NAMED = 3
LEAST_CORES = 0.1  # that a program uses, to be named
NO_WORKERS = ("resource_tracker", "forkserver import", "resource_sharer")


def period_s(age_s: float) -> float:
    """Return the time between samples of a run of that age: all of them are at most two hours'."""
    return PERIOD_S * max(1.0, age_s / THIN_AFTER_S) ** 2


def wait_for(path: Path, names: tuple[str, ...]) -> list[dict]:
    """Return the events of these names from the log at `path`, as soon as all are there."""
    found: dict[str, dict] = {}
    while len(found) < len(names):
        time.sleep(0.02)
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                event = json.loads(line)
                found |= {event["event"]: event} if event["event"] in names else {}
    return [found[name] for name in names]


class CpuMeter:
    """CPU use of the whole machine, and memory of the run's own processes."""

    def __init__(self, bench_pid: int):
        self.bench = psutil.Process(bench_pid)
        self.tasks = Path(f"/proc/{bench_pid}/task")
        self.workers: dict[str, psutil.Process] = {}
        self.spent_s: dict[int, float] = {}  # CPU time of each of the run's processes so far
        self.waited: dict[str, int] = {}  # ns that each of their threads stood in line for a core
        self.names: dict[str, str] = {}  # of the bench's threads
        self.read_at = time.monotonic()
        self.cores = quotas.cpu_cores().of  # what the shares are of
        psutil.cpu_percent()

    def read(self) -> dict[str, Any]:
        """Return {cpu, own_cpu, line_cpu: shares of all cores used and waited for; rss_gib}.

        `launch_line` is the share of the time in which a thread that launches kernels stood in
        line for a core.
        """
        own = rss = line = launch_line = None  # where one of them has just ended
        count = self.cores
        with contextlib.suppress(psutil.Error):
            family = self._family()
            rss = round(sum(process.memory_info().rss for process in family) / 2**30, 4)
            times, now = [(p.pid, p.cpu_times()) for p in family], time.monotonic()
            spent = {pid: each.user + each.system for pid, each in times}
            used = sum(s - self.spent_s.get(pid, s) for pid, s in spent.items())
            own = round(used / max(1e-9, (now - self.read_at) * count), 3)
            waited = {thread: ns for p in family for thread, ns in _in_line_ns(p.pid)}
            if waited and self.waited:
                more = {thread: ns - self.waited.get(thread, ns) for thread, ns in waited.items()}
                elapsed_ns = 1e9 * max(1e-9, now - self.read_at)
                line = round(sum(more.values()) / elapsed_ns / count, 3)
                launching = sum(ns for thread, ns in more.items() if self._launches(thread))
                launch_line = round(launching / elapsed_ns, 3)
            self.spent_s, self.read_at, self.waited = spent, now, waited
        return {"cpu": psutil.cpu_percent() / 100, "own_cpu": own, "cpus": count, "rss_gib": rss,
                "line_cpu": line, "launch_line": launch_line}  # fmt: skip

    def _launches(self, thread: str) -> bool:
        """Whether a thread (its `schedstat`) is the bench's first, or autograd's for a device."""
        place = Path(thread).parent
        if self.tasks not in place.parents:
            return False
        if thread not in self.names:
            self.names[thread] = ""
            with contextlib.suppress(OSError):  # it has just ended
                self.names[thread] = (place / "comm").read_text()
        return place.name == str(self.bench.pid) or self.names[thread].startswith(AUTOGRAD)

    def _family(self) -> list:
        """Return the bench and its workers; psutil would look at every process: milliseconds."""
        if not self.tasks.exists():  # another system than Linux
            return [self.bench, *self.bench.children()]
        with contextlib.suppress(OSError):  # a thread has just ended
            pids = " ".join(task.read_text() for task in self.tasks.glob("*/children")).split()
            self.workers = {pid: self.workers.get(pid) or psutil.Process(int(pid)) for pid in pids}
        return [self.bench, *self.workers.values()]


def _in_line_ns(pid: int) -> Iterator[tuple[str, int]]:
    """Yield each thread of a process, and how long it has stood in line for a core (Linux)."""
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield str(path), int(path.read_text().split()[1])


class OtherPrograms:
    """The programs outside of the run that use the machine's cores most."""

    def __init__(self, own: set[int]):
        """`own` are the processes that, with all that they started, are the run."""
        self.own = own
        self.spent_s = self._spent_s()
        self.read_at = time.monotonic()

    def read(self) -> list[dict[str, Any]]:
        """Return `pid`, `name` and `cores` of those since the last call, the busiest first."""
        spent_s = self._spent_s()
        now = time.monotonic()
        elapsed_s = max(1e-9, now - self.read_at)
        cores = {pid: (s - self.spent_s.get(pid, 0.0)) / elapsed_s for pid, s in spent_s.items()}
        self.spent_s = spent_s
        self.read_at = now
        busiest = sorted(cores, key=lambda pid: -cores[pid])[:MOST_NAMED]
        return [
            {"pid": pid, "name": _name_of(pid), "cores": round(cores[pid], 2)}
            for pid in busiest
            if cores[pid] >= LEAST_CORES
        ]

    def _spent_s(self) -> dict[int, float]:
        """Return the CPU time of each process outside of the run, s."""
        parents = {}
        spent_s = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                parents[process.pid] = process.ppid()
                spent_s[process.pid] = times.user + times.system
        return {pid: s for pid, s in spent_s.items() if not self._is_own(pid, parents)}

    def _is_own(self, pid: int, parents: dict[int, int]) -> bool:
        while pid in parents and pid not in self.own and parents[pid] != pid:
            pid = parents[pid]
        return pid in self.own


class GpuMeter:
    """One card through NVML: driver-buffered utilization, memory, power, energy, PCIe, GPM."""

    def __init__(self, uuid: str, own_pid: int):
        """Open the card by UUID (NVML's order is not CUDA's); raises NVMLError where it cannot."""
        self.own_pid = own_pid
        if TEGRA.exists():  # what it answers all the same need not be true
            raise RuntimeError("a Jetson's driver has little of NVML: see tegrastats")
        pynvml.nvmlInit()
        self.card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.seen_us = 0  # the driver's stamp of the last utilization sample read
        self.shares_us, self.own_seen = 0, False  # of the processes' shares of the SMs
        self.epoch_ns = time.time_ns() - now_ns()  # the driver stamps in wall-clock time
        self.gpm = _ask(lambda: GpmMeter(self.card))

    def read(self) -> dict[str, Any]:
        """Return one sample of everything the card tells, None where it does not."""
        nvml, card = pynvml, self.card
        return {  # gpu_now: what nvidia-smi prints; clock_reasons: 0x4 the power limit, 0x60 heat
            "gpu_now": _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100),
            "gpu": _ask(self._driver_samples),
            "memory_gib": _ask(lambda: round(nvml.nvmlDeviceGetMemoryInfo(card).used / 2**30, 3)),
            "power_w": _ask(lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1e3),
            "power_limit_w": _ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3),
            "energy_j": _ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3),
            "sm_mhz": _ask(lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)),
            "clock_reasons": _ask(
                lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(card),
                lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card),  # before driver 535
            ),
            "others": _ask(self._others),
            "others_sm": _ask(self._others_sm),
            "gpm": self.gpm and _ask(self.gpm.read),
        }

    def _driver_samples(self) -> list[tuple[int, float]]:
        """Return the driver's own utilization samples since the last call: (t_ns, 0 to 1)."""
        kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
        _, samples = pynvml.nvmlDeviceGetSamples(self.card, kind, self.seen_us)
        fresh = [s for s in samples if s.timeStamp > self.seen_us]
        self.seen_us = max((s.timeStamp for s in fresh), default=self.seen_us)
        return [(s.timeStamp * 1000 - self.epoch_ns, s.sampleValue.uiVal / 100) for s in fresh]

    def _other_pids(self) -> set[int] | None:
        """Return the other processes with a compute context on the card, idle or not.

        None while the run is not among those listed: it has no context yet, or the driver tells
        process ids of another namespace (the host's, in a container).
        """
        listed = {p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(self.card)}
        others = {pid for pid in listed if not self._is_own(pid)}
        return others if others != listed else None

    def _others(self) -> int | None:
        """Return how many other processes have a compute context on the card."""
        others = self._other_pids()
        return None if others is None else len(others)

    def named_others(self) -> list[dict[str, Any]]:
        """Return `pid` and `name` of the other processes on the card; [] where none are known."""
        others = _ask(self._other_pids) or ()
        return [{"pid": pid, "name": _name_of(pid)} for pid in sorted(others)]

    def _others_sm(self) -> float | None:
        """Return the share of the time (0 to 1) in which kernels of others ran, since last asked.

        Where the ids are of another namespace, at most one of them is the run: all but the largest
        share is the least that others had. None where that is nothing, or nobody computed.
        """
        told = pynvml.nvmlDeviceGetProcessUtilization(self.card, self.shares_us)
        # drivers return leftovers of their buffer too: old samples, and shares above 100 %
        fresh = [s for s in told if s.timeStamp > self.shares_us and s.smUtil <= 100]
        if not fresh:
            return None
        self.shares_us = max(s.timeStamp for s in fresh)
        shares = {s.pid: s.smUtil / 100 for s in fresh}
        own = [share for pid, share in shares.items() if self._is_own(pid)]
        self.own_seen = self.own_seen or bool(own)
        if self.own_seen:
            return round(sum(shares.values()) - sum(own), 4)
        return round(sum(shares.values()) - max(shares.values()), 4) or None

    def _is_own(self, pid: int) -> bool:
        """Whether `pid` is the run's process, a thread of it (newer drivers), or a child."""
        if pid == self.own_pid or Path(f"/proc/{self.own_pid}/task/{pid}").exists():
            return True
        with contextlib.suppress(psutil.Error):
            return any(parent.pid == self.own_pid for parent in psutil.Process(pid).parents())
        return False


def _name_of(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    name = _ask(lambda: pynvml.nvmlSystemGetProcessName(pid))
    return Path(name).name if isinstance(name, str) else "a process"


class GpmMeter:
    """Hardware counters of Hopper and later cards: SM, tensor core and memory activity."""

    METRICS = {"sm": 2, "occupancy": 3, "tensor": 5, "dram": 10}  # NVML_GPM_METRIC_*

    def __init__(self, card: Any):
        if not pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.card, self.samples = card, [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        pynvml.nvmlGpmSampleGet(card, self.samples[0])

    def read(self) -> dict[str, float | None]:
        """Return each metric's average (0 to 1) since the last call."""
        pynvml.nvmlGpmSampleGet(self.card, self.samples[1])
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(self.METRICS)
        query.sample1, query.sample2 = self.samples
        for slot, metric in enumerate(self.METRICS.values()):
            query.metrics[slot].metricId = metric
        pynvml.nvmlGpmMetricsGet(query)
        self.samples.reverse()
        return {
            name: m.value / 100 if m.nvmlReturn == 0 and math.isfinite(m.value) else None
            for name, m in zip(self.METRICS, query.metrics, strict=False)
        }


def _ask(*questions: Callable[[], Any]) -> Any:
    """Return the first answer, or None where this card or driver has none."""
    for question in questions:
        # NVMLError, or pynvml's own where the driver is older than it expects
        with contextlib.suppress(Exception):
            return question()
    return None


# -- an unmodified script, seen from the process that started it ----------------------------------


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
        self.period_s = SAMPLE_S
        self.spent: dict[tuple[int, float], float] = {}  # CPU seconds of each process so far
        self.start = self.before = time.monotonic()
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
        cards = {}
        with contextlib.suppress(Exception):  # no driver, another version
            pynvml.nvmlInit()
            for i in range(pynvml.nvmlDeviceGetCount()):
                uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i))
                cards[uuid] = GpuMeter(uuid, self.root.pid)
        while not self.ended.is_set():
            with contextlib.suppress(psutil.Error):  # it has just ended
                family = [self.root, *self.root.children(recursive=True)]
                self._keep(self._sample(family, self._states(family), cards))

    def _keep(self, sample: Sample) -> None:
        """Keep a sample; of too many every other one, and from now on at that pace."""
        self.samples.append(sample)
        if len(self.samples) >= MOST_OUTSIDE:
            del self.samples[::2]
            self.period_s *= 2

    def _states(self, family: list[psutil.Process]) -> dict[int, float]:
        """Look at every process for a while: {pid: share of looks in which it had work}."""
        seen: dict[int, list[bool]] = {}
        until = self.before + self.period_s
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
            machine=psutil.cpu_percent() / 100 * quotas.cpu_cores().of, gpus=gpus,
        )  # fmt: skip


def is_worker(process: psutil.Process) -> bool:
    """Whether a process prepares batches, as far as its name and command line tell."""
    command = " ".join(process.cmdline())
    spawned = SPAWNED in command and not any(word in command for word in NO_WORKERS)
    return spawned or process.name() == WORKER


def main(parent: int) -> None:
    """Sample until the supervisor ends this process."""
    die_with(parent)
    wait_for_run()
    log = EventLog(".")
    hello, machine = wait_for(Path(FILE_NAME), ("hello", "machine"))
    meters: list[Any] = [CpuMeter(hello["pid"])]
    if uuid := machine.get("uuid"):
        try:
            meters.append(GpuMeter(uuid, hello["pid"]))
        except Exception as error:  # no driver, another version, a card that is lost
            log.write("no_nvml", why=f"{type(error).__name__}: {error}")
    programs = OtherPrograms({hello["pid"], parent})
    begun = due = time.monotonic()
    named: list[dict[str, Any]] = []
    for count in itertools.count():
        log.write("telemetry", **{k: v for meter in meters for k, v in meter.read().items()})
        if len(meters) > 1 and (found := meters[1].named_others()) != named:
            named = found
            log.write("on_the_card", processes=named)
        if count % NAMED_EVERY == NAMED_FIRST and (busiest := programs.read()):
            log.write("beside", processes=busiest)
        due += period_s(due - begun)  # from when it was due: no drift
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
