"""What a first card is asked before anything else, a JSON line each; `--quick` needs no card.

The depth of each model found anew five times and timed again, the default pipeline starved and fed,
and the kernels of an FP32 step.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import torch
from torch.profiler import ProfilerActivity, profile

import labkit as lk
from labkit import quotas
from labkit.bench import machine, model_size
from labkit.bench.loop import Trainer
from labkit.spec import automatic

QUICK = "--quick" in sys.argv[1:]
TIMES = 1 if QUICK else 5
LONGEST = 20  # kernels


def main() -> None:
    machine.use_fixed_threads()
    device = machine.find_device("auto")
    machine.use(device)
    for model in ("cnn",) if QUICK else ("cnn", "mlp", "transformer", "gpt"):
        depths(model, device)
    kernels(device)
    for workers in (0,) if QUICK else (0, 6, 12):
        steps = {"steps": 20} if QUICK else {}
        run = lk.run(lk.Pipeline(num_workers=workers, **steps))
        tell("run", workers=workers, found=repr(run), diagnosis=str(run.diagnose()))


def tell(what: str, **facts: object) -> None:
    print(json.dumps({"what": what, **facts}, default=str), flush=True)


def job_of(model: str, device: torch.device) -> SimpleNamespace:
    """Return the job of the default pipeline with this model, its depth not yet found."""
    knobs = {name: knob.default for name, knob in lk.Pipeline.knobs.items()} | {"model": model}
    image_px = automatic(knobs, device.type != "cpu", quotas.cpu_cores().count)["image_px"]
    return model_size.plain_job(device, model=model, depth=1, image_px=image_px)


def depths(model: str, device: torch.device) -> None:
    """Find the depth of a model anew, and time a step at it a second time."""
    job = job_of(model, device)
    size = job.context if model == "gpt" else job.image_px
    for _ in range(TIMES):
        depth = model_size.find_depth(model, job.width, size, device)
        again_ms = model_size.time_step(model, job.width, depth, size, device)
        tell("depth", model=model, width=job.width, size=size, depth=depth, step_ms=again_ms)


def kernels(device: torch.device) -> None:
    """Tell the longest operators of a step in FP32: whether any runs in TF32, or by Winograd."""
    trainer = Trainer(job_of("cnn", device), device)
    batch = trainer.to_device(*model_size.noise_batch(trainer.job))
    trainer.compute(*batch, update=True)
    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as recorded:
        trainer.compute(*batch, update=True)
        machine.finish(device)
    took_us = [(event.name, event.time_range.elapsed_us()) for event in recorded.events()]
    tell("kernels", names=sorted(took_us, key=lambda each: -each[1])[:LONGEST])


if __name__ == "__main__":
    main()
