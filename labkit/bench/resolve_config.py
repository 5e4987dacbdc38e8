"""From what was asked for to what a device can do: the job, and what was not applied and why.

Where its pipeline leaves it open the model has the size of a table. On a CPU a step takes 5 to 6 ms
on one core. On a GPU it takes 3 to 30 ms for the default batch in FP32, so that the default loader
starves any card: they are told apart by their memory, which grows with their speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from labkit import quotas
from labkit.instruments.card_formats import too_old_for
from labkit.knobs import Settings
from labkit.spec import GRAPH_MODES, PX, Job, automatic

# {model: (width, depth)}
ON_CPU = {"cnn": (16, 2), "mlp": (128, 3), "transformer": (64, 2)}
ON_GPU = {  # by the least memory of a card, GiB
    60: {"cnn": (320, 12), "mlp": (8192, 8), "transformer": (1024, 9)},
    20: {"cnn": (320, 4), "mlp": (8192, 3), "transformer": (1024, 3)},
    10: {"cnn": (320, 1), "mlp": (4096, 2), "transformer": (1024, 1)},
    0: {"cnn": (160, 1), "mlp": (4096, 1), "transformer": (512, 1)},
}


def resolve_config(pipeline: Settings, here: Mapping[str, object]) -> tuple[Job, dict[str, str]]:
    """Return the job (every knob's final value) and {knob: why it was not applied}.

    `here` is the `machine` event, of which a device that is elsewhere has only the `device`.
    """
    job = Job(**pipeline)
    job.device = str(here["device"])
    kind = job.device.partition(":")[0]
    for name, value in automatic(pipeline, kind != "cpu", quotas.cpu_cores().count).items():
        if getattr(job, name) is None:
            setattr(job, name, value)
    _size(job, kind, here.get("memory_gib"))
    dropped: dict[str, str] = {}
    for name, value, reason in _inapplicable(job, kind, here):
        if getattr(job, name) != value:
            setattr(job, name, value)
            dropped[name] = reason
    return job, dropped


def _size(job: Job, kind: str, memory_gib: object) -> None:
    """Set `job.width` and `job.depth` where they are None, unless the device is elsewhere."""
    if kind == "cpu":
        width, depth = ON_CPU[job.model]
    elif isinstance(memory_gib, float):
        # of Apple's, whose memory is the CPU's, the least
        gib = memory_gib if kind == "cuda" else 0
        width, depth = ON_GPU[max(least for least in ON_GPU if least <= gib)][job.model]
        if job.model == "cnn" and job.image_px > PX:  # as much arithmetic a layer on larger images
            width = max(32, round(width * PX / job.image_px / 32) * 32)
    else:
        return
    job.width = job.width or width
    job.depth = job.depth or depth


def _inapplicable(
    job: Job, kind: str, here: Mapping[str, object]
) -> Iterator[tuple[str, object, str]]:
    """Yield (knob, what runs instead, why) for what this device or job cannot honour."""
    if kind != "cuda":
        for name in ("pin_memory", "non_blocking", "prefetch_to_device"):
            yield name, False, "there is no CUDA device to copy to: it would gain nothing"
    elif job.non_blocking and not job.pin_memory:
        yield "non_blocking", False, "copies from pageable memory block: set pin_memory=True too"
    if job.model != "cnn":
        yield "channels_last", False, f"model={job.model!r} has no convolution stack to lay out"
    if why := lacks_format(job.precision, kind, here.get("compute_capability")):
        yield "precision", "fp32", why
    if lacking := here.get("compile_lacks"):
        yield "compile", None, str(lacking)
    elif job.compile == "reduce-overhead" and kind != "cuda":
        yield "compile", "default", "CUDA graphs need a CUDA device: compiled without them"
    elif kind == "cuda" and job.compile in GRAPH_MODES and job.accumulation_steps > 1:
        why = "a CUDA graph's next replay overwrites gradients that accumulation has to keep"
        yield "compile", "default", f"{why}: compiled without graphs"


def lacks_format(name: str, kind: str, capability: object) -> str | None:
    """Return why work in a number format makes no sense on a kind of device; None where it does."""
    if name == "tf32" and kind != "cuda":
        return "TF32 is a mode of NVIDIA's Tensor Cores; this device has none"
    if name == "fp16" and kind == "cpu":
        return "no fast path here: FP16 is for GPUs, and takes most CPUs tens of times as long"
    if name in ("tf32", "bf16") and kind == "cuda" and capability is not None:
        return too_old_for(name, str(capability))
    return None
