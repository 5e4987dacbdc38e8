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


class Communication:
    """The stamps of a step: the last gradient is there; all gradients are averaged."""

    def __init__(self):
        self.stamp: Callable[[], Mark] = now_ns
        self.marks: list[Mark] = []
        self.steps: deque[list[Mark]] = deque()  # of each that is issued and not written yet

    def started(self) -> None:
        """Note that the gradients are complete: from now on, this waits for others and the wire."""
        self.marks = [self.stamp()]

    def ended(self) -> None:
        """Note that the averaged gradients are there; no step without communication has it."""
        if len(self.marks) == 1:
            self.marks.append(self.stamp())

    def end_step(self) -> None:
        """Keep the two marks of a step, or [] where nothing was sent."""
        self.steps.append(self.marks if len(self.marks) == 2 else [])
        self.marks = []


class DistributedTrainer(Trainer):
    """A Trainer whose gradients are averaged over all ranks; buffers stay each rank's own."""

    def __init__(self, job: Job, device: torch.device, no_sync: bool):
        super().__init__(job, device)
        self.no_sync = no_sync
        self.comm = Communication()
        self.parallel = DistributedDataParallel(
            self.model,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
        self.parallel.register_comm_hook(self.comm, exchange)
        self.model = self.parallel
        self.optimizer.register_step_pre_hook(lambda *_: self.comm.ended())

    def compute(self, images: torch.Tensor, labels: torch.Tensor, update: bool) -> torch.Tensor:
        """Compute as a Trainer does; with `no_sync`, exchange only right before an update."""
        is_quiet = self.no_sync and not update
        with self.parallel.no_sync() if is_quiet else contextlib.nullcontext():
            loss = super().compute(images, labels, update)
        self.comm.ended()  # a micro-batch that is exchanged without an update ends here
        self.comm.end_step()
        return loss


def exchange(comm, bucket):  # DDP refuses annotations that are text, as all are in this file
    """Average a bucket as DDP's own hook does; stamp the last: then no gradient is missing."""
    if bucket.is_last():
        comm.started()
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("gradients are exchanged within a process group, and there is none")
    return allreduce_hook(group, bucket)


class DirectSteps:
    """Writes every step as it ends, with its communication: 10 to 25 µs, little beside it."""

    def __init__(self, log: EventLog, comm: Communication):
        self.log = log
        self.comm = comm
        self.as_ns: Callable[[Any], int] = int  # when a mark of the step that is written was made

    def add(self, step: FinishedStep) -> None:
        """Write a step."""
        moments = tuple(map(self.as_ns, self.comm.steps.popleft()))
        self.log.write_line(step._replace(exchange=moments).line())


def rank_timeline(
    log: EventLog, device: torch.device, comm: Communication
) -> HostTimeline | DeviceTimeline:
    """Return the timeline that fits `device`; on a GPU, events in its queue stamp the exchange."""
    steps = DirectSteps(log, comm)
    if device.type == "cpu":
        timeline = HostTimeline(steps.add, long_ns=0)
    else:
        timeline = DeviceTimeline(steps.add, device)
        steps.as_ns = timeline.clock.taken
        comm.stamp = timeline.clock.events.record
    comm.steps.clear()  # of what was computed before
    return timeline
