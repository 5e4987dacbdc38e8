"""What a measured function is given: the device, and a stopwatch for calls.

Times are those of one call: blocks of calls in a row, each long enough that a clock's own cost does
not count, repeated until the interquartile range is a tenth of the median, as
`adaptive_autorange` of `torch.utils.benchmark` does it. On CUDA a block is timed by two events.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from labkit.bench import devices
from labkit.bench.compiling import compile_lacks
from labkit.bench.grid import NOISY
from labkit.bench.quick_runs import quick_run

MIN_SECONDS = 0.1  # of timing for a row
QUICK_PART = 10  # with LABKIT_QUICK=1 a row takes one part in 10, whatever its noise
MOST_MORE_SECONDS = 2.0  # of timing, where times do not settle
BLOCK_SECONDS = 2e-3  # a block of calls takes as long
WARM_SECONDS = 0.05  # of work before CUDA is timed: until then its clocks may be low
ROUNDS = 7  # of several ways that are timed in turn
QUICK_ROUNDS = 3
MOST_KEPT = 200  # times kept of one row

Work = Callable[[], object]


class Skipped(Exception):
    """Raised by `bench.skip`: this row cannot be measured here, and why."""


class Bench:
    """What a measured function is given: the device, and a stopwatch."""

    def __init__(self, device: torch.device):
        self.device = device
        self.rows: list[dict] = []  # as `time` and `compare` add them
        self.returned: dict[str, object] = {}  # what the function returned: columns of every row

    def time(
        self,
        work: Work,
        *,
        flops: float | None = None,
        bytes: float | None = None,
        seconds: float = MIN_SECONDS,
        **columns: object,
    ) -> float:
        """Time one call of `work` and return the median in seconds.

        Args:
            work: What is timed. It is called a few times before the clock starts.
            flops: Floating-point operations of one call, for the column `tflops`.
            bytes: Bytes that one call moves, for the column `gib_s`.
            seconds: How long to measure; up to 2 s longer where times vary by more than 10 %.
            columns: More columns for this row, where one function times several things.
        """
        times = self._times(work, seconds / QUICK_PART if quick_run() else seconds)
        self._add(times, flops, bytes, columns)
        return statistics.median(times)

    def compare(
        self,
        *,
        flops: float | None = None,
        bytes: float | None = None,
        **ways: Work,
    ) -> dict[str, float]:
        """Time several ways to do the same in turn, a row each, and return their medians (s).

        What slows the machine for a while slows them all: ratios are firmer than those of one
        after the other. The column `way` holds the name of each. Where times vary by more than
        10 %, further rounds follow for up to 2 s.
        """
        calls = {name: self._calls_in_a_block(work) for name, work in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}

        def rounds(number: int) -> None:
            for _ in range(number):
                for name, work in ways.items():
                    times[name].append(self._block(work, calls[name]))

        rounds(QUICK_ROUNDS if quick_run() else ROUNDS)
        ends = time.perf_counter() + MOST_MORE_SECONDS
        while any(map(noisy, times.values())) and time.perf_counter() < ends and not quick_run():
            rounds(1)
        for name, each in times.items():
            self._add(each, flops, bytes, {"way": name})
        return {name: statistics.median(each) for name, each in times.items()}

    def skip(self, why: str) -> None:
        """End this row, which cannot be measured here: `bench.skip("needs CUDA")`."""
        raise Skipped(why)

    def needs_compiler(self) -> None:
        """End this row where `torch.compile`, or Triton, lacks what it needs, and say what."""
        if lacking := compile_lacks(self.device):
            self.skip(lacking)

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        devices.finish(self.device)

    def _add(
        self, times: list[float], flops: float | None, bytes: float | None, columns: dict
    ) -> None:
        kept = sorted(times)[:: math.ceil(len(times) / MOST_KEPT)]
        self.rows.append({"seconds": kept, "flops": flops, "bytes": bytes, "values": columns})

    def _times(self, work: Work, seconds: float) -> list[float]:
        """Return times of one call (s), one for each block of calls."""
        calls = self._calls_in_a_block(work)
        times: list[float] = []
        most = seconds if quick_run() else seconds + MOST_MORE_SECONDS
        spent = 0.0
        while not times or (noisy(times) and spent < most):
            spent += seconds
            ends = time.perf_counter() + seconds
            while not times or time.perf_counter() < ends:
                times.append(self._block(work, calls))
        return times

    def _calls_in_a_block(self, work: Work) -> int:
        """Warm `work` up, and return how many calls make a block."""
        self._block(work, 1)
        started = time.perf_counter()
        one = self._block(work, 1)
        while self.device.type != "cpu" and time.perf_counter() - started < WARM_SECONDS:
            one = self._block(work, 1)
        return max(1, int(BLOCK_SECONDS / max(one, 1e-7)))

    def _block(self, work: Work, calls: int) -> float:
        """Return the time of one of `calls` calls in a row (s)."""
        if self.device.type == "cuda":
            first = torch.cuda.Event(enable_timing=True)
            last = torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(calls):
                work()
            last.record()
            last.synchronize()
            return first.elapsed_time(last) / 1e3 / calls
        self.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        self.synchronize()
        return (time.perf_counter() - started) / calls


def noisy(times: list[float]) -> bool:
    """Return whether the interquartile range is above a tenth of the median."""
    low, middle, high = np.percentile(times, [25, 50, 75])
    return bool(high - low > NOISY * middle)
