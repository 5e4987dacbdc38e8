"""One rank of a distributed run: `python -m labkit.bench.rank FOLDER PARENT`, with RANK set.

It writes what a single run does, into `FOLDER/rankN/events.jsonl`, and of each step when its
gradients were exchanged.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import distributed as dist

from labkit.bench import data, flops
from labkit.bench.carry_out import begun, compile_model, made_dataset, settled
from labkit.bench.gradient_exchange import DistributedTrainer
from labkit.bench.loop import train
from labkit.bench.planted_fault import planted
from labkit.instruments import devices, lifetime, machine, resources
from labkit.instruments.record_head import write_spec
from labkit.instruments.telemetry_process import telemetry_beside
from labkit.knobs import Settings
from labkit.orders import RanksOrder
from labkit.process.device_lock import hold
from labkit.stamps.events import EventLog


def run(order: RanksOrder, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    rank = int(os.environ["RANK"])
    ranks = order["ranks"]
    starved = order["starve"].get(str(rank), {})
    pipeline: Settings = order["pipeline"] | starved | {"xray": False, "seconds": None}
    write_spec(log, f"{order['run']}-rank{rank}", pipeline)
    resources.use_fixed_threads()
    resources.keep_freed_memory()
    device, not_the_gpu = devices.of_rank(pipeline["device"], ranks, rank)
    devices.use(device)
    facts = describe(device, rank, folder, log)
    if device.type == "cuda" or rank == 0:  # ranks on the CPU share it
        name = devices.card_uuid(device) if device.type == "cuda" else device.type
        hold(Path(order["cache"]), name, order["run"], EventLog(folder).waiting)
    log.stage("waiting for the other ranks")
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = f"file://{folder.absolute()}/ranks"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks)
    why_not = {"device": not_the_gpu} if not_the_gpu else {}
    if order["pipeline"]["seconds"] is not None:
        why_not["seconds"] = "ranks end together, after as many steps"
    job = settled(pipeline, facts, log, **why_not)
    job.shard = (rank, ranks)
    items = made_dataset(job, order, log)
    log.stage("building the model")
    trainer = DistributedTrainer(job, device, order["no_sync"])
    compile_model(trainer, log)
    if rank == ranks - 1:  # for tests: one rank breaks, the others do not
        items = planted(order["fault"], items, trainer)
    train_together(trainer, items, log)


def describe(device: torch.device, rank: int, folder: Path, log: EventLog) -> Settings:
    """Write what a rank runs on, and return it."""
    facts = machine.describe(device)
    log.write("machine", **facts)
    if device.type == "cuda":  # its own card, into its own log; it ends with the rank
        telemetry_beside(folder / f"rank{rank}")
    if rank == 0:  # for the run as a whole; its telemetry is of no single card
        EventLog(folder).write("machine", **facts | {"uuid": None})
    return facts


def train_together(trainer: DistributedTrainer, items: data.Images, log: EventLog) -> None:
    """Train in step with the other ranks."""
    job = trainer.job
    timeline = trainer.timeline(log)
    iterator = begun(data.make_loader(items, job), job, log)
    dist.barrier()  # or the first step would wait for whoever started last
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(trainer.device))
    flops.write_work(job, trainer.device, log)
    dist.barrier()  # nobody closes a connection that another one still uses


if __name__ == "__main__":
    lifetime.serve(run, f"rank{os.environ['RANK']}")
