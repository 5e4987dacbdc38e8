"""The x-ray: a few steps after a run's last one under the profiler, then in other settings."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

from torch._C._autograd import _KinetoEvent
from torch.autograd.profiler import profile as profiler
from torch.autograd.profiler import record_function

from labkit.bench import handoff
from labkit.bench.data import Batch
from labkit.bench.loop import Trainer
from labkit.bench.step_operators import summarise
from labkit.bench.step_variants import other_settings
from labkit.instruments import devices
from labkit.instruments.optional import write_or_why
from labkit.spec import Job
from labkit.stamps.events import XRAY_NAME, EventLog

WINDOW = "labkit.compute"  # the mark around forward, backward and update
MIN_STEPS = 20  # a run of fewer is a quick look: the x-ray would be a large part of it
COST_S = 0.8  # about what it takes; kept free of a run that has a limit of some seconds
MORE_STEPS = 4  # profiled after a first one has shown that they are cheap to read
MANY_EVENTS = 12_000  # of one step
LONGEST_STEP_S = 1.0  # no x-ray where a step takes longer


def keep_time(job: Job) -> None:
    """Shorten a run that has a limit of some seconds by what the looks after it will take."""
    if job.xray and job.seconds and job.seconds < 2.5 * COST_S:
        job.xray = False
    elif job.xray and job.seconds:
        job.seconds -= COST_S + handoff.COST_S


def look(
    trainer: Trainer, batches: Iterator[Batch], job: Job, steps: int, folder: Path, log: EventLog
) -> None:
    """Write the `xray` event, or `no_xray` and why there is none. Never ends the run."""
    if not job.xray:
        log.write("no_xray", why="it was switched off, or the run is too short for it")
    elif steps < MIN_STEPS:
        log.write("no_xray", why=f"the run had {steps} steps, an x-ray needs {MIN_STEPS}")
    else:
        write_or_why(log, "xray", lambda: _xray(trainer, batches, folder))


def _xray(trainer: Trainer, batches: Iterator[Batch], folder: Path) -> dict[str, float | None]:
    """Return what a step is made of, and what it takes in other settings."""
    loaded = next(batches)
    images, labels = trainer.to_device(*loaded)
    start = time.perf_counter()
    trainer.compute(images, labels, update=True)
    devices.finish(trainer.device)
    seconds = time.perf_counter() - start
    if seconds > LONGEST_STEP_S:
        raise RuntimeError(f"a step takes {seconds:.1f} s: too long to repeat")
    found = profile(trainer, batches, loaded, folder)
    return {**found, **other_settings(trainer, images, labels)}


def profile(
    trainer: Trainer, batches: Iterator[Batch], loaded: Batch, folder: Path
) -> dict[str, float]:
    """Profile real steps, keep their trace in `folder`, return what the calmest was made of."""
    recorded, events = _recorded(trainer, [loaded])  # how much is to be read?
    if len(events) < MANY_EVENTS:  # else one step has to do: reading more would take seconds
        recorded, events = _recorded(trainer, [next(batches) for _ in range(MORE_STEPS)])
    plain = folder / "xray.json"
    recorded.export_chrome_trace(str(plain))
    (folder / XRAY_NAME).write_bytes(gzip.compress(plain.read_bytes(), compresslevel=6))
    plain.unlink()
    return summarise(events, WINDOW)


def _recorded(trainer: Trainer, batches: list[Batch]) -> tuple[profiler, list[_KinetoEvent]]:
    """Run some steps under the profiler inside torch.profiler, which imports the compiler."""
    device = "cuda" if trainer.device.type == "cuda" else None
    recorded = profiler(use_device=device, record_shapes=True, use_kineto=True)
    with recorded:
        for step, loaded in enumerate(batches):
            with record_function(f"ProfilerStep#{step}"):  # torch.profiler's own mark
                batch = trainer.to_device(*loaded)
                with record_function(WINDOW):
                    trainer.compute(*batch, update=True)
            trainer.after_step()  # its kernels, if any, are none of the step's compute
        devices.finish(trainer.device)  # its kernels must be in the trace
    results = recorded.kineto_results
    return recorded, [] if results is None else results.events()
