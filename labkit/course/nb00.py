"""Notebook 00, start here: its challenges."""

import random

from labkit.course.task import Goal, KnobTask, code, faster
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)

KnobTask(
    "00-first", "your first improvement",
    "The images of this pipeline come from a network drive. Make it train at least twice as many "
    "samples a second, by its loader settings alone.",
    (faster(2.0),),
    ("Who prepares the batches while the device computes? With num_workers=0, nobody.",
     "Each worker takes a share of the waiting: try num_workers=4."),
    NETWORK, NETWORK.but(num_workers=6),
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"),
)  # fmt: skip


class Simulated:
    """A device whose calls return at once, and whose first call is slow."""

    def __init__(self, first_ms, each_ms):
        self.now, self.free_at, self.calls = 0.0, 0.0, 0
        self.next_ms, self.each_ms = first_ms, each_ms

    def work(self):
        self.now += 0.02  # what a call costs the caller
        self.free_at = max(self.free_at, self.now) + self.next_ms
        self.next_ms, self.calls = self.each_ms, self.calls + 1

    def wait(self):
        self.now = max(self.now, self.free_at)


@code("00-stopwatch",
      "What does clock() - start measure while the device is still at work?",
      "One call and one wait() before the clock starts; one wait() before it stops.",
      error=Goal("error, as a share", at_most=0.02), calls=Goal("calls", at_least=10))  # fmt: skip
class Stopwatch:
    """an honest stopwatch.

    A device's work() returns at once, its wait() when all is done, and the very first call is slow.
    Write a function of (work, wait, clock) that returns the milliseconds of one call, from at least
    ten calls; clock() tells the time in ms.
    """

    def solution(work, wait, clock):
        work()  # warm up
        wait()
        start = clock()
        for _ in range(20):
            work()
        wait()
        return (clock() - start) / 20

    def check(answer):
        errors, calls, rng = [], [], random.Random(7)
        for _ in range(6):
            each_ms = rng.uniform(1, 20)
            device = Simulated(rng.uniform(100, 500), each_ms)
            said = answer(device.work, device.wait, lambda device=device: device.now)
            errors.append(abs(said / each_ms - 1))
            calls.append(device.calls)
        return {"error": max(errors), "calls": min(calls)}
