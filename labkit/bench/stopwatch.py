"""What a measured function is given: the device, and a stopwatch for calls.

Times are those of one call: blocks of calls in a row, each long enough that a clock's own cost does
not count, repeated until the interquartile range is a tenth of the median, as
`adaptive_autorange` of `torch.utils.benchmark` does it.
"""

from __future__ import annotations

import math
import statistics
import time
import timeit
from collections.abc import Callable

import numpy as np
import torch

from labkit.bench.grid import NOISY
from labkit.instruments import machine
from labkit.spec import QUICK_SHARE, quick_run

MIN_SECONDS = 0.1  # of timing for a row
MOST_MORE_SECONDS = 2.0  # of timing, where times do not settle
BLOCK_SECONDS = 2e-3  # a block of calls takes as long
WARM_SECONDS = 0.05  # of work before CUDA is timed: until then its clocks may be low
ROUNDS = 7  # of several ways that are timed in turn
MOST_KEPT = 1000  # times of a row: a line of a log has a bound

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
    ) -> float:
        """Time one call of `work` and return the median in seconds.

        Args:
            work: What is timed. It is called a few times before the clock starts.
            flops: Floating-point operations of one call, for the column `tflops`.
            bytes: Bytes that one call moves, for the column `gib_s`.
            seconds: How long to measure; up to 2 s longer where times vary by more than 10 %.
        """
        return self._in_turn({"": work}, seconds, rounds=1, flops=flops, bytes=bytes)[""]

    def compare(
        self, *, flops: float | None = None, bytes: float | None = None, **ways: Work
    ) -> dict[str, float]:
        """Time several ways to do the same in turn, a row each, and return their medians (s).

        What slows the machine for a while slows them all: ratios are firmer than those of one
        after the other. The column `way` holds the name of each. Where times vary by more than
        10 %, further rounds follow for up to 2 s. `flops` and `bytes` are those of each.
        """
        return self._in_turn(ways, 0.0, ROUNDS, flops=flops, bytes=bytes)

    def skip(self, why: str) -> None:
        """End this row, which cannot be measured here: `bench.skip("needs CUDA")`."""
        raise Skipped(why)

    def needs_compiler(self) -> None:
        """End this row where `torch.compile`, or Triton, lacks what it needs, and say what."""
        if lacking := machine.compile_lacks(self.device):
            self.skip(lacking)

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        machine.finish(self.device)

    def _in_turn(
        self, ways: dict[str, Work], seconds: float, rounds: int, **amounts: float | None
    ) -> dict[str, float]:
        """Time each way, block by block in turn; add their rows, return the medians of a call (s).

        That takes so many seconds and rounds, or longer where times do not settle.
        """
        calls = {name: self._calls_in_a_block(work) for name, work in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        seconds *= QUICK_SHARE if quick_run() else 1.0
        at_most = seconds if quick_run() else seconds + MOST_MORE_SECONDS
        began = time.perf_counter()
        spent = 0.0
        while (
            rounds > 0
            or spent < seconds
            or (spent < at_most and any(map(is_noisy, times.values())))
        ):
            for name, work in ways.items():
                times[name].append(self._block(work, calls[name]))
            rounds -= 1
            spent = time.perf_counter() - began
        for name, each in times.items():
            kept = sorted(each)[:: math.ceil(len(each) / MOST_KEPT)]
            self.rows.append({"seconds": kept, "values": {"way": name} if name else {}, **amounts})
        return {name: statistics.median(each) for name, each in times.items()}

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
        return timeit.Timer(work, timer=self._now).timeit(calls) / calls

    def _now(self) -> float:
        """Return the time once the device has done what it was given (s)."""
        self.synchronize()
        return time.perf_counter()


def is_noisy(times: list[float]) -> bool:
    """Return whether the interquartile range is above a tenth of the median."""
    low, middle, high = np.percentile(times, [25, 50, 75])
    return bool(high - low > NOISY * middle)
