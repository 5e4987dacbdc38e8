"""Do what an order asks for: take the device, then measure an experiment or train a pipeline."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from labkit.bench import data, handoff, user_parts, xray
from labkit.bench.flops import write_work
from labkit.bench.loop import Trainer, Trains, train
from labkit.bench.planted_fault import planted
from labkit.bench.quick_runs import shorten
from labkit.bench.resolve_config import resolve_config
from labkit.bench.user_dataset import EndlessBatches
from labkit.bench.user_step import OwnStep
from labkit.instruments import devices, loader_workers, machine, resources
from labkit.instruments.loader_hook import Recording, in_workers
from labkit.instruments.loader_work import LoaderWork
from labkit.instruments.sampler import Sampler
from labkit.orders import RowsOrder, RunOrder
from labkit.process.device_lock import hold
from labkit.spec import LOADER_KNOBS, Job
from labkit.stamps.events import EventLog
from labkit.stamps.timeline import make_timeline

LEAST_WARMUP = 3  # steps left out of the statistics, where no more batches are prefetched

TrainerType = TypeVar("TrainerType", bound=Trainer)
Loader = DataLoader[object] | EndlessBatches


def do(order: RunOrder | RowsOrder, folder: Path, log: EventLog) -> None:
    """Take the device, do what `order` says on it, and write what it took."""
    if "source" not in order or "measure" in order:  # a reader's own step keeps its threads
        resources.use_fixed_threads()
    device = devices.find_device(order["pipeline"]["device"])
    devices.use(device)
    here = machine.describe(device) | {"unused_gpu": devices.unused_gpu()}
    log.write("machine", **here)
    hold(Path(order["cache"]), here.get("uuid") or device.type, order["run"], waiting=log.waiting)
    if "measure" in order:
        from labkit.bench.measure import perform  # a tenth of a second

        perform(order, device, folder, log)
        log.write("memory", peak_bytes=resources.peak_bytes(device))
    else:
        run_pipeline(order, device, folder, log)


def run_pipeline(order: RunOrder, device: torch.device, folder: Path, log: EventLog) -> None:
    """Set up the pipeline that `order` describes, and train."""
    own = "source" in order
    resources.keep_freed_memory()
    job, not_applied = resolve_config(order["pipeline"], device, size_model=not own)
    if not own:
        shorten(job, not_applied)
    knobs = vars(job)
    if own:  # the others act on no part of the reader's
        knobs = {name: knobs[name] for name in LOADER_KNOBS}
    log.write("job", pipeline=knobs, not_applied=not_applied)
    trainer, loader = prepare(order, job, device, folder, log)
    timeline = make_timeline(log, folder, device)
    with lines_of(loader, folder):
        iterator = begun(loader, job, log)
        xray.keep_time(job)
        steps = train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(device))
    if isinstance(loader, EndlessBatches):
        handoff.look(loader.tensors, steps, log, None)
    if isinstance(trainer, OwnStep):
        return
    xray.look(trainer, iterator, job, steps, folder, log)
    handoff.look(data.noise_batch(job), steps, log, trainer)
    write_work(job, device, log)


def prepare(
    order: RunOrder, job: Job, device: torch.device, folder: Path, log: EventLog
) -> tuple[Trains, Loader]:
    """Return what trains, and the loader that feeds it."""
    if "source" in order:
        log.stage("loading your dataset")
        return user_parts.prepare(order["source"], job, folder)
    if "module" in order:
        made = importlib.import_module(order["module"])
        return made.prepare(order, job, device, folder, log)
    cache = Path(order["cache"]) / "data"
    dataset = data.make_dataset(job, cache, partial(log.stage, "making images"))
    trainer = built(lambda: Trainer(job, device), log)
    dataset = planted(order["fault"], dataset, trainer)
    return trainer, data.make_loader(dataset, job)


@contextlib.contextmanager
def lines_of(batches: Loader, folder: Path) -> Iterator[None]:
    """Sample the lines of the loop and its dataset, here and in the loader's workers."""
    loader = batches.loader if isinstance(batches, EndlessBatches) else batches
    sampler = Sampler(folder)
    sampler.places.loop = train.__code__
    work = LoaderWork(sampler.log, -1, 1)
    with in_workers(loader, Recording(folder, work)):
        sampler.start()
        yield
    sampler.stop()
    sampler.flush()
    work.close()


def built(make: Callable[[], TrainerType], log: EventLog) -> TrainerType:
    """Return the trainer that `make` gives, compiled where its job says so."""
    log.stage("building the model")
    trainer = make()
    if trainer.job.compile:
        log.stage("compiling the model")
        log.write("compiled", seconds=trainer.compile_now())
    return trainer


def begun(loader: Loader, job: Job, log: EventLog) -> Iterator[Any]:
    """Begin to measure: start the loader's workers, and write who they are."""
    resources.collect_garbage()  # from here on, all is as in anybody's training
    log.write("begin", warmup=max(LEAST_WARMUP, job.num_workers * (job.prefetch_factor or 0)))
    if job.num_workers:
        log.stage(f"starting {job.num_workers} loader workers")
    iterator = iter(loader)
    loader_workers.kept_iterators.append(iterator)
    loader_workers.started.extend(multiprocessing.active_children())
    log.write("workers", pids=[worker.pid for worker in loader_workers.started])
    return iterator
