"""The experiments that are not training runs: small measurements of one thing each.

This file only lists them and imports no torch, so that the kernel can read the list. Each module
has one function, `measure(job, bench)`: `job` holds the parameters, `bench` times, writes and says
what it had to skip (see `labkit.bench.workbench`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Listed:
    """What is known of an experiment without running it."""

    module: str  # in this package
    help: str  # one line: what it measures
    figure: str | None = None  # the module of the show floor whose draw(measurements) draws it
    defaults: dict[str, Any] = field(default_factory=dict)  # its parameters; None = chosen here


EXPERIMENTS = {
    "matrix_products": Listed(
        "matrix_products",
        "a thousand small products one after another against one batched product",
        figure="labkit.experiments.bars_figure",
        defaults={"n": 64, "count": 1000},
    ),
    "anatomy": Listed(
        "anatomy",
        "what the device is made of, as far as it tells",
        figure="labkit.experiments.device_figure",
    ),
    "copies": Listed(
        "copies",
        "the same bytes copied in one piece and in many",
        figure="labkit.experiments.bars_figure",
        defaults={"mib": 64, "pieces": [1, 64, 4096]},
    ),
    "bandwidth": Listed(
        "bandwidth",
        "copies within the device's own memory, from cache-sized to far beyond",
        figure="labkit.experiments.bandwidth_figure",
        defaults={"largest_mib": None},
    ),
    "matrix_rates": Listed(
        "matrix_rates",
        "the rate of a large matrix product in each number format",
        figure="labkit.experiments.bars_figure",
        defaults={"n": None, "formats": None},
    ),
    "matrix_slices": Listed(
        "matrix_slices",
        "one matrix product at once, the same in slices, and 32 small ones",
        figure="labkit.experiments.bars_figure",
        defaults={"n": None, "slices": [32, 1024], "small": 32},
    ),
    "matrix_sizes": Listed(
        "matrix_sizes",
        "matrix products of sizes around a round number",
        figure="labkit.experiments.bars_figure",
        defaults={"around": None, "formats": ["fp32", "fp16", "bf16"]},
    ),
    "eager_chain": Listed(
        "eager_chain",
        "elementwise operations one after another: each is a pass over memory",
        figure="labkit.experiments.bars_figure",
        defaults={"mib": None, "lengths": [1, 2, 4, 8]},
    ),
    "one_thread": Listed(
        "one_thread",
        "a single thread, and what the usual meter says of it",
        figure="labkit.experiments.one_thread_figure",
        defaults={"seconds": 3.0},
    ),
    "roofline": Listed(
        "roofline",
        "this device's measured roofs, and real operations under them",
        figure="labkit.experiments.roofline_figure",
        defaults={"mib": None, "n": None, "formats": None, "sizes": None},
    ),
    "batch_path": Listed(
        "batch_path",
        "the way of a batch from disk to the device's arithmetic, each crossing measured",
        figure="labkit.experiments.batch_path_figure",
        defaults={"mib": 64},
    ),
    "number_formats": Listed(
        "number_formats",
        "range and rounding of each number format, on real tensors",
        figure="labkit.experiments.formats_figure",
        defaults={"count": 1_000_000},
    ),
    "autocast_types": Listed(
        "autocast_types",
        "the dtype that comes out of each operation under autocast",
        defaults={"precision": "bf16"},
    ),
    "precision_matmul": Listed(
        "precision_matmul",
        "one matrix product in each number format",
        figure="labkit.experiments.bars_figure",
        defaults={"n": None},
    ),
    "underflow": Listed(
        "underflow",
        "gradients that vanish in FP16, and the scaler that keeps them",
        figure="labkit.experiments.underflow_figure",
        defaults={"px": 256, "steps": 40},
    ),
    "fusion": Listed(
        "fusion",
        "elementwise chains, one operation at a time and fused",
        figure="labkit.experiments.fusion_figure",
        defaults={"mib": None, "length": 6},
    ),
    "graph_breaks": Listed("graph_breaks", "what torch.compile captures, and how often again"),
    "own_kernel": Listed(
        "own_kernel",
        "a Triton kernel of our own, checked, and loaded by name",
        defaults={"hub": "kernels-community/activation", "load": False},
    ),
    "memory_parts": Listed(
        "memory_parts",
        "what fills the memory in a training step: predicted beside measured",
        figure="labkit.experiments.memory_parts_figure",
        defaults={
            "model": ["mlp", "cnn", "transformer"],
            "batch_size": [16, 64],
            "width": None,
            "depth": None,
            "image_px": 48,
        },
    ),
    "batch_fits": Listed(
        "batch_fits",
        "whether a pipeline can train at one batch size within a limit on memory",
        defaults={"pipeline": {}, "batch_size": 16, "steps": 3, "limit_gib": None, "margin": 0.1},
    ),
    "lr_scaling": Listed(
        "lr_scaling",
        "larger batches and the learning rate: a small real training run",
        figure="labkit.experiments.lr_scaling_figure",
        defaults={"batch_size": 16, "lr": 0.02, "epochs": 4, "seeds": 3, "width": 16, "depth": 2},
    ),
    "accumulation": Listed(
        "accumulation",
        "micro-batches against one large batch: is it the same update?",
        figure="labkit.experiments.accumulation_figure",
        defaults={"micro": 8, "count": 8},
    ),
    "accumulation_cost": Listed(
        "accumulation_cost",
        "what accumulation saves in memory and costs in samples/s",
        figure="labkit.experiments.accumulation_cost_figure",
        defaults={
            "model": "transformer",
            "effective": 64,
            "width": None,
            "depth": None,
            "image_px": 48,
            "seconds_each": 0.15,
        },
    ),
    "item_ladder": Listed(
        "item_ladder",
        "the same batch of images, prepared in four ways",
        figure="labkit.experiments.bars_figure",
        defaults={"px": 64, "batch_size": 16},
    ),
    "worker_memory": Listed(
        "worker_memory",
        "the workers' private memory while they read a list, and an array",
        figure="labkit.experiments.worker_memory_figure",
        defaults={"items": 300_000, "workers": 2},
    ),
    "epoch_start": Listed(
        "epoch_start",
        "from asking for an epoch to its first batch",
        figure="labkit.experiments.bars_figure",
        defaults={"workers": 4, "epochs": 5},
    ),
}
