"""The training loop of every run: one, on one screen, honouring every knob."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from labkit.bench.data import IMAGE_CLASSES, Batch, noise_batch
from labkit.bench.formats import DTYPES, set_fp32
from labkit.bench.models import MODELS, AdamW, set_layout
from labkit.spec import Job
from labkit.stamps.events import now_ns
from labkit.stamps.timeline import DeviceTimeline, HostTimeline, Step

if TYPE_CHECKING:
    from labkit.bench.user_dataset import OwnStep

Trains: TypeAlias = "Trainer | OwnStep"
"""What trains: a model of ours, or a step that a reader wrote."""

STARTING_NS = 120_000_000_000  # what workers get to start in, at the most
UNLIMITED_S = 1e9


class CopyStream:
    """A stream for copies beside the one that computes, so that both overlap: use it as `with`."""

    def __init__(self, device: torch.device):
        self.side = torch.Stream(device)
        self.main = torch.accelerator.current_stream(device)

    def __enter__(self) -> None:
        self.side.__enter__()

    def __exit__(self, *error: object) -> None:
        self.side.__exit__(*error)
        self.main.wait_stream(self.side)  # the GPU waits; the host goes on


class Trainer:
    """A model and what it takes to train it on one device, as the job's knobs say."""

    def __init__(self, job: Job, device: torch.device):
        self.job = job
        self.device = device
        torch.manual_seed(job.seed)
        set_fp32(job.precision)
        with device:  # a large model's weights are drawn where they are needed: seconds on a CPU
            model = MODELS[job.model](job.width, job.depth, IMAGE_CLASSES, job.image_px)
        self.layout = torch.channels_last if job.channels_last else torch.contiguous_format
        set_layout(model.to(device), self.layout)
        # fused=False would switch off PyTorch's own default, which updates all at once on a GPU
        fused = job.fused_optimizer or None
        # PyTorch's imports the compiler, which a run that compiles has loaded anyway; ours does not
        kind = torch.optim.AdamW if job.compile else AdamW
        self.optimizer = kind(model.parameters(), lr=1e-3, fused=fused)
        self.model = model
        if job.compile:
            compiled = torch.compile(model, mode=job.compile)
            assert isinstance(compiled, nn.Module)  # its annotations say "a function"
            self.model = compiled
        # FP16 gradients underflow; the scaler multiplies the loss so that they do not. Its step
        # asks the device whether any is infinite, and waits; a fused optimizer asks there itself
        self.scaler = torch.amp.GradScaler(device.type, enabled=job.precision == "fp16")
        self.side_stream = CopyStream(device) if job.prefetch_to_device else None

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        """Issue the copy of one batch from the host to the device."""
        images = images.to(self.device, non_blocking=self.job.non_blocking)
        labels = labels.to(self.device, non_blocking=self.job.non_blocking)
        if self.side_stream is not None:  # no memory is reused before the compute is through
            images.record_stream(self.side_stream.main)
            labels.record_stream(self.side_stream.main)
        return images, labels

    def inputs(self, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        """Return the inputs and targets of the model, from a batch on the device."""
        return images.to(memory_format=self.layout).float().div_(255), labels

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of logits (B, classes)."""
        return nn.functional.cross_entropy(logits, targets)

    def compute(self, images: torch.Tensor, labels: torch.Tensor, update: bool) -> torch.Tensor:
        """Issue forward, backward and, where an accumulation ends, the update; return the loss."""
        inputs, targets = self.inputs(images, labels)
        dtype = DTYPES.get(self.job.precision)
        with torch.amp.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            loss = self.loss(self.model(inputs), targets)
        self.scaler.scale(loss / self.job.accumulation_steps).backward()
        if update:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        return loss

    def compile_now(self) -> None:
        """Compile by training on noise: no measured step does; undo it."""
        kept = copy.deepcopy(self.model.state_dict())
        noise = noise_batch(self.job)
        for _ in range(3):  # CUDA graphs are recorded in the second and replayed in the third
            self.compute(*self.to_device(*noise), update=False)
            self.optimizer.zero_grad(set_to_none=True)  # in a graph's memory: the next overwrites
        self.model.load_state_dict(kept)

    def after_step(self) -> bool | None:
        """Do nothing; True ends the loop: ranks vote here, a slow script and planted faults act."""


def train(
    trainer: Trains, batches: Iterator[Batch], timeline: HostTimeline | DeviceTimeline, job: Job
) -> int:
    """Train until `steps` or `seconds` is reached, stamping every step; return the steps done.

    The seconds count from when every worker has given its first batch: to start is not to train.
    Two steps are always done, since the first is a warm-up and says nothing.
    """
    trainer.model.train()
    copying = trainer.side_stream or contextlib.nullcontext()
    limit_ns = int((job.seconds or UNLIMITED_S) * 1e9)
    deadline_ns = now_ns() + STARTING_NS + limit_ns
    last_to_start = max(0, job.num_workers - 1)  # the step whose batch the last worker prepared
    step = -1
    for step in range(job.steps):
        asked = now_ns()
        images, labels = next(batches)  # the host waits here for data, and gives the old batch back
        samples = labels.numel()
        with copying:
            ready = timeline.copying()
            images, labels = trainer.to_device(images, labels)
            copied = timeline.copied()
        if step == last_to_start:
            deadline_ns = ready + limit_ns
        timeline.computing()
        loss = trainer.compute(images, labels, update=(step + 1) % job.accumulation_steps == 0)
        done = timeline.step(Step(step, asked, ready, copied, samples, loss))
        if trainer.after_step() or (step > 0 and done > deadline_ns):
            break
    timeline.finish()
    return step + 1
