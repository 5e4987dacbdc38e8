"""A distributed run: `python -m labkit.bench.ranks FOLDER PARENT [RANK]`.

Without a rank it starts them all: processes on this machine, which meet through a file in the run's
folder. Here the run's log is told which rank failed and why. A rank writes what a single run does,
into `FOLDER/rankN/events.jsonl`, and of each step when its gradients were exchanged.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from labkit.instruments import lifetime
from labkit.instruments.record_head import write_spec
from labkit.knobs import Settings
from labkit.orders import Order
from labkit.process import family
from labkit.process.device_lock import hold
from labkit.stamps.events import FILE_NAME, EventLog, events_named

POLL_S = 0.05
NO_CARD = "each rank needs a CUDA device of its own, and there are fewer: all train on the CPU"
TOGETHER = "ranks end together, after as many steps"


def launch(order: Order, folder: Path, log: EventLog) -> int | None:
    """Start the ranks, and wait for them; return the exit code, None if it is 0."""
    log.write("hello", pid=os.getpid())
    log.stage("starting the ranks")
    command = [sys.executable, "-m", "labkit.bench.ranks", str(folder), str(os.getpid())]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(order["ranks"])]
    codes: list[int | None] = [None]
    while None in codes and not any(codes):
        time.sleep(POLL_S)
        codes = [rank.poll() for rank in ranks]
    failed = {rank: code for rank, code in enumerate(codes) if code}
    if not failed:
        return None
    name_the_failed(failed, folder, log)  # the others end with this process
    return 1


def name_the_failed(codes: dict[int, int], folder: Path, log: EventLog) -> None:
    """Write which rank was killed, or raised first, by the exit codes of those that failed.

    The others only lost their peer.
    """
    errors = {}
    for rank in codes:
        with contextlib.suppress(OSError, StopIteration):
            errors[rank] = next(events_named("error", folder / f"rank{rank}" / FILE_NAME))
    rank = min(codes, key=lambda rank: (codes[rank] > 0, errors.get(rank, {}).get("t_ns", 0)))
    error = errors.get(rank)
    why = f"{error['kind']}: {error['message']}" if error else None
    log.write(
        "error",
        kind=f"Rank {rank}",
        message=why or f"it was ended by {family.exit_name(codes[rank])}",
        traceback=error and error["traceback"],
    )


def train_one(order: Order, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    import torch.distributed as dist

    from labkit.bench import carry_out
    from labkit.bench.flops import write_work
    from labkit.bench.gradient_exchange import DistributedTrainer
    from labkit.bench.loop import train
    from labkit.instruments import machine, resources

    rank, ranks = int(sys.argv[3]), order["ranks"]
    starved = order["starve"].get(str(rank), {})
    pipeline: Settings = order["pipeline"] | starved | {"xray": False, "seconds": None}
    write_spec(log, f"{order['run']}-rank{rank}", pipeline)
    resources.use_fixed_threads()
    resources.keep_freed_memory()
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
    job = carry_out.settled(pipeline, here, log, **why_not)
    job.shard = (rank, ranks)
    if rank < ranks - 1:  # for tests: one rank breaks, the others do not
        order["fault"] = None
    trainer, loader = carry_out.prepare(order, job, device, log, DistributedTrainer)
    assert isinstance(trainer, DistributedTrainer)
    trainer.no_sync = order["no_sync"]
    timeline = trainer.timeline(log)
    iterator = carry_out.begun(loader, job, log)
    dist.barrier()  # or the first step would wait for whoever started last
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(device))
    write_work(job, device, log)
    dist.barrier()  # nobody closes a connection that another one still uses


if __name__ == "__main__":
    if sys.argv[3:]:
        lifetime.serve(train_one, f"rank{sys.argv[3]}")
    else:
        lifetime.serve(launch)
