"""What every experiment is given: a device, a stopwatch, and a place to write what came out."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.benchmark import Timer

from labkit.process.events import EventLog
from labkit.spec import NOISY

MIN_TIME_S = 0.1  # of timing per point, where the experiment does not say otherwise
MAX_KEPT = 200  # raw times kept of one point
FILL_S = 2e-3  # calls in a row take this long, so that the wait at their end does not count


class Workbench:
    """Times operations on one device and writes each result as a `measurement` event."""

    answer: Path | None = None  # the reader's code, for an exercise

    def __init__(self, device: torch.device, log: EventLog, stage: Callable[..., None]):
        self.device, self.log, self.stage = device, log, stage
        self._given = False  # whether the device was given work since it was last waited for

    def time(
        self,
        work: Callable[[], Any],
        *,
        of: str,
        flops: float | None = None,
        bytes: float | None = None,
        min_time_s: float = MIN_TIME_S,
        launches: int | None = None,
        **case: Any,
    ) -> float:
        """Time `work`, write the raw times, return the median in seconds.

        On `torch.utils.benchmark`: warmed up, repeated until the IQR is a tenth of the median, but
        for 4 `min_time_s` at the longest; on a GPU synchronised at the edges of each block. `of`
        names the operation, `case` the point; `flops` and `bytes` are what one call does, counted
        by the caller, who gives the formula; `launches` how many operations it gives a GPU.
        """

        def given() -> None:
            self._given = True
            work()

        self.synchronize()
        timer = Timer(
            "work()", globals={"work": work if self.device.type == "cpu" else given},
            timer=self.now, num_threads=torch.get_num_threads(),
        )  # fmt: skip
        measured = timer.adaptive_autorange(  # repeats a noisy point, for 4 min_time_s at most
            threshold=NOISY, min_run_time=min_time_s / 2, max_run_time=4 * min_time_s
        )
        times = sorted(measured.times)  # s a call, one for each block of calls
        share = self.launch_share(measured.median, launches)
        self.write(of, seconds=_thinned(times), flops=flops, bytes=bytes, values=share, **case)
        return measured.median

    def now(self) -> float:
        """The time in s, read when the device has done all that it was given.

        A device that was given nothing is not waited for. torch.utils.benchmark makes its blocks
        10,000 times as long as an empty one: with a wait of some µs in it, half a second.
        """
        if self._given:
            self.synchronize()
            self._given = False
        return time.perf_counter()

    def timed(self, work: Callable[[], Any], calls: int = 1) -> float:
        """Time of one of `calls` calls in a row in s, the device awaited at the end."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        self.synchronize()
        return (time.perf_counter() - start) / calls

    def calls_to_fill(self, work: Callable[[], Any]) -> int:
        """Warm `work` up; return how many calls take about FILL_S."""
        self.timed(work)
        return max(1, int(FILL_S / max(self.timed(work), 1e-7)))

    def quick_s(self, work: Callable[[], Any]) -> float:
        """Time of one call in s, roughly: to choose a size with, and not written down."""
        return self.timed(work, self.calls_to_fill(work))

    @cached_property
    def launch_s(self) -> float:
        """The time in s below which no operation comes here: one on a single number, in a row.

        On a GPU that is what the host takes to launch it, or the card to start it: whichever is
        slower.
        """
        one = torch.zeros(1, device=self.device)
        return min(self.quick_s(lambda: one.add_(1)) for _ in range(3))

    def launch_share(self, seconds: float, launches: int | None) -> dict[str, float]:
        """Which part of a GPU's `seconds` the launches alone would take: {"launch_share": 0 to 1}.

        At 1 a point tells how fast operations are launched, and nothing of what they do.
        """
        if launches is None or self.device.type == "cpu":
            return {}
        return {"launch_share": min(1.0, launches * self.launch_s / seconds)}

    def write(self, of: str, *, seconds: list[float] = (), flops: float | None = None,
              bytes: float | None = None, values: dict[str, Any] | None = None,
              **case: Any) -> None:  # fmt: skip
        """Write one result: times of one call each (s), or other `values` by name, or both."""
        event = {"of": of, "case": case, "seconds": list(seconds)}
        event |= {"flops": flops, "bytes": bytes, "values": _plain(values or {})}
        self.log.write("measurement", **event)

    def skip(self, what: str, why: str) -> None:
        """Say that `what` was not measured, and why; it shows as a gap, with this reason."""
        self.log.write("skipped", what=what, why=why)

    def synchronize(self) -> None:
        """Wait for the device; nothing to wait for on a CPU."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def perform(
    spec: dict, device: torch.device, folder: Path, log: EventLog, stage: Callable[..., None]
) -> None:
    """Run the experiment that `spec` names; an answer to an exercise lies in `folder`."""
    name = spec["experiment"]
    module = importlib.import_module(spec["module"])
    log.write("begin", warmup=0)
    stage(f"measuring: {name}")
    torch.manual_seed(0)
    bench = Workbench(device, log, stage)
    if source := spec.get("source"):
        bench.answer = folder / source["payload"]
        sys.path += [place for place in source["path"] if place not in sys.path]
    module.measure(SimpleNamespace(**spec["params"]), bench)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they are written as None, a gap."""
    return json.loads(json.dumps(values, default=str), parse_constant=lambda _: None)


def _thinned(times: list[float]) -> list[float]:
    step = math.ceil(len(times) / MAX_KEPT)
    return times[::step]
