"""Do what an order asks for: take the device, then measure an experiment or train a pipeline."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from labkit.bench import data, handoff, user_dataset, xray
from labkit.bench.flops import write_work
from labkit.bench.loop import Trainer, train
from labkit.bench.quick_runs import shorten
from labkit.bench.resolve_config import resolve_config
from labkit.instruments import loader_workers, machine, resources
from labkit.instruments.loader_hook import Recording, in_workers
from labkit.instruments.loader_work import LoaderWork
from labkit.instruments.sampler import Sampler
from labkit.knobs import Settings
from labkit.orders import Order
from labkit.process.device_lock import hold
from labkit.spec import LOADER_KNOBS, Job
from labkit.stamps.events import EventLog
from labkit.stamps.timeline import make_timeline

LEAST_WARMUP = 3  # steps left out of the statistics, where no more batches are prefetched


def do(order: Order, folder: Path, log: EventLog) -> None:
    """Take the device, do what `order` says on it, and write what it took."""
    if "source" not in order or "measure" in order:  # a reader's own step keeps its threads
        resources.use_fixed_threads()
    device = machine.find_device(order["pipeline"]["device"])
    machine.use(device)
    here = machine.describe(device) | {"unused_gpu": machine.unused_gpu()}
    log.write("machine", **here)
    hold(Path(order["cache"]), here.get("uuid") or device.type, order["run"], waiting=log.stage)
    if "measure" in order:
        from labkit.bench.measure import perform  # a tenth of a second

        perform(order, device, folder, log)
        log.write("memory", peak_bytes=resources.peak_bytes(device))
        return
    resources.keep_freed_memory()
    if "source" in order:
        run_own(order, here, folder, log)
    else:
        run_pipeline(order, device, here, folder, log)


def run_own(order: Order, here: Settings, folder: Path, log: EventLog) -> None:
    """Feed the reader's dataset to their step."""
    job, not_applied = resolve_config(order["pipeline"], here, size_model=False)
    knobs = {name: getattr(job, name) for name in LOADER_KNOBS}  # the others act on nothing
    log.write("job", pipeline=knobs, not_applied=not_applied)
    log.stage("loading your dataset")
    trainer, batches = user_dataset.prepare(order["source"], job, folder)
    timeline = make_timeline(log, folder, trainer.device)
    with lines_of(batches.loader, folder):
        steps = train(trainer, begun(batches, job, log), timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(trainer.device))
    handoff.look(batches.tensors, steps, log, None)


def run_pipeline(
    order: Order, device: torch.device, here: Settings, folder: Path, log: EventLog
) -> None:
    """Set up the pipeline that `order` describes, and train."""
    job = settled(order["pipeline"], here, log)
    if "module" in order:
        made = importlib.import_module(order["module"])
        trainer, loader = made.prepare(order, job, device, folder, log)
    else:
        dataset = data.make_dataset(job, Path(order["cache"]) / "data", log)
        log.stage("building the model")
        trainer = Trainer(job, device)
        compile_model(trainer, log)
        items = planted(order["fault"], dataset, trainer)  # it may put another loader in place
        loader = data.make_loader(items, job)
    timeline = make_timeline(log, folder, device)
    with lines_of(loader, folder):
        iterator = begun(loader, job, log)
        xray.keep_time(job)
        steps = train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=resources.peak_bytes(device))
    xray.look(trainer, iterator, job, steps, folder, log)
    handoff.look(data.noise_batch(job), steps, log, trainer)
    write_work(job, device, log)


def settled(asked: Settings, here: Settings, log: EventLog, **not_applied: str) -> Job:
    """Return and write the job that this device can do of what was asked for."""
    job, why_not = resolve_config(asked, here)
    not_applied |= why_not
    shorten(job, not_applied)
    log.write("job", pipeline=vars(job), not_applied=not_applied)
    return job


def planted(fault: str | None, dataset: Any, trainer: object) -> Any:
    """Plant a fault of a test or of the fault set; return what the dataset becomes.

    It is "module:function:argument", called with the argument, the dataset and the trainer.
    """
    if not fault:
        return dataset
    module, function, argument = fault.split(":", 2)
    return pkgutil.resolve_name(f"{module}:{function}")(argument, dataset, trainer)


def compile_model(trainer: Trainer, log: EventLog) -> None:
    """Compile a model where its job says so."""
    if trainer.job.compile:
        log.stage("compiling the model")
        log.write("compiled", seconds=trainer.compile_now())


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


def begun(loader: Iterable[Any], job: Job, log: EventLog) -> Iterator[Any]:
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
