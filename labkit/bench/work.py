"""What a bench does with its spec: take the device, then measure an experiment or train a pipeline.

All that a pipeline needs is imported here at the top, so that a standby has it when its run comes.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from labkit.bench import data, machine, model_size, probes, profile, user_dataset
from labkit.bench.item_times import ItemTimes
from labkit.bench.loop import Trainer, train
from labkit.bench.process import held, planted, workers
from labkit.bench.resolve_config import resolve_config
from labkit.bench.timeline import make_timeline
from labkit.process.device_lock import hold
from labkit.process.events import EventLog


def workbench() -> Any:
    """Import the tools of experiments, which a pipeline does without: a tenth of a second."""
    from labkit.bench import workbench

    return workbench


def do(spec: dict, folder: Path, log: EventLog) -> None:
    """Take the device, do what `spec` describes on it, and write what it took."""
    if "source" not in spec:  # the reader's own step has as many threads as it has with them
        machine.use_fixed_threads()
    device = machine.find_device(spec["pipeline"]["device"])
    machine.use(device)
    here = machine.describe(device) | {"unused_gpu": machine.unused_gpu()}
    log.write("machine", **here)
    cache = model_size.kept_in = Path(spec["cache"])
    holder = {"run": spec["run"], "pid": os.getpid(), "since": time.strftime("%H:%M:%S")}
    hold(cache / "locks", here.get("uuid") or device.type, holder, waiting=log.stage)
    if "experiment" in spec:
        perform = workbench().perform
        gc.enable()
        perform(spec, device, folder, log, log.stage)
        log.write("memory", peak_bytes=machine.peak_bytes(device))
    else:
        run_pipeline(spec, device, folder, log)


def run_pipeline(spec: dict, device: Any, folder: Path, log: EventLog) -> None:
    """Set up the pipeline that `spec` describes, and train."""
    own = "source" in spec
    job, not_applied = resolve_config(spec["pipeline"], device, own_model=not own)
    knobs = {name: getattr(job, name) for name in user_dataset.KNOBS} if own else vars(job)
    log.write("job", pipeline=knobs, not_applied=not_applied)
    if own:
        log.stage("loading your dataset")
        trainer, loader = user_dataset.prepare(spec["source"], job, folder)
    elif "module" in spec:
        made = importlib.import_module(spec["module"])
        trainer, loader = made.prepare(spec, job, device, folder, log, log.stage)
    else:
        trainer, loader = prepare(spec, job, device, folder, log)
    in_flight = job.num_workers * (job.prefetch_factor or 0)
    timeline = make_timeline(log, folder, device)
    gc.enable()  # from here on, all is as in anybody's training
    log.write("begin", warmup=max(3, in_flight))
    iterator = iter(loader)  # starts the workers
    held.append(iterator)
    workers.extend(multiprocessing.active_children())
    log.write("workers", pids=[worker.pid for worker in workers])
    profile.keep_time(job)
    steps = train(trainer, iterator, timeline, job)
    log.write("memory", peak_bytes=machine.peak_bytes(device))
    profile.look(trainer, iterator, job, steps, folder, log)
    batch = iterator.tensors if own else model_size.noise_batch(job)
    probes.hand_over(batch, steps, log, None if own else trainer)


def prepare(spec: dict, job: Any, device: Any, folder: Path, log: EventLog) -> tuple[Any, Any]:
    """Return the model's trainer and the loader of a pipeline of our own."""
    cache = Path(spec["cache"]) / "data"
    dataset = data.make_dataset(job, cache, lambda *n: log.stage("making images", *n))
    log.stage("building the model")
    trainer = Trainer(job, device)
    if job.compile:
        log.stage("compiling the model")
        log.write("compiled", seconds=trainer.compile_now())
    dataset = planted(spec.get("fault"), dataset, trainer)
    return trainer, data.make_loader(dataset, job, ItemTimes(folder, job.num_workers))
