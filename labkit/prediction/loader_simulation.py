"""A DataLoader simulated event by event: a formula for means misses stalls by 40 %.

Batches are dealt to the workers in turn and handed out in that order: a slow one holds up those
behind it. Whoever computes shares the cores equally. A CPU without workers prepares and trains in
turn; a GPU runs behind the host, which prepares meanwhile and is held up only in its copy.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self

# What switching leaves of the cores where more threads want one than there are. Calibrated on the
# development workloads of maintain/benchmarks/prediction.py.
OVERSUBSCRIBED = 0.92
NEVER = float("inf")
RUN_AHEAD = 8  # steps the host may be ahead of a device of its own


class CannotPredict(Exception):
    """What a run does not tell, and what to do about it."""


@dataclass(frozen=True)
class GpuWork:
    """What a GPU does for each batch, (batches,) s."""

    step: np.ndarray
    copy: np.ndarray  # of the batch to the GPU, in its queue


@dataclass(frozen=True)
class Load:
    """What is to be done, in s of a core that is not shared, or of waiting."""

    waits: np.ndarray  # (batches, parts) waiting while a batch is prepared, each followed by ...
    cpus: np.ndarray  # (batches, parts) ... CPU time
    host: np.ndarray  # (batches,) CPU time of a step in the loop: of the model, or its launches
    put: float = 0.0  # CPU time of a worker to hand a batch over, before it is there
    take: float = 0.0  # CPU time of the loop to take a batch
    around: float = 0.0  # CPU time of the loop's own in a step: it reads the clock, too
    gpu: GpuWork | None = None  # None where the CPU is the device
    # Whether the host waits for the copy, and so for all that is queued before it: all copies from
    # pageable memory, and those without non_blocking, do (CUDA's "API synchronization behavior")
    blocking: bool = True
    side_stream: bool = False  # whether copies have a queue of their own
    ahead: int = RUN_AHEAD  # of a device of its own: 0 where the host waits for each step
    host_threads: int = 1  # cores that the step takes while it computes


class Part(NamedTuple):
    """What a process does next: wait (s), then compute (s) on its threads."""

    wait: float
    cpu: float
    threads: int = 1


class Summary(NamedTuple):
    """What a simulated run came to, after its warm-up."""

    throughput: float  # samples/s
    utilization: float
    cores_busy: float  # share of all core time


@dataclass(eq=False)
class Simulation:
    """The loader and the training loop: `run` fills in `begin` and `end` of its steps, in s.

    Processes are generators that yield what they do next; None: until woken. `virtual`
    is the work that a thread which always computes would have done by now: as all threads advance
    alike, whoever computes is done when it has grown by what is left.
    """

    work: Load
    cores: float
    workers: int
    prefetch: int
    seconds: float | None = None  # after which it ends; None: with the work

    def __post_init__(self) -> None:
        work = self.work
        workers = range(self.workers)
        self.begin: list[float] = []
        self.end: list[float] = []
        self.host = work.host.tolist()
        self.parts = [
            [Part(wait, cpu) for wait, cpu in zip(waits, cpus, strict=True)]
            for waits, cpus in zip(work.waits.tolist(), work.cpus.tolist(), strict=True)
        ]
        self.now = 0.0
        self.virtual = 0.0
        self.core_time = 0.0  # of all cores together
        self.copied = 0.0  # when the last copy to the device ends
        # (when, order, process, CPU time that follows, threads)
        self.timers: list[tuple[float, int, int, float, int]] = []
        self.computing: list[tuple[float, int, int, int]] = []  # (virtual end, order, process, ...)
        self.running = 0
        self.order = 0
        self.queues: list[deque[int]] = [deque() for _ in workers]
        self.arrived: deque[int] = deque()
        self.asleep: set[int] = set()
        self.processes = [self._loop(), *map(self._worker, workers)]

    def run(self) -> Self:
        """Simulate it to its end; return itself, with what came."""
        for number in range(len(self.processes)):
            self._go_on(number)
        limit = NEVER if self.seconds is None else self.seconds
        while (self.timers or self.computing) and len(self.end) < len(self.host):
            self._advance()
            if self.now > limit and self.end and self.end[-1] > limit:
                break
        return self

    def summary(self, warmup: int, batch_size: int) -> Summary:
        """Return what it came to; `warmup` is in steps, but never more than a third of them."""
        steps = len(self.end)
        first = min(warmup, max(1, steps // 3))
        wall = self.end[-1] - self.end[first - 1]
        if wall <= 0:
            raise CannotPredict("only one step, or none that takes time: give it more steps")
        busy = sum(self.end[first:]) - sum(self.begin[first:])
        cores_busy = self.core_time / (self.now * self.cores)
        rate = (steps - first) * batch_size / wall
        return Summary(rate, busy / wall, cores_busy)

    def _advance(self) -> None:
        """Go to the next moment at which something ends."""
        alone = self.running <= self.cores  # each computing thread has a core
        rate = 1.0 if alone else OVERSUBSCRIBED * self.cores / self.running
        timer = self.timers[0][0] if self.timers else NEVER
        left = self.computing[0][0] - self.virtual if self.computing else NEVER
        done = self.now + left / rate
        moment = min(timer, done)
        if self.running:
            passed = moment - self.now
            self.virtual += passed * rate
            self.core_time += passed * min(self.running, self.cores)
        self.now = moment
        if timer < done:
            _, _, process, cpu, threads = heapq.heappop(self.timers)
            self._compute(process, cpu, threads)
        else:
            _, _, process, threads = heapq.heappop(self.computing)
            self.running -= threads
            self._go_on(process)

    def _go_on(self, process: int) -> None:
        part = next(self.processes[process], None)
        if part is None:
            self.asleep.add(process)
        elif part.wait > 0:
            self.order += 1
            when = self.now + part.wait
            heapq.heappush(self.timers, (when, self.order, process, part.cpu, part.threads))
        else:
            self._compute(process, part.cpu, part.threads)

    def _compute(self, process: int, cpu: float, threads: int) -> None:
        self.order += 1
        self.running += threads
        heapq.heappush(self.computing, (self.virtual + cpu, self.order, process, threads))

    def _wake(self, process: int) -> None:
        if process in self.asleep:
            self.asleep.remove(process)
            self._go_on(process)

    def _worker(self, index: int) -> Iterator[Part | None]:
        queue = self.queues[index]
        put = self.work.put
        while True:
            while not queue:
                yield None
            batch = queue.popleft()
            yield from self.parts[batch % len(self.parts)]
            if put:
                yield Part(0.0, put)
            self.arrived.append(batch)
            self._wake(0)

    def _loop(self) -> Iterator[Part | None]:
        """Take each batch from the workers, or prepare it, and train on it."""
        ahead = self.workers * self.prefetch
        there: set[int] = set()
        for batch in range(ahead):
            self._ask(batch)
        for batch, parts in enumerate(self.parts):
            if not self.workers:
                yield from parts
            while self.workers and batch not in there:
                while not self.arrived:
                    yield None
                there.add(self.arrived.popleft())
                yield Part(0.0, self.work.take)
            if self.workers:  # data is endless: the last batches come under the same load
                self._ask(ahead + batch)
            yield from self._step(batch)

    def _ask(self, batch: int) -> None:
        self.queues[batch % self.workers].append(batch)
        self._wake(1 + batch % self.workers)

    def _step(self, batch: int) -> Iterator[Part]:
        """Have the CPU compute a batch, or a GPU, which may still be at earlier ones."""
        if self.work.around:
            yield Part(0.0, self.work.around)
        if self.work.gpu is None:
            yield from self._on_cores(batch)
        else:
            yield from self._on_gpu(batch, self.work.gpu)

    def _on_cores(self, batch: int) -> Iterator[Part]:
        self.begin.append(self.now)
        yield Part(0.0, self.host[batch], self.work.host_threads)
        self.end.append(self.now)

    def _on_gpu(self, batch: int, gpu: GpuWork) -> Iterator[Part]:
        end = self.end
        queue = end[-1] if end else 0.0  # when the device is through with what it has
        self.copied = max(self.now, self.copied if self.work.side_stream else queue)
        self.copied += float(gpu.copy[batch])
        if self.work.blocking and self.copied > self.now:
            yield Part(self.copied - self.now, 0.0)
        begin = max(self.now, self.copied, queue)  # the first kernel runs as soon as it is launched
        yield Part(0.0, self.host[batch])
        self.begin.append(begin)
        end.append(max(begin + float(gpu.step[batch]), self.now))
        behind = batch - self.work.ahead
        if behind >= 0 and end[behind] > self.now:
            yield Part(end[behind] - self.now, 0.0)
