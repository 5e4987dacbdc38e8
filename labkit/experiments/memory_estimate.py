"""What a training step needs of the device's memory, predicted from counts alone.

Per part, in bytes, for FP32 training with AdamW (4 bytes a number):

- weights: 4 for every parameter, plus the buffers (batch norm's running statistics);
- gradients: 4 for every parameter;
- optimizer: 8 for every parameter (AdamW keeps two averages; Loshchilov and Hutter 2019,
  Algorithm 2), plus a 4-byte step count per tensor;
- activations: what autograd keeps from the forward for the backward pass. It grows with the batch;
  the other three do not.

What is kept follows from each layer's derivative (PyTorch's `derivatives.yaml` lists the saved
tensors): a linear layer or convolution keeps its input, batch norm and layer norm their input, ReLU
its output, attention its queries, keys, values and output, softmax its output. A tensor that two
layers keep is there once. In numbers per sample, with w = width, d = depth, C = classes:

- mlp: 3 px^2 (the image) + d w (each hidden layer's ReLU, which is the next one's input) + C
- cnn: 3 px^2 + (1 + 2 d) w (px/2)^2 + w + C: the stem's ReLU; of each block the output of the
  convolution (batch norm's input) and of the ReLU; the pooled features
- transformer: 3 px^2 + d (12 T w + (h + 4) T) + w + C with T = (px/8)^2 tokens and h heads: of
  each encoder layer two layer norms' inputs and outputs (4 T w, and mean and deviation, 4 T),
  q, k, v and the attention's output (4 T w, and a logsumexp per head), the hidden ReLU of width
  4 w (4 T w). The counting is that of Korthikanti et al. 2022 (arXiv:2205.05198, section 4),
  redone for FP32 and for this layer: ReLU, no dropout, no score matrix kept.

The labels (int64) add 8 bytes a sample. Not in it: temporaries that live for a part of the step
only, which come on top at the peak; the CUDA context and the allocator's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FLOAT = 4  # bytes
PARTS = ("weights", "gradients", "optimizer", "activations")
PATCH = 8  # px: the edge of a token of the bench's transformer


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one training step by part; `total` is their sum, not the peak."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of the parts, bytes: what is held when the backward pass begins and ends."""
        return sum(getattr(self, part) for part in PARTS)

    @property
    def fixed(self) -> int:
        """What the batch size does not change, bytes."""
        return self.total - self.activations

    def __repr__(self) -> str:
        mib = ", ".join(f"{part} {getattr(self, part) / 2**20:.1f}" for part in PARTS)
        return f"MemoryParts({mib} MiB)"


def predict(counts: dict[str, Any]) -> MemoryParts:
    """Return the parts of a step from the counts of a model; the formulas stand above.

    Args:
        counts: `model`, `width`, `depth`, `image_px`, `classes`, `batch_size`, `parameters`,
            `parameter_tensors` and `buffer_bytes`, as the experiment memory_parts writes them.
    """
    weights = FLOAT * counts["parameters"]
    return MemoryParts(
        weights=weights + counts["buffer_bytes"],
        gradients=weights,
        optimizer=2 * weights + FLOAT * counts["parameter_tensors"],
        activations=counts["batch_size"] * activation_bytes_per_sample(counts),
    )


def activation_bytes_per_sample(counts: dict[str, Any]) -> int:
    """Bytes that one sample keeps for the backward pass; the formulas stand above."""
    numbers = _KEPT[counts["model"]](counts["width"], counts["depth"], counts["image_px"])
    return FLOAT * (3 * counts["image_px"] ** 2 + numbers + counts["classes"]) + 8


def measured(point: Any) -> MemoryParts:
    """Return the parts that a point of the experiment memory_parts measured."""
    return MemoryParts(**{part: point.values[f"{part}_bytes"] for part in PARTS})


def largest_batch(counts: dict[str, Any], limit_bytes: float) -> int:
    """The batch at which the parts alone fill the limit: an upper bound, temporaries left out."""
    room = limit_bytes - predict(counts).fixed
    return max(0, int(room // activation_bytes_per_sample(counts)))


def _mlp(width: int, depth: int, px: int) -> int:
    return depth * width


def _cnn(width: int, depth: int, px: int) -> int:
    edge = (px + 1) // 2  # the stem's stride of 2
    return (1 + 2 * depth) * width * edge**2 + width


def _transformer(width: int, depth: int, px: int) -> int:
    tokens = (px // PATCH) ** 2
    heads = next(n for n in (8, 4, 2, 1) if width % n == 0)  # as the bench chooses them
    return depth * (12 * tokens * width + (heads + 4) * tokens) + width


_KEPT = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}
