"""Read one NVIDIA card through NVML; a metric that the card or its driver lacks is None."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

SM_ACTIVITY = 2  # NVML_GPM_METRIC_SM_UTIL
MOST_SHARE = 100  # %: drivers return leftovers of their buffer with shares above it
Answer = TypeVar("Answer")


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
