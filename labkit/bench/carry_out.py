"""Do what an order asks for: take the device, then measure a function or train a pipeline."""

from __future__ import annotations

import contextlib
import multiprocessing
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from labkit.bench import data, handoff, user_dataset, xray
from labkit.bench.loop import Trainer, Trains, train
from labkit.bench.resolve_config import resolve_config
from labkit.bench.roofline import work_of
from labkit.instruments import lifetime, machine
from labkit.instruments.loader_hook import Recording, in_workers
from labkit.instruments.loader_knobs import warmup_steps
from labkit.instruments.loader_work import LoaderWork
from labkit.instruments.record_head import write_or_why
from labkit.instruments.sampler import Sampler
from labkit.knobs import Settings
from labkit.orders import Order
from labkit.process.device_lock import hold
from labkit.spec import KNOBS, LOADER_KNOBS, LOOKS_S, QUICK_SHARE, Job, quick_run
from labkit.stamps.events import EventLog
from labkit.stamps.step_ring import StepRing
from labkit.stamps.timeline import make_timeline

LEAST_OF_QUICK = {"seconds": 0.5, "steps": 40}
STEPS_TO_LOOK = 20  # steps of a run: the looks after it would be a large part of a shorter one
SECONDS_TO_LOOK = 2.0  # of a run with a time limit that is looked at


def do(order: Order, folder: Path, log: EventLog) -> None:
    """Take the device, do what `order` says on it, and write what memory that took."""
    if "source" not in order or "measure" in order:  # a reader's own step keeps its threads
        machine.use_fixed_threads()
    device = machine.find_device(order["pipeline"]["device"])
    machine.use(device)
    here = machine.describe(device) | {"unused_gpu": machine.unused_gpu()}
    log.write("machine", **here)
    hold(Path(order["cache"]), here.get("uuid") or device.type, order["run"], waiting=log.stage)
    if "measure" in order:
        from labkit.bench.measure import perform  # a tenth of a second

        return perform(order, device, folder, log)
    machine.keep_freed_memory()
    run_training(order, device, here, folder, log)


def run_training(
    order: Order, device: torch.device, here: Settings, folder: Path, log: EventLog
) -> None:
    """Feed the reader's dataset to their step; or train a pipeline, and look at its steps again."""
    own = order.get("source")
    # of a reader's own the other knobs act on nothing
    job = settle_job(order["pipeline"], here, log, LOADER_KNOBS if own else KNOBS)
    if own:
        log.stage("loading your dataset")
        train_and_sample(*user_dataset.prepare(own, job, folder), job, folder, log)
        return
    trainer, loader = prepare(order, job, device, log)
    if job.xray and job.seconds:  # the limit is one for all
        job.xray = job.seconds >= SECONDS_TO_LOOK
        job.seconds -= job.xray * LOOKS_S
    steps, iterator = train_and_sample(trainer, loader, job, folder, log)
    if steps >= STEPS_TO_LOOK:
        if job.xray:
            write_or_why(log, "xray", lambda: xray.look(trainer, iterator, folder))
        write_or_why(log, "handoff", lambda: handoff.look(trainer))
    write_or_why(log, "work", lambda: work_of(job, device))


def settle_job(
    pipeline: Settings, here: Settings, log: EventLog, knobs: Iterable[str], **not_applied: str
) -> Job:
    """Return the job that this device can do of a pipeline; write those of its `knobs`."""
    job, why_not = resolve_config(pipeline, here)
    not_applied |= why_not
    shorten(job, not_applied)
    log.write("job", pipeline={each: getattr(job, each) for each in knobs}, not_applied=not_applied)
    return job


def shorten(job: Job, not_applied: dict[str, str]) -> None:
    """Where LABKIT_QUICK=1, cut a run to a quarter of its time limit, or without one of its steps.

    A run keeps at least half a second, or 40 steps.
    """
    limit = "steps" if job.seconds is None else "seconds"
    full = getattr(job, limit)
    if quick_run() and full > LEAST_OF_QUICK[limit]:
        left = max(LEAST_OF_QUICK[limit], type(full)(full * QUICK_SHARE))
        setattr(job, limit, left)
        not_applied[limit] = f"LABKIT_QUICK=1: {left:g} {limit}"


def prepare(
    order: Order, job: Job, device: torch.device, log: EventLog, kind: type[Trainer] = Trainer
) -> tuple[Trainer, DataLoader]:
    """Return what trains, of a `kind`, and its loader, with the slow script or a fault planted.

    That is "module:function:argument", called with the argument, the dataset and the trainer.
    """
    dataset = data.make_dataset(job, Path(order["cache"]) / "data", log)
    log.stage("building the model")
    trainer = kind(job, device)
    if job.compile:
        log.stage("compiling the model")
        trainer.compile_now()
    if order["fault"]:
        function, _, argument = order["fault"].rpartition(":")
        dataset = pkgutil.resolve_name(function)(argument, dataset, trainer)
    return trainer, data.make_loader(dataset, job)


def train_and_sample(
    trainer: Trains, loader: DataLoader, job: Job, folder: Path, log: EventLog
) -> tuple[int, Iterator[Any]]:
    """Train, and write what memory that took; return the steps done and the batches to come."""
    timeline = make_timeline(log, StepRing(folder).add, trainer.device)
    with lines_of(loader, folder):
        iterator = begin_measuring(loader, job, log)
        steps = train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=machine.peak_bytes(trainer.device))
    return steps, iterator


@contextlib.contextmanager
def lines_of(loader: DataLoader[object], folder: Path) -> Iterator[None]:
    """Sample the lines of the loop and its dataset, here and in the loader's workers."""
    sampler = Sampler(folder)
    sampler.places.loop = train.__code__
    work = LoaderWork(sampler.log, -1)
    with in_workers(loader, Recording(folder, work)):
        sampler.start()
        yield
    sampler.stop()
    sampler.flush()
    work.flush()


def begin_measuring(loader: Iterable[Any], job: Job, log: EventLog) -> Iterator[Any]:
    """Begin to measure: start the loader's workers, and write who they are."""
    machine.collect_garbage()  # from here on, all is as in anybody's training
    log.write("begin", warmup=warmup_steps(vars(job)))
    if job.num_workers:
        log.stage(f"starting {job.num_workers} loader workers")
    iterator = iter(loader)
    lifetime.kept_iterators.append(iterator)
    lifetime.started.extend(multiprocessing.active_children())
    log.write("workers", pids=[worker.pid for worker in lifetime.started])
    return iterator
