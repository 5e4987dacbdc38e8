"""One rank of a distributed run: `python -m labkit.bench.rank FOLDER PARENT`, with RANK set.

It writes what a single run does, into `FOLDER/rankN/events.jsonl`, and of each step when its
gradients were exchanged.
"""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist

from labkit.bench import data, flops
from labkit.bench.carry_out import begun, built
from labkit.bench.gradient_exchange import DistributedTrainer, rank_timeline
from labkit.bench.loop import UNLIMITED_S, train
from labkit.bench.planted_fault import planted
from labkit.bench.quick_runs import shorten
from labkit.bench.resolve_config import resolve_config
from labkit.instruments import devices, lifetime, machine, resources
from labkit.instruments.record_head import write_spec
from labkit.instruments.telemetry_process import telemetry_beside
from labkit.knobs import Settings
from labkit.orders import RanksOrder
from labkit.process.device_lock import hold
from labkit.stamps.events import EventLog, now_ns

VOTE_EVERY = 4  # steps, at least, between two votes on whether the time is up


def run(order: RanksOrder, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    rank = int(os.environ["RANK"])
    ranks = order["ranks"]
    starved = order["starve"].get(str(rank), {})
    pipeline: Settings = order["pipeline"] | starved | {"xray": False}
    write_spec(log, f"{order['run']}-rank{rank}", pipeline)
    resources.use_fixed_threads()
    resources.keep_freed_memory()
    device, not_the_gpu = devices.of_rank(pipeline["device"], ranks, rank)
    devices.use(device)
    describe(device, rank, folder, log)
    if device.type == "cuda" or rank == 0:  # ranks on the CPU share it
        name = devices.card_uuid(device) if device.type == "cuda" else device.type
        hold(Path(order["cache"]), name, order["run"], EventLog(folder).waiting)
    log.stage("waiting for the other ranks")
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = f"file://{folder.absolute()}/ranks"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks)
    job, not_applied = resolve_config(pipeline, device)
    if not_the_gpu:
        not_applied["device"] = not_the_gpu
    shorten(job, not_applied)
    log.write("job", pipeline=vars(job), not_applied=not_applied)
    job.shard = (rank, ranks)
    files = Path(order["cache"]) / "data"
    items = data.make_dataset(job, files, partial(log.stage, "making images"))
    trainer = built(lambda: DistributedTrainer(job, device, order["no_sync"]), log)
    if rank == ranks - 1:  # for tests: one rank breaks, the others do not
        items = planted(order["fault"], items, trainer)
    train_together(trainer, items, log)


def describe(device: torch.device, rank: int, folder: Path, log: EventLog) -> None:
    """Write what a rank runs on."""
    facts = machine.describe(device)
    log.write("machine", **facts)
    if device.type == "cuda":  # its own card, into its own log; it ends with the rank
        telemetry_beside(folder / f"rank{rank}")
    if rank == 0:  # for the run as a whole; its telemetry is of no single card
        EventLog(folder).write("machine", **facts | {"uuid": None})


def train_together(trainer: DistributedTrainer, items: data.Images, log: EventLog) -> None:
    """Train in step with the other ranks, until the time is up for all."""
    job = trainer.job
    timeline = rank_timeline(log, trainer.device, trainer.comm)
    iterator = begun(data.make_loader(items, job), job, log)
    dist.barrier()  # or the first step would wait for whoever started last
    shared_end = SharedEnd(job.seconds, job.accumulation_steps)
    trainer.after_step = shared_end
    job.seconds = None
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(trainer.device))
    flops.write_work(job, trainer.device, log)
    shared_end.wait()
    dist.barrier()  # nobody closes a connection that another one still uses


class SharedEnd:
    """Ends all ranks after the same step, by votes over gloo that are read one vote later."""

    def __init__(self, seconds: float | None, accumulation_steps: int):
        self.deadline_ns = now_ns() + int((seconds or UNLIMITED_S) * 1e9)
        # right after an exchange of gradients: there the ranks are in step anyway
        self.every = accumulation_steps * math.ceil(VOTE_EVERY / accumulation_steps)
        self.group = dist.new_group(backend="gloo")
        self.steps = 0
        self.vote = torch.zeros(1)
        self.sent: dist.Work | None = None

    def __call__(self) -> bool:
        """Count a step; return whether it was the last one for everybody."""
        self.steps += 1
        if self.steps % self.every:
            return False
        over = self.wait()
        self.vote = torch.tensor([float(now_ns() > self.deadline_ns)])
        # PyTorch 2.14 types a group as an int where a rank is not in it; here all are
        self.sent = dist.all_reduce(  # pyright: ignore[reportCallIssue]
            self.vote,
            dist.ReduceOp.MAX,
            self.group,  # pyright: ignore[reportArgumentType]
            async_op=True,
        )
        return over

    def wait(self) -> bool:
        """Wait for the vote that is under way, if any; return its result."""
        if self.sent is None:
            return False
        self.sent.wait()
        return bool(self.vote.item())


if __name__ == "__main__":
    lifetime.serve(run, f"rank{os.environ['RANK']}")
