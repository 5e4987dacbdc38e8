"""What a first card is asked before anything else, a JSON line each; `--quick` needs no card.

The depth of each model found anew five times and timed again, the default pipeline starved and fed,
and the kernels of an FP32 step.
"""

from __future__ import annotations

import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

import labkit as lk
from labkit import quotas
from labkit.bench import devices, model_size, resources
from labkit.bench.loop import Trainer
from labkit.spec import automatic

QUICK = "--quick" in sys.argv[1:]
TIMES = 1 if QUICK else 3
MODELS = ("cnn", "mlp", "transformer")


def main() -> None:
    for workers in (0,) if QUICK else (0, 6, 12):  # first: this process may not be on the card yet
        run = lk.run(lk.Pipeline(num_workers=workers, **({"steps": 20} if QUICK else {})))
        tell("run", workers=workers, found=repr(run), diagnosis=str(run.diagnose()))
    resources.use_fixed_threads()
    device = devices.find_device("auto")
    devices.use(device)
    for model in MODELS[:1] if QUICK else MODELS:
        depths(model, device)
    kernels(device)


def tell(what: str, **facts: object) -> None:
    print(json.dumps({"what": what, **facts}, default=str), flush=True)


def job_of(model: str, device: torch.device) -> object:
    """Return the job of the default pipeline with this model, its depth not yet found."""
    knobs = {name: knob.default for name, knob in lk.Pipeline.knobs.items()} | {"model": model}
    px = automatic(knobs, device.type != "cpu", quotas.cpu_cores().count)["image_px"]
    return model_size.plain_job(device, model=model, depth=1, image_px=px)


def depths(model: str, device: torch.device) -> None:
    """Find the depth of a model anew, and time a step at it a second time."""
    job = job_of(model, device)
    for _ in range(TIMES):
        depth = model_size.find_depth(job, device)
        again_ms = model_size.time_step(job, max(depth, 1), device)  # 0: too wide
        tell("depth", model=model, width=job.width, depth=depth, step_ms=again_ms)


def kernels(device: torch.device) -> None:
    """Tell the longest operators of a step in FP32: whether any runs in TF32, or by Winograd."""
    trainer = Trainer(job_of("cnn", device), device)
    batch = trainer.to_device(*model_size.noise_batch(trainer.job))
    trainer.compute(*batch, update=True)
    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds = [ProfilerActivity.CUDA]
    with profile(activities=kinds) as recorded:
        trainer.compute(*batch, update=True)
        devices.finish(device)
    longest = sorted(recorded.events(), key=lambda event: -event.time_range.elapsed_us())
    tell("kernels", names=[[event.name, event.time_range.elapsed_us()] for event in longest[:20]])


if __name__ == "__main__":
    main()
