"""The x-ray: a few more steps under torch.profiler once the measured ones are over.

The profiler makes a step up to two thirds longer, and while it starts and stops the loader fills
its queues. So the steps it watches come after the last measured one and enter no statistics. Then
the same step is timed with twice the batch and in BF16: what such a change brings is measured on
this device, never assumed. Everything goes to one `xray` event; the trace stays in the folder.
"""

from __future__ import annotations

import gzip
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.autograd.profiler import profile as profiler
from torch.autograd.profiler import record_function

from labkit.bench import handoff, op_times, probes
from labkit.process.events import EventLog

FILE_NAME = "xray.json.gz"
WINDOW = "labkit.compute"  # the mark around forward, backward and update
MIN_STEPS = 20  # a run of fewer is a quick look: the x-ray would be a large part of it
COST_S = 0.8  # about what it takes; kept free of a run that has a limit of some seconds
MORE_STEPS = 4  # profiled after a first one has shown that they are cheap to read
MANY_EVENTS = 12_000  # of one step
LONGEST_STEP_S = 1.0  # no x-ray where a step takes longer


def keep_time(job: Any) -> None:
    """Shorten a run that has a limit of some seconds by what the looks behind it will take."""
    if job.xray and job.seconds and job.seconds < 2.5 * COST_S:
        job.xray = False
    elif job.xray and job.seconds:
        job.seconds -= COST_S + handoff.COST_S


def look(
    trainer: Any, batches: Iterator, job: Any, steps: int, folder: Path, log: EventLog
) -> None:
    """Write the `xray` event, or `no_xray` and why there is none. Never ends the run."""
    if why := skip(job, steps):
        log.write("no_xray", why=why)
        return
    try:
        loaded = next(batches)
        batch = trainer.to_device(*loaded)
        start = time.perf_counter()
        trainer.compute(*batch, update=True)
        probes.finish(trainer.device)
        seconds = time.perf_counter() - start
        if seconds > LONGEST_STEP_S:
            log.write("no_xray", why=f"a step takes {seconds:.1f} s: too long to repeat")
            return
        found = profile(trainer, batches, loaded, folder)
        log.write("xray", **found | probes.measure(trainer, *batch))
    except Exception as error:  # the run itself is complete: its numbers stand
        log.write("no_xray", why=f"{type(error).__name__}: {str(error)[:300]}")


def skip(job: Any, steps: int) -> str | None:
    """Why this run gets no x-ray, or None."""
    if not job.xray:
        return "it was switched off, or the run is too short for it"
    if steps < MIN_STEPS:
        return f"the run had {steps} steps, an x-ray needs {MIN_STEPS}"
    return None


def profile(trainer: Any, batches: Iterator, loaded: tuple, folder: Path) -> dict[str, Any]:
    """Profile real steps, keep their trace in `folder`, return what the calmest was made of."""
    recorded = watch(trainer, itertools.repeat(loaded), 1)  # a look at how much there is to read
    events = recorded.kineto_results.events()
    if len(events) < MANY_EVENTS:  # else one step has to do: reading more would take seconds
        recorded = watch(trainer, batches, MORE_STEPS)
        events = recorded.kineto_results.events()
    plain = folder / "xray.json"
    recorded.export_chrome_trace(str(plain))
    (folder / FILE_NAME).write_bytes(gzip.compress(plain.read_bytes(), compresslevel=6))
    plain.unlink()
    return op_times.summarise(events, WINDOW)


def watch(trainer: Any, batches: Iterator, active: int) -> Any:
    """Run `active` steps under PyTorch's profiler; return it.

    It is the one inside torch.profiler.profile, which would import the compiler (1 s) to ask it one
    thing. Each step is marked as torch.profiler marks it.
    """
    device = "cuda" if trainer.device.type == "cuda" else None
    with profiler(use_device=device, record_shapes=True, use_kineto=True) as recorded:
        for step in range(active):
            with record_function(f"ProfilerStep#{step}"):
                batch = trainer.to_device(*next(batches))
                with record_function(WINDOW):
                    trainer.compute(*batch, update=True)
            trainer.after_step()  # its kernels, if any, are none of the step's compute
        probes.finish(trainer.device)  # its kernels must be in the trace
    return recorded
