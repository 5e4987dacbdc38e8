"""One rank of a distributed run: `python -m labkit.bench.rank FOLDER PARENT`, with RANK set.

It writes what a single run does, into `FOLDER/rankN/events.jsonl`, and of each step when its
gradients were exchanged.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch import distributed as dist

from labkit.bench import data, flops
from labkit.bench.carry_out import begun, compile_model, planted, settled
from labkit.bench.gradient_exchange import DistributedTrainer
from labkit.bench.loop import train
from labkit.instruments import lifetime, machine, resources
from labkit.instruments.record_head import write_spec
from labkit.instruments.telemetry_process import telemetry_beside
from labkit.knobs import Settings
from labkit.orders import Order
from labkit.process.device_lock import hold
from labkit.stamps.events import EventLog

NO_CARD = "each rank needs a CUDA device of its own, and there are fewer: all train on the CPU"
TOGETHER = "ranks end together, after as many steps"


def run(order: Order, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    rank = int(os.environ["RANK"])
    ranks = order["ranks"]
    starved = order["starve"].get(str(rank), {})
    pipeline: Settings = order["pipeline"] | starved | {"xray": False, "seconds": None}
    write_spec(log, f"{order['run']}-rank{rank}", pipeline)
    resources.use_fixed_threads()
    resources.keep_freed_memory()
    device = machine.of_rank(pipeline["device"], ranks, rank)
    machine.use(device)
    here = machine.describe(device)
    log.write("machine", **here)
    if rank == 0:  # for the run as a whole; its telemetry is of no single card
        EventLog(folder).write("machine", **here | {"uuid": None})
    on_cards = device.type == "cuda"
    if on_cards:  # its own card, into its own log; it ends with the rank
        telemetry_beside(folder / f"rank{rank}")
    if on_cards or rank == 0:  # ranks on the CPU share it
        name = here.get("uuid") or device.type
        hold(Path(order["cache"]), name, order["run"], EventLog(folder).stage)
    log.stage("waiting for the other ranks")
    meeting = f"file://{folder.absolute()}/ranks"
    backend = "nccl" if on_cards else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=ranks)
    why_not = {}
    if not on_cards and machine.find_device(pipeline["device"]).type != "cpu":
        why_not["device"] = NO_CARD
    if order["pipeline"]["seconds"] is not None:
        why_not["seconds"] = TOGETHER
    job = settled(pipeline, here, log, **why_not)
    job.shard = (rank, ranks)
    items = data.make_dataset(job, Path(order["cache"]) / "data", log)
    log.stage("building the model")
    trainer = DistributedTrainer(job, device, order["no_sync"])
    compile_model(trainer, log)
    if rank == ranks - 1:  # for tests: one rank breaks, the others do not
        items = planted(order["fault"], items, trainer)
    timeline = trainer.timeline(log)
    iterator = begun(data.make_loader(items, job), job, log)
    dist.barrier()  # or the first step would wait for whoever started last
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(device))
    flops.write_work(job, device, log)
    dist.barrier()  # nobody closes a connection that another one still uses


if __name__ == "__main__":
    lifetime.serve(run, f"rank{os.environ['RANK']}")
