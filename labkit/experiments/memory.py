"""What an FP32 training step with AdamW keeps in memory: predicted from counts, and measured.

Without temporaries, which come on top at the peak, the CUDA context and the allocator's cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labkit.experiments.measure import data, flops, loop, model_size, page, primitives, torch
from labkit.spec import KNOBS, experiment, knob

FLOAT = 4  # bytes
MIB = 2**20
PARTS = {  # their names in a figure, and colours
    "weights": ("weights", "#0072B2"), "gradients": ("gradients", "#E69F00"),
    "optimizer": ("optimizer", "#AA4499"), "activations": ("activations", "#009E73"),
}  # fmt: skip
PATCH = 8  # px: the edge of a token of the bench's transformer
MODELS = tuple(name for name in KNOBS["model"].choices if name != "gpt")  # of images
SIZED = {  # the knobs of the models measured here
    name: knob(None, KNOBS[name].help, kind="int", low=1, high=KNOBS[name].high,
               auto="chosen for the device")
    for name in ("width", "depth")
} | {"image_px": knob(48, "edge of the images", unit="px", low=8, high=512)}  # fmt: skip


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one training step by part; the batch size changes the activations alone."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of the parts, bytes: what is held when the backward pass begins, not the peak."""
        return sum(asdict(self).values())

    @property
    def mib(self) -> dict[str, float]:
        """The parts in MiB, by name."""
        return {part: size / MIB for part, size in asdict(self).items()}


def predict(counts: dict[str, Any]) -> MemoryParts:
    """Return the parts of a step from the counts of a model, as memory_parts writes them.

    AdamW keeps two averages per parameter (Loshchilov and Hutter 2019, Algorithm 2) and a 4-byte
    step count per tensor; the buffers are batch norm's running statistics.
    """
    weights = FLOAT * counts["parameters"]
    optimizer = 2 * weights + FLOAT * counts["parameter_tensors"]
    activations = counts["batch_size"] * activation_bytes_per_sample(counts)
    return MemoryParts(weights + counts["buffer_bytes"], weights, optimizer, activations)


def activation_bytes_per_sample(counts: dict[str, Any]) -> int:
    """Return the bytes that one sample keeps for the backward pass.

    By each layer's derivative (PyTorch's `derivatives.yaml`) a linear layer, convolution or norm
    keeps its input, ReLU its output; a tensor that two layers keep is there once.
    """
    width, depth, px = counts["width"], counts["depth"], counts["image_px"]
    if counts["model"] == "mlp":  # each hidden layer's ReLU, which is the next one's input
        numbers = depth * width
    elif counts["model"] == "cnn":
        # the stem's ReLU; of each block the convolution's output (batch norm's input) and the
        # ReLU's; the pooled features
        edge = (px + 1) // 2  # the stem's stride of 2
        numbers = (1 + 2 * depth) * width * edge**2 + width
    else:
        # T tokens; of each encoder layer two layer norms' inputs and outputs (4 T w; mean and
        # deviation, 4 T), q, k, v and the attention's output (4 T w; a logsumexp per head), the
        # hidden ReLU (4 T w): counted as in Korthikanti et al. 2022 (arXiv:2205.05198, section 4),
        # for FP32, without dropout, no score matrix kept
        tokens = (px // PATCH) ** 2
        heads = next(n for n in (8, 4, 2, 1) if width % n == 0)  # as the bench chooses them
        numbers = depth * (12 * tokens * width + (heads + 4) * tokens) + width
    return FLOAT * (3 * px**2 + numbers + counts["classes"]) + 8  # image, logits, int64 label


def measured(point: Any) -> MemoryParts:
    """Return the parts that a point of the experiment memory_parts measured."""
    return MemoryParts(**{part: point.values[f"{part}_bytes"] for part in PARTS})


def largest_batch(counts: dict[str, Any], limit_bytes: float) -> int:
    """Return the batch at which the parts alone fill the limit: an upper bound, no temporaries."""
    fixed = predict(counts | {"batch_size": 0}).total
    return max(0, int((limit_bytes - fixed) // activation_bytes_per_sample(counts)))


@experiment(
    "what fills the memory in a training step: predicted beside measured",
    model=knob(list(MODELS), "models to train", choices=MODELS),
    batch_size=knob([16, 64], "samples in a batch", low=1, high=16_384),
    **SIZED,
)
def memory_parts(job: Any, bench: Any) -> None:
    """Train a few steps of every model at every batch size and write the bytes of each part."""
    cases = [(model, size) for model in job.model for size in job.batch_size]
    for i, (model, size) in enumerate(cases):
        bench.stage("measuring memory", i, len(cases))
        step = plain_step(job, bench, model=model, batch_size=size)
        parts = measure_step(step, bench.device)
        bench.write("training step", values=parts, model=model, batch_size=size)


def plain_step(job: Any, bench: Any, **knobs: Any) -> Any:
    """Return a plain training step of the bench's, of the `SIZED` knobs of `job`."""
    sized = {name: getattr(job, name) for name in SIZED}
    return model_size.plain_job(bench.device, **sized, **knobs)


def measure_step(job: Any, device: torch.device) -> dict[str, Any]:
    """Train a few steps of `job`; return the bytes of each part, with the counts of the model.

    The allocator of a CUDA device tells the peak as well, with temporaries and cuBLAS's workspace.
    """
    on_card, storages = device.type == "cuda", flops.storages
    start = torch.cuda.memory_allocated(device) if on_card else 0
    trainer = loop.Trainer(job, device)
    batch, model = trainer.to_device(*model_size.noise_batch(job)), trainer.model
    with flops.kept_for_backward(model) as kept:
        trainer.compute(*batch, update=False)
    gradients = storages(p.grad for p in model.parameters() if p.grad is not None)
    trainer.compute(*batch, update=True)
    state = [value for kept_of in trainer.optimizer.state.values() for value in kept_of.values()]
    own = storages([*model.parameters(), *model.buffers()])
    found = own, gradients, storages(filter(torch.is_tensor, state)), kept
    parts = {f"{part}_bytes": sum(of.values()) for part, of in zip(PARTS, found, strict=True)}
    if on_card:
        torch.cuda.reset_peak_memory_stats(device)
        trainer.compute(*batch, update=True)
        torch.cuda.synchronize(device)
        parts["peak_bytes"] = torch.cuda.max_memory_allocated(device) - start
    return {
        "model": job.model, "width": job.width, "depth": job.depth, "image_px": job.image_px,
        "classes": data.CLASSES, "batch_size": job.batch_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameter_tensors": sum(1 for _ in model.parameters()),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers()),
        "how": "counted from the tensors themselves (every storage once; saved-tensor hooks)",
        **parts,
    }  # fmt: skip


@memory_parts.figure
def draw(run: Any) -> Any:
    """Draw two stacked bars per model and batch: predicted (hatched) over measured."""
    rows, predicted, ratios = [], [], []
    for point in run:
        said, seen = predict(point.values), measured(point)
        peak = point.values.get("peak_bytes")
        text = f"measured {seen.total / MIB:.4g}" + (f", peak {peak / MIB:.4g}" if peak else "")
        rows.append((f"{point.case['model']}, batch {point.case['batch_size']}", seen.mib, text))
        predicted.append(said.mib)
        ratios.append(seen.total / said.total)
    how = f"measured: {run.points[0].values['how']}"
    title = f"measured is {min(ratios):.2f} to {max(ratios):.2f} of predicted"
    figure, (axes,) = page(run, [(0.22, 0.1 + 0.5 * len(rows))], how, title=title, left_in=2.3)
    label = "memory of one training step, MiB (hatched: predicted; plain: measured)"
    primitives.stack(axes, rows, PARTS, label, predicted)
    return figure
