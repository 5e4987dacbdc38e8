"""The training of a rank: gradients are averaged over all, and stamped when that waits for others.

It is two stamps a step: the *last* gradient is ready; all are averaged. Between them communication
is exposed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from labkit.bench.loop import Trainer
from labkit.spec import Job
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.step_ring import FinishedStep
from labkit.stamps.timeline import DeviceTimeline, HostTimeline

Mark = int | torch.Event  # when something was: ns on a CPU, an event of a GPU


class DistributedTrainer(Trainer):
    """A Trainer whose gradients are averaged over all ranks; buffers stay each rank's own."""

    no_sync = False  # whether gradients are exchanged right before an update only

    def __init__(self, job: Job, device: torch.device):
        super().__init__(job, device)
        self.stamp: Callable[[], Mark] = now_ns
        self.marks: list[Mark] = []  # of this step: the last gradient is there; all are averaged
        self.exchanges: deque[list[Mark]] = deque()  # of each step that is not written yet
        self.parallel = DistributedDataParallel(
            self.model, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.parallel.register_comm_hook(self, exchange)
        self.model = self.parallel
        self.optimizer.register_step_pre_hook(lambda *_: self.averaged())

    def averaged(self) -> None:
        """Note that the averaged gradients are there; no step without communication has it."""
        if len(self.marks) == 1:
            self.marks.append(self.stamp())

    def compute(self, images: torch.Tensor, labels: torch.Tensor, update: bool) -> torch.Tensor:
        """Compute as a Trainer does; with `no_sync`, exchange only right before an update."""
        self.marks = []
        is_quiet = self.no_sync and not update
        with self.parallel.no_sync() if is_quiet else contextlib.nullcontext():
            loss = super().compute(images, labels, update)
        self.averaged()  # a micro-batch that is exchanged without an update ends here
        self.exchanges.append(self.marks)
        return loss

    def timeline(self, log: EventLog) -> HostTimeline | DeviceTimeline:
        """Return the timeline of its device, which writes every step as it ends.

        That takes 10 to 25 µs, little beside the exchange. On a GPU, events in its queue stamp it.
        """
        self.exchanges.clear()  # of what was computed before
        if self.device.type == "cpu":
            return HostTimeline(lambda step: self._write(step, log, int))
        timeline = DeviceTimeline(
            lambda step: self._write(step, log, timeline.clock.taken), self.device
        )
        self.stamp = timeline.clock.record
        return timeline

    def _write(self, step: FinishedStep, log: EventLog, as_ns: Callable[[Any], int]) -> None:
        """Write a step with its exchange."""
        log.write_line(step.line([*map(as_ns, self.exchanges.popleft())]))


def exchange(trainer, bucket):  # DDP refuses annotations that are text, as all are in this file
    """Average a bucket as DDP's own hook does; stamp the last: then no gradient is missing."""
    if bucket.is_last():
        trainer.marks = [trainer.stamp()]
    assert dist.group.WORLD is not None
    return allreduce_hook(dist.group.WORLD, bucket)
