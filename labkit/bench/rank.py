"""One rank of a distributed run: gradients are averaged over all, and stamped when that waits.

It is two stamps a step: the *last* gradient is ready; all are averaged. Between them communication
is exposed.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from labkit.bench import carry_out
from labkit.bench.loop import Trainer, train
from labkit.bench.roofline import work_of
from labkit.instruments import machine
from labkit.instruments.record_head import write_or_why, write_spec
from labkit.orders import Order
from labkit.process.device_lock import hold
from labkit.spec import KNOBS, Job
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.step_ring import FinishedStep
from labkit.stamps.timeline import DeviceTimeline, HostTimeline, make_timeline

NO_CARD = "each rank needs a CUDA device of its own, and there are fewer: all train on the CPU"
TOGETHER = "ranks end together, after as many steps"
Moment = int | torch.Event  # when something was: ns on a CPU, an event of a GPU


class DistributedTrainer(Trainer):
    """A Trainer whose gradients are averaged over all ranks; buffers stay each rank's own."""

    no_sync = False  # whether gradients are exchanged right before an update only

    def __init__(self, job: Job, device: torch.device):
        super().__init__(job, device)
        self.stamp: Callable[[], Moment] = now_ns
        self.as_ns: Callable[[Any], int] = int
        self.moments: list[Moment] = []  # of this step: the last gradient is there; all averaged
        self.exchanges: deque[list[Moment]] = deque()  # of each step that is not written yet
        self.parallel = DistributedDataParallel(
            self.model, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.parallel.register_comm_hook(self, exchange)
        self.model = self.parallel
        self.optimizer.register_step_pre_hook(lambda *_: self.note_averaged())

    def note_averaged(self) -> None:
        """Note that the averaged gradients are there; no step without communication has it."""
        if len(self.moments) == 1:
            self.moments.append(self.stamp())

    def compute(self, images: torch.Tensor, labels: torch.Tensor, update: bool) -> torch.Tensor:
        """Compute as a Trainer does; with `no_sync`, exchange only right before an update."""
        self.moments = []
        is_quiet = self.no_sync and not update
        with self.parallel.no_sync() if is_quiet else contextlib.nullcontext():
            loss = super().compute(images, labels, update)
        self.note_averaged()  # a micro-batch that is exchanged without an update ends here
        self.exchanges.append(self.moments)
        return loss

    def timeline(self, log: EventLog) -> HostTimeline | DeviceTimeline:
        """Return the timeline of its device, which writes every step as it ends.

        That takes 10 to 25 µs, little beside the exchange. On a GPU, events in its queue stamp it.
        """
        self.exchanges.clear()  # of what was computed before

        def write(step: FinishedStep) -> None:
            log.write_line(step.line([*map(self.as_ns, self.exchanges.popleft())]))

        timeline = make_timeline(log, write, self.device)
        if isinstance(timeline, DeviceTimeline):
            self.stamp, self.as_ns = timeline.clock.record, timeline.clock.last_host_ns
        return timeline


def exchange(trainer, bucket):  # DDP refuses annotations that are text, as all are in this file
    """Average a bucket as DDP's own hook does; stamp the last: then no gradient is missing."""
    if bucket.is_last():
        trainer.moments = [trainer.stamp()]
    return allreduce_hook(trainer.parallel.process_group, bucket)


def train_one(order: Order, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    rank, ranks = int(sys.argv[3]), order["ranks"]
    pipeline = (
        order["pipeline"] | order["starve"].get(str(rank), {}) | {"xray": False, "seconds": None}
    )
    write_spec(log, f"{order['run']}-rank{rank}", pipeline)
    machine.use_fixed_threads()
    machine.keep_freed_memory()
    device = machine.of_rank(pipeline["device"], ranks, rank)
    machine.use(device)
    here = machine.describe(device)
    log.write("machine", **here)
    whole = EventLog(folder)
    if rank == 0:  # for the run as a whole; its telemetry is of no single card
        whole.write("machine", **here | {"uuid": None})
    on_cards = device.type == "cuda"
    if on_cards or rank == 0:  # ranks on the CPU share it
        hold(Path(order["cache"]), here.get("uuid") or device.type, order["run"], whole.stage)
    log.stage("waiting for the other ranks")
    meeting = f"file://{folder.absolute()}/ranks"
    backend = "nccl" if on_cards else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks)
    why_not = {"seconds": TOGETHER} if order["pipeline"]["seconds"] else {}
    if not on_cards and machine.find_device(pipeline["device"]).type != "cpu":
        why_not["device"] = NO_CARD
    job = carry_out.settle_job(pipeline, here, log, KNOBS, **why_not)
    job.shard = (rank, ranks)
    trainer, loader = carry_out.prepare(order, job, device, log, DistributedTrainer)
    assert isinstance(trainer, DistributedTrainer)
    trainer.no_sync = order["no_sync"]
    timeline = trainer.timeline(log)
    iterator = carry_out.begin_measuring(loader, job, log)
    dist.barrier()  # or the first step would wait for whoever started last
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=machine.peak_bytes(device))
    write_or_why(log, "work", lambda: work_of(job, device))
    dist.barrier()  # nobody closes a connection that another one still uses
