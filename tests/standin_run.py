"""A whole run on the stand-in GPU, in this process: what the bench does, on the virtual clock."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import slow_faults
import torch

import labkit as lk
from labkit import quotas
from labkit.bench import devices, flops, machine
from labkit.bench.loop import Trainer, train
from labkit.bench.model_size import noise_batch
from labkit.bench.resolve_config import resolve_config
from labkit.bench.timeline import make_timeline
from labkit.process.events import VERSION, EventLog
from labkit.process.step_ring import Drain
from labkit.results.run import Run
from labkit.spec import PX

DECODE_MS = 0.8
ARRAY_MS = 0.02  # of an image of 48 px, on a core of the machine of the card
CORES = 8  # of that machine


def run_on(
    gpu: Any,
    pipeline: lk.Pipeline,
    folder: str | Path | None = None,
    prep_ms: float | None = None,
    fault: str | None = None,
    device: str = "cuda:0",
) -> Run:
    """Train as `pipeline` says on the stand-in `gpu` and return the Run that its log gives.

    `prep_ms` is to prepare a batch, by one process (from the pipeline if None); `fault` is as
    `slow_faults.plant_all` takes it ("python_heavy@40").
    """
    folder = Path(folder or tempfile.mkdtemp())
    before = os.getcwd()
    os.chdir(folder)  # as the bench: some faults write there
    try:
        with mock.patch.object(quotas, "cpu_cores", lambda: quotas.Cores(CORES, CORES, None)):
            _train(gpu, pipeline.to_dict(), folder, prep_ms, fault, torch.device(device))
    finally:
        os.chdir(before)
    return Run(folder)


def _train(gpu, asked, folder, prep_ms, fault, card) -> None:
    log = EventLog(folder)
    log.write(
        "spec",
        version=VERSION,
        run=folder.name,
        utc="2026-01-01T00:00:00+00:00",
        labkit=lk.__version__,
        pipeline=asked,
    )
    log.write("hello", pid=1)
    devices.use(card)
    log.write("machine", **machine.describe(card))
    job, not_applied = resolve_config(asked, card)
    log.write("job", pipeline=vars(job), not_applied=not_applied)
    trainer = Trainer(job, card)
    if fault:
        slow_faults.plant_all(fault, None, trainer)
    timeline = make_timeline(log, folder, card)
    drain = Drain(folder, log)
    log.write("begin", warmup=max(3, job.num_workers * (job.prefetch_factor or 0)))
    batches = gpu.loader(
        prep_of(job) if prep_ms is None else prep_ms,
        batch_of(job),
        job.num_workers,
        job.prefetch_factor or 2,
    )
    flops.write_work(trainer, log)
    gpu.syncs_before = gpu.syncs
    train(trainer, batches, timeline, job)
    drain.drain()
    log.write("memory", peak_bytes=machine.peak_bytes(card))
    drain.remove()
    log.write("done")
    log.write("end", stop=None, code=0)


def prep_of(job: Any) -> float:
    if job.dataset == "sleep":
        return job.prep_ms
    decode_ms = DECODE_MS * (job.image_px / PX) ** 2
    each = ARRAY_MS if job.dataset == "array" else decode_ms * (1 + 0.2 * job.augment)
    return job.batch_size * (each + job.io_ms)


def batch_of(job: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(t.pin_memory() if job.pin_memory else t for t in noise_batch(job))
