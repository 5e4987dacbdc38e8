"""A notebook's own function on the bench: called once for each row of a grid, timed, written down.

Times are those of one call: blocks of calls in a row, each long enough that a clock's own cost does
not count, repeated until the interquartile range is a tenth of the median, as
`torch.utils.benchmark` does it. On CUDA a block is timed by two events.
"""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from labkit.bench import devices, machine, model_size
from labkit.bench.by_value import send_by_value
from labkit.bench.compiling import compile_lacks
from labkit.process.events import EventLog, RowFailure
from labkit.spec import NOISY, TIMED, quick_run

MIN_SECONDS = 0.1  # of timing for a row
QUICK_PART = 10  # with LABKIT_QUICK=1 a row takes one part in so many, whatever its noise
MOST_TIMES = 4  # the least time, at the most: for times that do not settle
BLOCK_SECONDS = 2e-3  # a block of calls takes as long
WARM_SECONDS = 0.05  # of work before CUDA is timed: until then its clocks may be low
ROUNDS = 7  # of several ways that are timed in turn
QUICK_ROUNDS = 3
MOST_KEPT = 200  # times kept of one row
MOST_TEXT = 300  # characters of an error
CARD_FAILED = re.compile(
    r"\b(CUDA|HIP) error|Triton Error \[(CUDA|HIP)\]: (?!out of memory)"
    "|CUDNN_STATUS_EXECUTION_FAILED"
)

Work = Callable[[], object]


@dataclass(frozen=True)
class Failure:
    """Why a row has no numbers."""

    kind: RowFailure
    text: str


# Of a card that has failed in mid-kernel: whatever this process asks of it from then on fails too
FAILED_BEFORE = Failure("mistake", "the card failed in an earlier row: measure this one again")


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
            seconds: How long to measure; four times as long where times vary by more than 10 %.
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
        after the other. The column `way` holds the name of each.
        """
        calls = {name: self._calls_in_a_block(work) for name, work in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(QUICK_ROUNDS if quick_run() else ROUNDS):
            for name, work in ways.items():
                times[name].append(self._block(work, calls[name]))
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
        most = seconds if quick_run() else MOST_TIMES * seconds
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
            first.query()  # sends it off: a driver for Windows may hold back what it has collected
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


def perform(order: dict, device: torch.device, folder: Path, log: EventLog) -> None:
    """Call the reader's function for each point of the grid, and write its rows as they come.

    Where one runs out of memory, or its card fails, this process replaces itself by a fresh one,
    which goes on with the next: nothing of what was allocated, or broken, is left. Windows cannot
    replace a process: there the memory is given back, and a card that failed ends the measurement.
    """
    payload = folder / order["source"]["payload"]
    sys.path += [place for place in order["source"]["path"] if place not in sys.path]
    progress = folder / "next_point"
    first = int(progress.read_text()) if progress.exists() else 0
    send_by_value()
    function = pickle.loads(payload.read_bytes())  # of the reader's own kernel
    machine.collect_garbage()
    points = order["points"]
    log.write("begin", warmup=0)
    if device.type == "cuda":
        model_size.load(device)  # an idle card's clocks are low, and take longer to rise than a row
    for number in range(first, len(points)):
        log.stage("measuring", number, len(points))
        progress.write_text(str(number + 1))
        torch.manual_seed(0)
        if device.type == "cuda":  # what a row says of its memory is its own
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        bench = Bench(device)
        failure = call(function, points[number], bench, order["source"]["code"])
        for row in bench.rows or [{}]:
            values = points[number] | row.get("values", {}) | bench.returned
            write_row(log, {**row, "values": plain(values)}, failure)
        card_failed = failure is not None and CARD_FAILED.search(failure.text) is not None
        is_full = failure is not None and failure.kind == "out of memory"
        if number + 1 == len(points) or not (card_failed or is_full):
            continue
        if sys.platform != "win32":
            os.execv(sys.executable, sys.orig_argv)
        elif card_failed:
            for point in points[number + 1 :]:
                write_row(log, {"values": plain(point)}, FAILED_BEFORE)
            break
        else:
            del bench
            gc.collect()
    payload.unlink()
    progress.unlink()


def write_row(log: EventLog, row: dict[str, object], failure: Failure | None) -> None:
    """Write one row of the table, and why it has no numbers where it has none."""
    why = {"error": failure.text, "kind": failure.kind} if failure else {"error": None}
    log.write("row", **row, **why)


def call(
    function: Callable, point: dict[str, object], bench: Bench, code: dict[str, list[str]]
) -> Failure | None:
    """Call the function for one point; return why it gave no numbers, or None."""
    try:
        returned = function(bench, **point) or {}
        bench.synchronize()  # an error of this row's kernels is not the next one's
        if not isinstance(returned, dict):
            raise TypeError(f"it returned {type(returned).__name__}: return a dict, or nothing")
        if taken := [name for name in TIMED if name in returned]:
            raise ValueError(f"it returned {taken[0]!r}, a column of the bench's own: rename it")
        bench.returned = returned
    except Skipped as why:
        return Failure("skipped", str(why))
    except Exception as error:  # whatever the reader's code raises
        if machine.refused(error):
            return Failure("out of memory", "out of memory")
        return Failure("mistake", said(error, function, code))
    return None


def said(error: BaseException, function: Callable, code: dict[str, list[str]]) -> str:
    """Return the error in a line, with the line of the reader's cell that raised it.

    `code` has the lines of the cell that defines each function, by the function's name.
    """
    text = f"{type(error).__name__}: {error}".splitlines()[0][:MOST_TEXT]
    own = function.__code__.co_filename  # the same for all that came along
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    if frames:
        number = frames[-1].lineno or 0
        lines = code.get(frames[-1].name) or code[function.__name__]
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        text += f" (line {number}: {line})"
    return text


def plain(values: dict[str, object]) -> dict[str, object]:
    """Return values as JSON has them: a tensor of one number is that number, NaN is None."""
    numbers = {}
    for name, value in values.items():
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and value.ndim == 0:
            value = value.item()
        numbers[name] = value
    return json.loads(json.dumps(numbers, default=str), parse_constant=lambda _: None)
