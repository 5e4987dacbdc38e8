"""From what was asked for to what this device can do: the job, and what was not applied and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch

from labkit import quotas
from labkit.bench import formats, model_size
from labkit.instruments import devices, resources
from labkit.instruments.compiling import compile_lacks
from labkit.knobs import Settings
from labkit.spec import GRAPH_MODES, Job, automatic


def resolve_config(
    asked: Settings, device: torch.device, size_model: bool = True, here: bool = True
) -> tuple[Job, dict[str, str]]:
    """Return the job (every knob's final value) and {knob: why it was not applied}.

    `size_model` is False where the step is the reader's, `here` where the card is of another
    machine.
    """
    job = Job(**asked)
    job.device = str(device)
    for name, value in automatic(asked, device.type != "cpu", quotas.cpu_cores().count).items():
        if getattr(job, name) is None:
            setattr(job, name, value)
    if size_model and here:
        model_size.fill(job, device)

    dropped: dict[str, str] = {}
    for name, value, reason in _inapplicable(job, device, here):
        if getattr(job, name) != value:
            setattr(job, name, value)
            dropped[name] = reason
    if asked["prep_ms"] is not None and job.dataset != "sleep":
        why = "only dataset='sleep' has a delay for a whole batch"
        dropped["prep_ms"] = f"{why}; this is {job.dataset!r}"
    return job, dropped


def _inapplicable(job: Job, device: torch.device, here: bool) -> Iterator[tuple[str, object, str]]:
    """Yield (knob, what runs instead, why) for what this device or job cannot honour."""
    if device.type != "cuda":
        bus = "there is no CUDA device to copy to"
        yield "pin_memory", False, f"{bus}: page-locked memory would gain nothing"
        yield "non_blocking", False, f"{bus}: nothing to overlap"
        yield "prefetch_to_device", False, f"{bus}: nothing to overlap"
    elif job.non_blocking and not job.pin_memory:
        yield "non_blocking", False, "copies from pageable memory block: set pin_memory=True too"
    if job.model != "cnn":
        yield "channels_last", False, f"model={job.model!r} has no convolution stack to lay out"
    if here and (why := formats.why_not(job.precision, device)):
        yield "precision", "fp32", why
    if here and job.compile and (why := compile_lacks(device)):
        yield "compile", None, why
    elif job.compile == "reduce-overhead" and device.type != "cuda":
        yield "compile", "default", "CUDA graphs need a CUDA device: compiled without them"
    elif job.compile in GRAPH_MODES and job.accumulation_steps > 1:
        why = "a CUDA graph's next replay overwrites gradients that accumulation has to keep"
        yield "compile", "default", f"{why}: compiled without graphs"


def resolve_anywhere(asked: Settings) -> Settings:
    """Return the job of a pipeline that is not run, what is not applied, and a CPU's threads."""
    resources.use_fixed_threads()
    try:
        device = devices.find_device(asked["device"])
        here = True
    except RuntimeError:  # the card of another machine
        device = torch.device(asked["device"])
        here = False
    job, not_applied = resolve_config(asked, device, here=here)
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return {"job": vars(job), "not_applied": not_applied, "threads": threads}


if __name__ == "__main__":
    print(json.dumps(resolve_anywhere(json.loads(sys.argv[1]))))
