"""One rank of a distributed run: `python -m labkit.bench.rank FOLDER AGENT_PID`, under torchrun.

It writes what a single run does, into `FOLDER/rankN/events.jsonl`, and two stamps more: a step's
*last* gradient is ready; all are averaged. Between them communication is exposed.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from labkit.bench import data, devices, flops, lifetime, machine, resources, work
from labkit.bench.loop import UNLIMITED_S, Trainer, train
from labkit.bench.planted_fault import planted
from labkit.bench.record_head import write_spec
from labkit.bench.resolve_config import resolve_config
from labkit.bench.telemetry_process import telemetry_beside
from labkit.bench.timeline import DeviceTimeline, HostTimeline
from labkit.knobs import Settings
from labkit.orders import RanksOrder
from labkit.process.events import EventLog, now_ns
from labkit.process.step_ring import FinishedStep
from labkit.spec import Job

Resolved = tuple[Job, dict[str, str]]
"""The job, and {knob: why it was not applied}."""

VOTE_EVERY = 4  # steps, at least, between two votes on whether the time is up


def run(order: RanksOrder, folder: Path, log: EventLog) -> None:
    """Join the other ranks, train with them, and write what this one did."""
    names = ("rank", "local_rank", "world_size")  # as torchrun tells them
    place = {name: int(os.environ[name.upper()]) for name in names}
    rank, local_rank, ranks = place.values()
    starved = order["starve"].get(str(rank), {})
    pipeline: Settings = order["pipeline"] | starved | {"xray": False}
    write_spec(log, f"{order['run']}-rank{rank}", pipeline, place=place)
    resources.use_fixed_threads()
    resources.keep_freed_memory()
    device, not_the_gpu = take_device(pipeline["device"], order["ranks"], local_rank)
    facts = machine.describe(device)
    log.write("machine", **facts)
    watch_card(device, folder, local_rank)
    if local_rank == 0:  # for the run as a whole; its telemetry is of no single card
        EventLog(folder).write("machine", **facts | {"uuid": None})
    log.stage("waiting for the other ranks")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    job, not_applied = same_model(rank, lambda **sizes: resolve_config(pipeline | sizes, device))
    if not_the_gpu:
        not_applied["device"] = not_the_gpu
    log.write("job", pipeline=vars(job), not_applied=not_applied)
    job.shard = (rank, ranks)
    items = first_makes_files(local_rank, job, Path(order["cache"]) / "data", log)
    trainer = work.built(lambda: DistributedTrainer(job, device, order["no_sync"]), log)
    if rank == ranks - 1:  # for tests: one rank breaks, the others do not
        items = planted(order["fault"], items, trainer)
    timeline = rank_timeline(log, device, trainer.comm)
    iterator = work.begun(data.make_loader(items, job), job, log)
    counted = flops.write_work(trainer, log, only_known=True)
    dist.barrier()  # or the first step would wait for whoever started last
    shared_end = SharedEnd(job.seconds, job.accumulation_steps)
    trainer.after_step = shared_end
    job.seconds = None
    train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(device))
    if not counted:
        flops.write_work(trainer, log)
    shared_end.wait()
    dist.barrier()  # nobody closes a connection that another one still uses


def take_device(wanted: str, ranks: int, local_rank: int) -> tuple[torch.device, str | None]:
    """Make a rank's device the current one; return it, and why it is no GPU, if so."""
    kind, not_the_gpu = device_kind(wanted, ranks)
    device = torch.device(kind)
    if device.type == "cuda":
        device = torch.device("cuda", devices.usable_cards()[local_rank])
        devices.use(device)
    return device, not_the_gpu


def first_makes_files(local_rank: int, job: Job, cache: Path, log: EventLog) -> data.Images:
    """Return the dataset; the machine's first rank makes missing files, while the others wait."""
    if local_rank:
        dist.barrier()
    items = data.make_dataset(job, cache, partial(log.stage, "making images"))
    if not local_rank:
        dist.barrier()
    return items


def watch_card(device: torch.device, folder: Path, local_rank: int) -> None:
    """Sample a rank's own card beside it, into its own log; the process ends with the rank."""
    if device.type == "cuda":
        telemetry_beside(folder / f"rank{local_rank}")


def same_model(rank: int, resolve: Callable[..., Resolved]) -> Resolved:
    """Resolve the job with rank 0's size of model: cards that are timed may come to another one."""
    if rank == 0:
        resolved = resolve()
        sizes = {"width": resolved[0].width, "depth": resolved[0].depth}
        dist.broadcast_object_list([sizes])
        return resolved
    received: list[dict[str, int]] = [{}]
    dist.broadcast_object_list(received)
    return resolve(**received[0])


def device_kind(wanted: str, ranks: int) -> tuple[str, str | None]:
    """Return "cuda" or "cpu", and why it is not the GPU that a single run would use, if so."""
    count = len(devices.usable_cards())
    if wanted == "cuda" and count < ranks:
        raise RuntimeError(
            f"ranks={ranks} with device='cuda' need a card each and {count} CUDA devices are "
            "visible: use fewer ranks, or device='cpu'."
        )
    if wanted != "cpu" and count >= ranks:
        return "cuda", None
    why = f"each rank needs a CUDA device of its own, and {ranks} ranks have {count} between them"
    on_gpu = wanted == "auto" and devices.find_device("auto").type != "cpu"
    return "cpu", f"{why}: all train on the CPU" if on_gpu else None


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
        self.sent = dist.all_reduce(self.vote, dist.ReduceOp.MAX, self.group, async_op=True)
        return over

    def wait(self) -> bool:
        """Wait for the vote that is under way, if any; return its result."""
        if self.sent is None:
            return False
        self.sent.wait()
        return bool(self.vote.item())


class DirectSteps:
    """Writes every step as it ends, with its communication: 10 to 25 µs, little beside it."""

    def __init__(self, log: EventLog, comm: Communication):
        self.log = log
        self.comm = comm
        self.as_ns: Callable[[Any], int] = int  # when a mark of the step that is written was made

    def add(self, step: FinishedStep) -> None:
        """Write a step."""
        exchange = tuple(map(self.as_ns, self.comm.steps.popleft()))
        self.log.write_line(step._replace(exchange=exchange).line())


def rank_timeline(
    log: EventLog, device: torch.device, comm: Communication
) -> HostTimeline | DeviceTimeline:
    """Return the timeline that fits `device`; on a GPU, events in its queue stamp the exchange."""
    steps = DirectSteps(log, comm)
    if device.type == "cpu":
        timeline = HostTimeline(steps.add, long_ns=0)
    else:
        timeline = DeviceTimeline(steps.add, log, device)
        steps.as_ns = timeline.taken
        comm.stamp = timeline.events.record
    comm.steps.clear()  # of what was computed before
    return timeline


if __name__ == "__main__":
    lifetime.serve(run, f"rank{os.environ['LOCAL_RANK']}")
