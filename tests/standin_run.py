"""A whole run on the stand-in GPU, in this process: what the bench does, on the virtual clock."""

import tempfile
from pathlib import Path
from unittest import mock

import torch

import labkit as lk
from labkit import Run, quotas
from labkit.bench import carry_out, roofline
from labkit.bench.data import noise_batch
from labkit.bench.loop import Trainer, train
from labkit.instruments import machine
from labkit.spec import KNOBS, PX
from labkit.stamps.events import VERSION, EventLog
from labkit.stamps.step_ring import Drain, StepRing
from labkit.stamps.timeline import make_timeline

DECODE_MS = 0.96  # of an image of PX pixels, augmented
ARRAY_MS = 0.02  # of an image of 48 px, on a core of the machine of the card
CORES = 8  # of that machine


def run_on(gpu, pipeline):
    """Train as `pipeline` says on the stand-in `gpu` and return the Run that its log gives."""
    folder = Path(tempfile.mkdtemp())
    asked = pipeline.to_dict()
    card = torch.device("cuda", 0)
    log = EventLog(folder)
    log.write("spec", version=VERSION, run=folder.name, pipeline=asked, labkit=lk.__version__)
    log.write("hello", pid=1)
    machine.use(card)
    with mock.patch.object(quotas, "cpu_cores", lambda: quotas.Cores(CORES, CORES, None)):
        here = machine.describe(card)
        log.write("machine", **here)
        job = carry_out.settle_job(asked, here, log, KNOBS)
    trainer = Trainer(job, card)
    timeline = make_timeline(log, StepRing(folder).add, card)
    drain = Drain(folder, log)
    prefetch = job.prefetch_factor or 0
    log.write("begin", warmup=max(3, job.num_workers * prefetch))
    each_ms = ARRAY_MS if job.dataset == "array" else DECODE_MS * (job.image_px / PX) ** 2
    prep_ms = job.batch_size * (each_ms + job.io_ms)
    batch = tuple(t.pin_memory() if job.pin_memory else t for t in noise_batch(job))
    log.write("work", **roofline.work_of(job, card))
    gpu.syncs_before = gpu.syncs
    train(trainer, gpu.loader(prep_ms, batch, job.num_workers, prefetch), timeline, job)
    drain.drain()
    log.write("done")
    log.write("end", stop=None, code=0)
    return Run(folder)
