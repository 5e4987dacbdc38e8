"""A step on the stand-in, written down, and its way through the queue of any card.

What the host does in a step (launches, waits, work of its own) does not depend on the card. So it
is recorded once, and `replayed` computes for a card where the device's time goes: a launch costs
the host `standin_gpu.LAUNCH_US`, a kernel takes what `StandIn.kernel_us` says of its FLOPs and
bytes. `diagnosed` says what labkit's rules would name of such a run, with their own thresholds.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from standin_gpu import LAUNCH_US, SHORTEST_KERNEL_US, Card, StandIn, VirtualClock

from labkit.analysis.thresholds import FUSION_SAVES, TENSOR_CORE_GAIN, WORTH_NAMING

PARTS = ("compute", "memory", "transfer", "input", "launch")  # of a step's time
ON_CARD = PARTS[:3]


class Op(NamedTuple):
    """One thing that the host does in a step."""

    # "load" a batch, "copied", "computed": where the step is. "host": own work. "wait" for the card
    does: str  # or "kernel", "copy": a launch
    name: str = ""
    us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    format: str = ""  # of a kernel's arithmetic

    def on(self, card: Card) -> tuple[str, float]:
        """Return what bounds it on the card, one of `ON_CARD`, and its time there, us."""
        if self.does == "copy":
            return "transfer", SHORTEST_KERNEL_US + self.bytes / (card.bus_gb_per_s * 1e3)
        if not self.flops + self.bytes:
            return "compute", self.us  # of stated length
        arithmetic = StandIn.kernel_us(card, self.flops, 0.0, self.format)
        traffic = StandIn.kernel_us(card, 0.0, self.bytes)
        by_flops = self.flops and arithmetic >= traffic
        return "compute" if by_flops else "memory", max(arithmetic, traffic)


class Step(NamedTuple):
    """What the host does in one step, or a few, and what its loader takes."""

    ops: list[Op]
    loader_us: float = 0.0  # a batch, in one process
    workers: int = 0
    side: bool = False  # copies go on a stream of their own
    stall_us: float = 0.0  # of one batch in `stall_every`; `ahead` batches wait in the queue
    stall_every: int = 1
    ahead: int = 0

    @property
    def totals(self) -> list[float]:
        """Launches, GFLOP and MB of one step."""
        sent = [op for op in self.ops if op.does in ("kernel", "copy")]
        sums = len(sent), sum(op.flops for op in sent) / 1e9, sum(op.bytes for op in sent) / 1e6
        return [each / self.count for each in sums]

    @property
    def count(self) -> int:
        """Steps in it."""
        return max(1, sum(op.does == "load" for op in self.ops))

    @property
    def fed(self) -> Step:
        """The same with a loader that takes no time."""
        return self._replace(loader_us=0.0, stall_us=0.0)


@functools.cache
def is_elementwise(name: str) -> bool:
    """Whether an operator's kernel only moves data by its name, as the rule for chains asks."""
    if name.startswith("_foreach_"):
        return True
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name.startswith("_fused_"):
        return False
    tags = (getattr(packet, overload).tags for overload in packet.overloads())
    return name == "copy_" or any(torch.Tag.pointwise in each for each in tags)


@contextlib.contextmanager
def recorded(gpu: StandIn) -> Iterator[list[Op]]:
    """Write down what the host does meanwhile."""
    ops: list[Op] = []
    launching = False

    def enqueue(*args, **settings) -> int:
        nonlocal launching
        launching = True
        end = StandIn.enqueue(gpu, *args, **settings)
        launching, sent = False, gpu.kernels[-1]
        does, us = "copy" if sent.is_copy else "kernel", (end - sent.start) / 1e3
        ops.append(Op(does, sent.name, us, sent.flops, sent.bytes, sent.format))
        return end

    def spend(us: float) -> None:
        if not launching:
            ops.append(Op("host", us=us))
        VirtualClock.spend(gpu.clock, us)

    def wait_until(ns: int) -> None:
        if not launching:
            ops.append(Op("wait"))
        VirtualClock.wait_until(gpu.clock, ns)

    gpu.enqueue, gpu.clock.spend, gpu.clock.wait_until = enqueue, spend, wait_until
    try:
        yield ops
    finally:
        del gpu.enqueue, gpu.clock.spend, gpu.clock.wait_until
        gpu.kernels.clear()


def replayed(step: Step, card: Card) -> Counter:
    """Return where the device's time of one step goes on the card, us: `PARTS`, and two of theirs.

    "compute" and "memory" are kernels, by what bounds them, "transfer" is a batch's copies, and an
    idle device waits for "input", "transfer" or "launch" (the host). "elementwise" is a part of
    memory, "fp32" of compute. Of three rounds the last counts: by then the host is ahead, where it
    can be.
    """
    host = free = bus = ready = 0.0
    bare = not any(op.does == "load" for op in step.ops)  # operators, no training step
    on_card = functools.cache(lambda op: op.on(card))
    for _ in range(3):
        spent: Counter = Counter()
        loading, copied, computing = (0.0, 0.0), 0.0, bare
        for op in step.ops:
            if op.does == "load":
                ready = (ready + step.loader_us / step.workers) if step.workers else (
                    host + step.loader_us)  # fmt: skip
                loading, copied = (host, max(host, ready)), float("inf")
                host = loading[1]
            elif op.does == "copied":
                copied, computing = host, True
            elif op.does == "computed":
                computing = False
            elif op.does == "host":
                host += op.us
            elif op.does == "wait":
                host = max(host, free, bus)
            else:
                host += LAUNCH_US
                bound, us = on_card(op)
                of_batch = op.does == "copy" and (bare or host < copied)
                if of_batch and step.side:
                    bus = max(bus, host) + us
                    continue
                start = max(free, host, bus)
                waits = overlap((free, start), loading)
                copies = overlap((free, start), (loading[1], copied)) if not bare else 0.0
                copies += max(0.0, bus - max(free, host))
                spent["input"] += waits
                spent["transfer"] += copies
                spent["launch"] += start - free - waits - copies
                part_of_it = of_batch or (computing and bound != "transfer")
                spent[bound if part_of_it else "launch"] += us
                spent["elementwise"] += us if bound == "memory" and is_elementwise(op.name) else 0.0
                spent["fp32"] += us if bound == "compute" and op.format == "fp32" else 0.0
                free = start + us
    spent = Counter({name: us / step.count for name, us in spent.items()})
    spent["input"] += max(0.0, step.stall_us - step.ahead * period_us(spent)) / step.stall_every
    return spent


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return how long two stretches of time have in common."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def period_us(spent: Counter) -> float:
    """Return the time of a step, us."""
    return sum(spent[name] for name in PARTS)


def diagnosed(spent: Counter, bf16_speedup: float | None) -> str:
    """Return what labkit's rules name of a run whose device spends its time like that.

    `bf16_speedup` is None where it cannot be measured; then kernels' names tell of FP32.
    """
    period = period_us(spent)
    losses = {name: spent[name] / period for name in ("input", "transfer", "launch")}
    losses["memory_bandwidth"] = FUSION_SAVES * spent["elementwise"] / period
    if bf16_speedup is None:
        losses["precision"] = (1 - 1 / TENSOR_CORE_GAIN) * spent["fp32"] / period
    else:
        on_card = (spent["compute"] + spent["memory"]) / period
        losses["precision"] = max(0.0, 1 - 1 / bf16_speedup) * on_card
    named = {name: lost for name, lost in losses.items() if lost >= WORTH_NAMING[name]}
    return max(named, key=named.get, default="compute")


def bound_by(spent: Counter, launches: float) -> str:
    """Return what takes longest of an operation: its launches, arithmetic, memory or the bus."""
    most = max(ON_CARD, key=lambda name: spent[name])
    on_card = sum(spent[name] for name in ON_CARD)
    return "launch" if LAUNCH_US * launches > on_card else most
