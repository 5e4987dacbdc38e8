"""The challenge of notebook 01, GPU anatomy."""

import random
from collections.abc import Callable

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR
from labkit.course.code_challenge import Numbers, code
from labkit.course.goals import Goal

TIMED = 20  # calls


class SimulatedDevice:
    """A device whose calls return at once, and whose first call is slow."""

    def __init__(self, each_ms: float):
        self.now_ms = 0.0
        self.free_at_ms = 300.0
        self.each_ms = each_ms
        self.calls = 0

    def work(self) -> None:
        """Start a call, which takes the caller 0.02 ms."""
        self.now_ms += 0.02
        self.free_at_ms = max(self.free_at_ms, self.now_ms) + self.each_ms
        self.calls += 1

    def wait(self) -> None:
        """Return when all calls are done."""
        self.now_ms = max(self.now_ms, self.free_at_ms)

    def clock(self) -> float:
        """Return the time in ms."""
        return self.now_ms


def ms_per_call(
    work: Callable[[], None], wait: Callable[[], None], clock: Callable[[], float]
) -> float:
    """Return what a call takes on the device, without the set-up of the first one."""
    work()
    wait()
    start = clock()
    for _ in range(TIMED):
        work()
    wait()
    return (clock() - start) / TIMED


@code(
    "01-stopwatch",
    hints=(
        "What does clock() - start measure while the device is still at work?",
        "One call and one wait() before the clock starts; one wait() before it stops.",
    ),
    goals=(Goal(ERROR, at_most=0.02), Goal("calls", at_least=10)),
    example=ms_per_call,
)
def stopwatch(answer: Answer) -> Numbers:
    """An honest stopwatch.

    A device's work() returns at once, its wait() when all work is done, and the very first call is
    slow. Write a function of (work, wait, clock) that returns the milliseconds that one call takes,
    from at least ten calls. clock() returns the time in ms.
    """
    devices = [SimulatedDevice(random.uniform(1, 20)) for _ in range(6)]
    errors = [
        abs(answer(device.work, device.wait, device.clock) / device.each_ms - 1)
        for device in devices
    ]
    return {ERROR: max(errors), "calls": min(device.calls for device in devices)}
