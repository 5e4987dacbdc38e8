"""Read one NVIDIA card through NVML; a metric that the card or its driver lacks is None."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import psutil
import pynvml

from labkit.process.events import now_ns

MOST_SHARE = 100  # %: drivers return leftovers of their buffer with shares above it
Answer = TypeVar("Answer")


class OtherProcess(TypedDict):
    """A process that is not the run's, and has a compute context on its card."""

    pid: int
    name: str


def first_answer(*questions: Callable[[], Answer]) -> Answer | None:
    """Return the first answer, or None where this card or driver has none."""
    for question in questions:
        # NVMLError, or pynvml's own where the driver is older than it expects
        with contextlib.suppress(Exception):
            return question()
    return None


def name_of(pid: int) -> str:
    """Return the name of a process, as far as psutil or the driver can tell."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    name = first_answer(lambda: pynvml.nvmlSystemGetProcessName(pid))
    return Path(name).name if isinstance(name, str) else "a process"


class GpuMeter:
    """One card: driver-buffered utilization, memory, power, energy, clocks and GPM counters."""

    def __init__(self, uuid: str, own_pid: int):
        """Open the card by UUID (NVML's order is not CUDA's); raises NVMLError where it cannot."""
        self.own_pid = own_pid
        self.ancestors: set[int] = set()  # the notebook's kernel: it may hold the card without work
        with contextlib.suppress(psutil.Error):
            self.ancestors = {each.pid for each in psutil.Process(own_pid).parents()}
        pynvml.nvmlInit()
        self.card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.seen_us = 0  # the driver's stamp of the last utilization sample read
        self.shares_us = time.time_ns() // 1000  # and of the last share of the SMs by process
        self.own_seen = False  # whether the run has been among those processes
        self.epoch_ns = time.time_ns() - now_ns()  # the driver stamps in wall-clock time
        self.gpm = first_answer(lambda: GpmMeter(self.card))

    def read(self) -> dict[str, Any]:
        """Return one sample of everything the card reports, None where it does not."""
        card = self.card
        answers: dict[str, Callable[[], Any]] = {
            "gpu_now": lambda: _used(pynvml.nvmlDeviceGetUtilizationRates(card)),
            "gpu": self._driver_samples,
            "memory_gib": lambda: round(pynvml.nvmlDeviceGetMemoryInfo(card).used / 2**30, 3),
            "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(card) / 1e3,
            "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3,
            "energy_j": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3,
            "sm_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
            "clock_reasons": lambda: clock_reasons(card),
            "others": self._others,
            "others_sm": self._others_sm,
            "gpm": lambda: self.gpm and self.gpm.read(),
        }
        return {name: first_answer(ask) for name, ask in answers.items()}

    def _driver_samples(self) -> list[tuple[int, float]]:
        """Return the driver's own utilization samples since the last call: (t_ns, 0 to 1)."""
        kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
        _, samples = pynvml.nvmlDeviceGetSamples(self.card, kind, self.seen_us)
        fresh = [sample for sample in samples if sample.timeStamp > self.seen_us]
        self.seen_us = max((sample.timeStamp for sample in fresh), default=self.seen_us)
        found = []
        for sample in fresh:
            t_ns = sample.timeStamp * 1000 - self.epoch_ns
            found.append((t_ns, sample.sampleValue.uiVal / 100))
        return found

    def _other_pids(self) -> set[int] | None:
        """Return the other processes with a compute context on the card, idle or not.

        What started the run, such as a notebook's kernel with a model of its own, is not among
        them. None while the run is not among those listed: it has no context yet, or the driver
        reports process ids of another namespace (the host's, in a container).
        """
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(self.card)
        listed = {process.pid for process in running}
        others = {pid for pid in listed if not self._is_own(pid)}
        return None if others == listed else others - self.ancestors

    def _others(self) -> int | None:
        """Return how many other processes have a compute context on the card."""
        others = self._other_pids()
        return None if others is None else len(others)

    def named_others(self) -> list[OtherProcess]:
        """Return the other processes on the card; [] where none are known."""
        others = first_answer(self._other_pids) or ()
        return [{"pid": pid, "name": name_of(pid)} for pid in sorted(others)]

    def _others_sm(self) -> float | None:
        """Return the share of the time (0 to 1) in which kernels of others ran, since last asked.

        Where the ids are of another namespace, at most one of them is the run: all but the largest
        share is the least that others had. None where that is nothing, or nobody computed.
        """
        reported = pynvml.nvmlDeviceGetProcessUtilization(self.card, self.shares_us)
        fresh = []
        for sample in reported:
            if sample.timeStamp > self.shares_us and sample.smUtil <= MOST_SHARE:
                fresh.append(sample)
        if not fresh:
            return None
        self.shares_us = max(sample.timeStamp for sample in fresh)
        shares = {sample.pid: sample.smUtil / 100 for sample in fresh}
        own = [share for pid, share in shares.items() if self._is_own(pid)]
        self.own_seen = self.own_seen or bool(own)
        if self.own_seen:
            return round(sum(shares.values()) - sum(own), 4)
        return round(sum(shares.values()) - max(shares.values()), 4) or None

    def _is_own(self, pid: int) -> bool:
        """Return whether `pid` is the run's process, a thread of it (newer drivers), or a child."""
        if pid == self.own_pid or Path(f"/proc/{self.own_pid}/task/{pid}").exists():
            return True
        with contextlib.suppress(psutil.Error):
            return any(parent.pid == self.own_pid for parent in psutil.Process(pid).parents())
        return False


class GpmMeter:
    """Hardware counters of Hopper and later cards: SM, tensor core and memory activity."""

    METRICS = {"sm": 2, "tensor": 5, "dram": 10}  # NVML_GPM_METRIC_*

    def __init__(self, card: object):
        if not pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.card = card
        self.samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        pynvml.nvmlGpmSampleGet(card, self.samples[0])

    def read(self) -> dict[str, float | None]:
        """Return each metric's average (0 to 1) since the last call."""
        pynvml.nvmlGpmSampleGet(self.card, self.samples[1])
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(self.METRICS)
        query.sample1 = self.samples[0]
        query.sample2 = self.samples[1]
        for slot, number in zip(_metrics_in(query), self.METRICS.values(), strict=False):
            slot.metricId = number
        pynvml.nvmlGpmMetricsGet(query)
        self.samples.reverse()
        found: dict[str, float | None] = {}
        for name, slot in zip(self.METRICS, _metrics_in(query), strict=False):
            is_known = slot.nvmlReturn == 0 and math.isfinite(slot.value)
            found[name] = slot.value / 100 if is_known else None
        return found


def clock_reasons(card: object) -> int | None:
    """Return why the clock is as it is, in bits: 0x4 is the power limit, 0x60 heat."""
    return first_answer(
        lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(card),
        lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(card),  # before driver 535
    )


def _used(rates: Any) -> float:
    """Return what nvidia-smi prints, 0 to 1."""
    return rates.gpu / 100


def _metrics_in(query: Any) -> Sequence[Any]:
    """Return the array in a GPM query; pynvml's structures have no types."""
    return query.metrics
