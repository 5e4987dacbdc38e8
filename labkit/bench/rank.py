"""One rank of a distributed run: `python -m labkit.bench.rank FOLDER AGENT_PID`, under torchrun.

It trains as a single run does, on its own share of the data, and writes the same events into a log
of its own: `FOLDER/rankN/events.jsonl`, N counted on this machine.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import labkit
from labkit.bench.process import (
    die_with,
    finish,
    keep_sockets_in,
    leave_on_stop,
    planted,
    workers,
)
from labkit.process.events import SPEC_NAME, VERSION, EventLog


def main(folder: Path, agent: int) -> None:
    """Run one rank of the run in `folder`, tied to torchrun's process `agent`; never returns."""
    die_with(agent)
    faulthandler.enable()
    keep_sockets_in(folder)
    place = {name: int(os.environ[name.upper()]) for name in ("rank", "local_rank", "world_size")}
    here = folder / f"rank{place['local_rank']}"
    here.mkdir(exist_ok=True)
    log, spec = EventLog(here), json.loads((folder / SPEC_NAME).read_text())
    leave_on_stop(log)
    finish(log, lambda: run(spec, SimpleNamespace(**place), folder, log))


def run(spec: dict, place: Any, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    pipeline = spec["pipeline"] | spec["starve"].get(str(place.rank), {}) | {"xray": False}
    name, utc = f"{spec['run']}-rank{place.rank}", datetime.now(timezone.utc)
    log.write("spec", version=VERSION, run=name, utc=utc.isoformat(timespec="seconds"),
              labkit=labkit.__version__, pipeline=pipeline, place=vars(place))  # fmt: skip
    log.write("hello", pid=os.getpid())
    log.stage("importing torch")
    import torch
    from torch import distributed as dist

    from labkit.bench import data, ddp, machine, model_size
    from labkit.bench.loop import train
    from labkit.bench.resolve_config import resolve_config

    machine.use_fixed_threads()
    model_size.kept_in = Path(spec["cache"])
    device = torch.device(ddp.device_kind(pipeline["device"], spec["ranks"]))
    if device.type == "cuda":
        device = torch.device("cuda", place.local_rank)
        machine.use(device)
    facts = machine.describe(device)
    log.write("machine", **facts)
    if place.local_rank == 0:  # for the run as a whole; its telemetry is of no single card
        EventLog(folder).write("machine", **facts | {"uuid": None})
    log.stage("waiting for the other ranks")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    job, not_applied = same_model(
        place.rank, lambda **size: resolve_config(pipeline | size, device)
    )
    if why := ddp.gpu_passed_over(pipeline["device"], spec["ranks"]):
        not_applied["device"] = why
    log.write("job", pipeline=vars(job), not_applied=not_applied)
    job.shard = (place.rank, place.world_size)

    def dataset() -> Any:
        cache = Path(spec["cache"]) / "data"
        return data.make_dataset(job, cache, lambda *n: log.stage("making images", *n))

    items = dataset() if place.local_rank == 0 else None  # the machine's first makes missing files
    dist.barrier()
    items = items or dataset()
    log.stage("building the model")
    trainer = ddp.DistributedTrainer(job, device, spec["no_sync"])
    if job.compile:
        log.stage("compiling the model")
        log.write("compiled", seconds=trainer.compile_now())
    if place.rank == place.world_size - 1:  # for tests: one rank breaks, the others do not
        items = planted(spec.get("fault"), items, trainer)
    timeline = ddp.rank_timeline(log, folder, device, trainer.comm)
    log.write("begin", warmup=max(3, job.num_workers * (job.prefetch_factor or 0)))
    iterator = iter(data.make_loader(items, job))  # starts the workers
    workers.extend(multiprocessing.active_children())
    log.write("workers", pids=[worker.pid for worker in workers])
    dist.barrier()  # or the first step would wait for whoever started last
    trainer.time_is_up = ddp.SharedEnd(job.seconds, job.accumulation_steps)
    job.seconds = None
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=machine.peak_bytes(device))
    trainer.time_is_up.wait()
    dist.barrier()  # nobody closes a connection that another one still uses


def same_model(rank: int, resolve: Any) -> Any:
    """Resolve the job with rank 0's size of model: cards that are timed may come to another one."""
    from torch import distributed as dist

    resolved = resolve() if rank == 0 else None
    size = [resolved and {"width": resolved[0].width, "depth": resolved[0].depth}]
    dist.broadcast_object_list(size)
    return resolved or resolve(**size[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
