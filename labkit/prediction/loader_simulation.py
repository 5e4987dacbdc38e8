"""A DataLoader simulated event by event: a formula for means misses stalls by 40 %.

Batches are dealt to the workers in turn and taken in that order: a slow one holds up those
behind it. Whoever computes shares the cores equally. A CPU without workers prepares and trains in
turn; a GPU runs behind the host, which prepares meanwhile and is held up only in its copy.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

# What switching leaves of the cores where more threads want one than there are. Calibrated on other
# workloads than those of maintain/benchmarks/prediction.py.
OVERSUBSCRIBED = 0.92
NEVER = float("inf")
RUN_AHEAD = 8  # steps the host may be ahead of a device of its own


class CannotPredict(Exception):
    """What a run does not tell, and what to do about it."""


@dataclass(frozen=True)
class Load:
    """What is to be done, in s of a core that is not shared, or of waiting."""

    waits: np.ndarray  # (batches, parts) waiting while a batch is prepared, each followed by ...
    cpus: np.ndarray  # (batches, parts) ... CPU time
    host: np.ndarray  # (batches,) CPU time of a step in the loop: of the model, or its launches
    copy: list[float]  # (batches,) of a batch to the GPU, in its queue
    put: float = 0.0  # CPU time of a worker for the handoff of a batch, before it is there
    take: float = 0.0  # CPU time of the loop to take a batch
    around: float = 0.0  # CPU time of the loop's own in a step: it reads the clock, too
    gpu: list[float] | None = None  # (batches,) what it computes; None where the CPU is the device
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


class Simulation:
    """The loader and the training loop: `run` fills in `begin` and `end` of its steps, in s.

    Processes are generators that yield what they do next; None: until woken. `virtual`
    is the work that a thread which always computes would have done by now: as all threads advance
    alike, whoever computes is done when it has grown by what is left.
    """

    def __init__(self, work: Load, cores: float, workers: int, prefetched: int):
        """Simulate `workers` that prepare so many batches ahead; 0: the loop prepares them."""
        self.work = work
        self.cores = cores
        self.workers = workers
        self.prefetched = prefetched
        self.begin: list[float] = []
        self.end: list[float] = []
        self.host = work.host.tolist()
        pairs = np.stack([work.waits, work.cpus], axis=-1).tolist()
        self.parts = [[Part(*pair) for pair in batch] for batch in pairs]
        self.now = 0.0
        self.virtual = 0.0
        self.core_time = 0.0  # of all cores together
        self.copied = 0.0  # when the last copy to the device ends
        # (when it ends, which of equals is first, process, what it does), a heap each
        self.waiting: list[tuple[float, int, int, Part]] = []
        self.computing: list[tuple[float, int, int, Part]] = []  # by `virtual`
        self.running = 0  # threads
        self.order = count()
        self.queues: list[deque[int]] = [deque() for _ in range(workers)]
        self.arrived: deque[int] = deque()
        self.asleep: set[int] = set()
        self.processes = [self._loop(), *map(self._worker, self.queues)]

    def run(self, seconds: float, warmup: int, batch_size: int) -> Summary:
        """Simulate so many seconds, or all the work; return what it came to.

        `warmup` is in steps, but never more than a third of them.
        """
        for number in range(len(self.processes)):
            self._go_on(number)
        while (self.waiting or self.computing) and len(self.end) < len(self.host):
            self._advance()
            if self.now > seconds and self.end and self.end[-1] > seconds:
                break
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
        timer = self.waiting[0][0] if self.waiting else NEVER
        left = self.computing[0][0] - self.virtual if self.computing else NEVER
        done = self.now + left / rate
        moment = min(timer, done)
        if self.running:
            passed = moment - self.now
            self.virtual += passed * rate
            self.core_time += passed * min(self.running, self.cores)
        self.now = moment
        if timer < done:
            _, _, process, part = heapq.heappop(self.waiting)
            self._compute(process, part)
        else:
            _, _, process, part = heapq.heappop(self.computing)
            self.running -= part.threads
            self._go_on(process)

    def _go_on(self, process: int) -> None:
        part = next(self.processes[process], None)
        if part is None:
            self.asleep.add(process)
        elif part.wait > 0:
            heapq.heappush(self.waiting, (self.now + part.wait, next(self.order), process, part))
        else:
            self._compute(process, part)

    def _compute(self, process: int, part: Part) -> None:
        self.running += part.threads
        heapq.heappush(self.computing, (self.virtual + part.cpu, next(self.order), process, part))

    def _wake(self, process: int) -> None:
        if process in self.asleep:
            self.asleep.remove(process)
            self._go_on(process)

    def _worker(self, queue: deque[int]) -> Iterator[Part | None]:
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
        there: set[int] = set()
        for batch in range(self.prefetched):
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
                self._ask(self.prefetched + batch)
            yield from self._step(batch)

    def _ask(self, batch: int) -> None:
        self.queues[batch % self.workers].append(batch)
        self._wake(1 + batch % self.workers)

    def _step(self, batch: int) -> Iterator[Part]:
        """Have the CPU compute a batch, or a GPU, which may still be at earlier ones."""
        if self.work.around:
            yield Part(0.0, self.work.around)
        if self.work.gpu is not None:
            yield from self._on_gpu(batch, self.work.gpu[batch], self.work.copy[batch])
            return
        self.begin.append(self.now)
        yield Part(0.0, self.host[batch], self.work.host_threads)
        self.end.append(self.now)

    def _on_gpu(self, batch: int, step: float, copy: float) -> Iterator[Part]:
        end = self.end
        queue = end[-1] if end else 0.0  # when the device is through with what it has
        self.copied = max(self.now, self.copied if self.work.side_stream else queue)
        self.copied += copy
        if self.work.blocking and self.copied > self.now:
            yield Part(self.copied - self.now, 0.0)
        begin = max(self.now, self.copied, queue)  # the first kernel runs as soon as it is launched
        yield Part(0.0, self.host[batch])
        self.begin.append(begin)
        end.append(max(begin + step, self.now))
        behind = batch - self.work.ahead
        if behind >= 0 and end[behind] > self.now:
            yield Part(end[behind] - self.now, 0.0)
