"""What every experiment is given: a device and its limits, a stopwatch, and a place to write to."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.benchmark import Timer

from labkit import quotas
from labkit.bench import formats, machine
from labkit.bench.resolve_config import compile_lacks
from labkit.process.events import EventLog
from labkit.spec import EXPERIMENTS, NOISY, quick_run

MIN_TIME_S = 0.1  # of timing per point, where the experiment does not say otherwise
MAX_KEPT = 200  # raw times kept of one point
FILL_S = 2e-3  # calls in a row take this long, so that the wait at their end does not count
ROUNDS = 7  # of several ways timed in turn
QUICK_ROUNDS = 3  # the same, with LABKIT_QUICK=1
QUICK_PART = 3  # of the timing of a point, with LABKIT_QUICK=1, one part in so many
LAUNCHES = 20  # an operation takes as long as so many launches: at most a 20th of it is not its own
LONGEST_S = 0.3  # of one call: a point takes a handful of calls, an experiment dozens of points
SIDES = (1024, 2048, 4096, 8192)  # of square matrices
UNKNOWN_CACHE = 64 * 2**20  # bytes: a size to stay clear of where the cache's is not told
# An array is so many times the last-level cache; an operation touches two or three. A GPU's L2 does
# not drop what was used longest ago (Mei and Chu, "Dissecting GPU Memory Hierarchy through
# Microbenchmarking", IEEE TPDS 28(1), 2017): a part of an array of twice its size stays
PAST_ON_CPU, PAST_ON_GPU = 2, 8
SHARE_OF_MEMORY = 1 / 12  # of what is free, at most, for one array
BLOCK = 2**20  # random numbers drawn; a large array repeats them


class Workbench:
    """Times operations on one device and writes each result as a `measurement` event."""

    answer: Path | None = None  # the reader's code, for an exercise

    def __init__(self, device: torch.device, log: EventLog, stage: Callable[..., None]):
        self.device, self.log, self.stage = device, log, stage
        self.on_cpu = device is not None and device.type == "cpu"
        self._past = PAST_ON_CPU if self.on_cpu else PAST_ON_GPU
        self._given = False  # whether the device was given work since it was last waited for
        self.roofs: dict[str, float] = {}  # the fastest so far: FLOP/s by format, and byte/s

    def write(self, of: str, *, seconds: list[float] = (), flops: float | None = None,
              bytes: float | None = None, values: dict[str, Any] | None = None,
              **case: Any) -> None:  # fmt: skip
        """Write one result: times of one call each (s), or other `values` by name, or both."""
        # JSON has no NaN and no infinity: they are written as None, a gap
        text = json.dumps(values or {}, default=str)
        values = json.loads(text, parse_constant=lambda _: None)
        roof, done = case.get("format") or case.get("roof"), flops or bytes
        # A convolution may need fewer FLOPs than are counted (Lavin and Gray, arXiv:1509.09308)
        if roof and done and seconds and of != "convolution":
            self.roofs[roof] = max(self.roofs.get(roof, 0.0), done / min(seconds))
        self.log.write("measurement", of=of, case=case, seconds=list(seconds), flops=flops,
                       bytes=bytes, values=values)  # fmt: skip

    def skip(self, what: str, why: str) -> None:
        """Say that `what` was not measured, and why; it shows as a gap, with this reason."""
        self.log.write("skipped", what=what, why=why)

    def time(self, work: Callable[[], Any], *, of: str, flops: float | None = None,
             bytes: float | None = None, min_time_s: float = MIN_TIME_S,
             launches: int | None = None, **case: Any) -> float:  # fmt: skip
        """Time `work`, write the raw times, return the median in seconds.

        Warmed up, repeated until the IQR is a tenth of the median, for 4 `min_time_s` at the most.
        `flops` and `bytes` are what one call does, `launches` how many operations it gives a GPU.
        """

        def given() -> None:
            self._given = True
            work()

        if quick_run():
            min_time_s /= QUICK_PART
        self.synchronize()
        timer = Timer(
            "work()", globals={"work": work if self.on_cpu else given},
            timer=self.now, num_threads=torch.get_num_threads(),
        )  # fmt: skip
        measured = timer.adaptive_autorange(
            threshold=NOISY, min_run_time=min_time_s / 2, max_run_time=4 * min_time_s
        )
        times = sorted(measured.times)  # s a call, one for each block of calls
        self.write(of, seconds=times[:: math.ceil(len(times) / MAX_KEPT)], flops=flops, bytes=bytes,
                   values=self.launch_share(measured.median, launches), **case)  # fmt: skip
        return measured.median

    def in_turn(
        self,
        ways: dict[str, Callable[[], object]],
        setting: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ) -> dict[str, list[float]]:
        """Return per way the s of one call, by round; `setting(name)` is entered off the clock."""
        calls, times = {}, {name: [] for name in ways}
        for _ in range(QUICK_ROUNDS if quick_run() else ROUNDS):
            for name, work in ways.items():
                with setting(name):
                    calls[name] = calls.get(name) or self.calls_to_fill(work)
                    times[name].append(self.timed(work, calls[name]))
        return times

    def now(self) -> float:
        """Return the time in s, when the device has done what it was given, if anything."""
        if self._given:
            self.synchronize()
            self._given = False
        return time.perf_counter()

    def timed(self, work: Callable[[], Any], calls: int = 1) -> float:
        """Return the time of one of `calls` calls in a row in s, the device awaited at the end."""
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
        """Return the rough time of one call in s: to choose a size with, and not written down."""
        return self.timed(work, self.calls_to_fill(work))

    @cached_property
    def launch_s(self) -> float:
        """The time in s below which no operation comes here: one on a single number, in a row."""
        one = torch.zeros(1, device=self.device)
        return min(self.quick_s(lambda: one.add_(1)) for _ in range(3))

    def launch_share(self, seconds: float, launches: int | None) -> dict[str, float]:
        """Return which part of a GPU's `seconds` launches alone take: {"launch_share": 0 to 1}."""
        if launches is None or self.on_cpu:
            return {}
        return {"launch_share": min(1.0, launches * self.launch_s / seconds)}

    def synchronize(self) -> None:
        """Wait for the device; nothing to wait for on a CPU."""
        machine.finish(self.device)

    def fitting(self, work_of: Callable[[int], Callable[[], Any]], sizes: Sequence[int] = SIDES,
                launches: float = LAUNCHES) -> int:  # fmt: skip
        """Return the first size whose call takes `launches`, or the last before LONGEST_S."""
        if self.on_cpu:
            return sizes[0]
        for size, larger in zip(sizes, (*sizes[1:], math.inf), strict=True):
            seconds = self.quick_s(work_of(size))
            if seconds >= launches * self.launch_s or seconds * (larger / size) ** 3 > LONGEST_S:
                break
        return size

    def cache_bytes(self) -> dict[str, int]:
        """Return each data cache's size in bytes by name; see `machine.cache_bytes`."""
        return machine.cache_bytes(self.device)

    def past_cache_elements(self, mib: float | None = None) -> int:
        """Return how many float32 make `mib`, or pass the caches in part of the free memory."""
        if mib is not None:
            return int(mib * 2**20) // 4
        largest = max(self.cache_bytes().values(), default=UNKNOWN_CACHE)
        wanted = max(self._past * largest, 2**26)
        elements = int(min(wanted, SHARE_OF_MEMORY * self.free_bytes())) // 4
        return max(BLOCK, elements // BLOCK * BLOCK)

    def is_past_cache(self, total_bytes: int) -> bool | None:
        """Return whether all arrays together are well past the largest cache; None if unknown."""
        largest = max(self.cache_bytes().values(), default=None)
        return None if largest is None else total_bytes >= self._past * largest

    def free_bytes(self) -> int:
        """Return the memory that is free on the device; of a CPU, the RAM that is available."""
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            reserved = torch.cuda.memory_reserved(self.device)
            return free + reserved - torch.cuda.memory_allocated(self.device)  # kept for reuse
        return quotas.free_ram_bytes()

    def random_array(self, elements: int, device: torch.device | str | None = None) -> torch.Tensor:
        """Return (elements,) random float32 numbers: a million drawn, and repeated."""
        block = torch.rand(min(elements, BLOCK), device=device or self.device)
        return block.repeat(-(-elements // BLOCK))[:elements].contiguous()

    def usable(self, names: Iterable[str]) -> list[str]:
        """Return the formats that run here at a sensible speed; the others are skipped."""
        usable = []
        for name in names:
            if why := formats.why_not(name, self.device):
                self.skip(name, why)
            else:
                usable.append(name)
        return usable

    def compile_lacks(self) -> str | None:
        """Return what torch.compile lacks here, and the remedy; None where it can run."""
        return compile_lacks(self.device)


def perform(
    spec: dict, device: torch.device, folder: Path, log: EventLog, stage: Callable[..., None]
) -> None:
    """Run the experiment that `spec` names; an answer to an exercise lies in `folder`."""
    name = spec["experiment"]
    importlib.import_module(spec["module"])  # registers it
    log.write("begin", warmup=0)
    stage(f"measuring: {name}")
    torch.manual_seed(0)
    bench = Workbench(device, log, stage)
    if source := spec.get("source"):
        bench.answer = folder / source["payload"]
        sys.path += [place for place in source["path"] if place not in sys.path]
    EXPERIMENTS[name].measure(job_of(name, spec["params"]), bench)


def job_of(name: str, params: dict[str, Any]) -> SimpleNamespace:
    """Return the values of an experiment's knobs; one that takes a list is always a list."""
    values = {}
    for each, knob in EXPERIMENTS[name].knobs.items():
        value = params.get(each, knob.default)
        alone = knob.each and value is not None and not isinstance(value, list)
        values[each] = [value] if alone else value
    return SimpleNamespace(**values)
