"""The training loop that every experiment runs: one, on one screen, honouring every knob."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from labkit.bench.data import CLASSES, VOCABULARY, noise_batch
from labkit.bench.formats import DTYPES, use_tf32
from labkit.bench.models import AdamW, make_model
from labkit.bench.text import counted, next_bytes
from labkit.bench.timeline import DeviceTimeline, HostTimeline
from labkit.process.events import NO_TOKENS, now_ns

STARTING_NS = 120_000_000_000  # what workers get to start in, at the most


class Trainer:
    """A model and what it takes to train it on one device, as the job's knobs say."""

    def __init__(self, job: Any, device: torch.device):
        self.job, self.device = job, device
        self.reads = job.model == "gpt"  # text: the other models see images
        torch.manual_seed(job.seed)
        use_tf32(job.precision == "tf32")
        with device:  # a large model's weights are drawn where they are needed: seconds on a CPU
            sizes = (CLASSES, job.image_px)
            if self.reads:
                sizes = (VOCABULARY, job.context, job.batching == "packed")
            model = make_model(job.model, job.width, job.depth, *sizes)
        self.layout = torch.channels_last if job.channels_last else torch.contiguous_format
        model = model.to(device, memory_format=self.layout)
        # fused=False would switch off PyTorch's own default, which updates all at once on a GPU
        fused = job.fused_optimizer or None
        kind = torch.optim.AdamW if job.compile else AdamW
        self.optimizer = kind(model.parameters(), lr=1e-3, fused=fused)
        self.model = torch.compile(model, mode=job.compile) if job.compile else model
        # FP16 gradients underflow; the scaler multiplies the loss so that they do not. Its step
        # asks the device whether any is infinite, and waits; a fused optimizer asks there itself
        self.scaler = torch.amp.GradScaler(device.type, enabled=job.precision == "fp16")
        self.side_stream = torch.Stream(device) if job.prefetch_to_device else None
        self.main_stream = torch.accelerator.current_stream(device) if self.side_stream else None

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> tuple:
        """Issue the copy of one batch: (B, 3, px, px) uint8 and (B,) int64; or of `Text`'s."""
        on_device = tuple(
            tensor.to(self.device, non_blocking=self.job.non_blocking)  # host-to-device copy
            for tensor in (images, labels)
        )
        if self.side_stream:
            for tensor in on_device:  # its memory is not reused before the compute is through
                tensor.record_stream(self.main_stream)
        return on_device

    @contextlib.contextmanager
    def on_side_stream(self):
        """Run a copy on its own stream, so that it overlaps the compute still in the queue."""
        with self.side_stream:
            yield
        self.main_stream.wait_stream(self.side_stream)  # the GPU waits; the host goes on

    def inputs(self, images: torch.Tensor, labels: torch.Tensor) -> tuple:
        """Return the inputs and targets of the model, from a batch on the device."""
        if self.reads:
            return next_bytes(images, labels)  # (B, T) each
        return images.to(memory_format=self.layout).float().div_(255), labels

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of logits (B, classes) or, of text, (B, T, classes)."""
        if self.reads:
            logits, targets = logits.flatten(0, 1), targets.flatten()
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

    def compile_now(self) -> float:
        """Compile by training on noise: no measured step does; undo it, return the seconds."""
        start = now_ns()
        kept = copy.deepcopy(self.model.state_dict())
        noise, labels = noise_batch(self.job)
        for call in range(3):  # CUDA graphs are recorded in the second and replayed in the third
            if self.reads and self.job.batching != "packed" and call:
                noise = noise[:, : -(self.job.context // 4)]  # lengths differ: one graph for all
                labels = labels.clamp(max=noise.shape[1] - 1)
            self.compute(*self.to_device(noise, labels), update=False)
            self.optimizer.zero_grad(set_to_none=True)  # in a graph's memory: the next overwrites
        self.model.load_state_dict(kept)
        return (now_ns() - start) / 1e9

    def after_step(self) -> bool | None:
        """Do nothing, unless a fault is planted here; True ends the loop, as ranks agree to."""


def train(
    trainer: Trainer, batches: Iterator, timeline: HostTimeline | DeviceTimeline, job: Any
) -> int:
    """Train until `steps` or `seconds` is reached, stamping every step; return the steps done.

    The seconds count from when every worker has given its first batch: to start is not to train.
    """
    trainer.model.train()
    place = trainer.on_side_stream if trainer.side_stream else contextlib.nullcontext
    limit_ns = int((job.seconds or 1e9) * 1e9)
    deadline_ns = now_ns() + STARTING_NS + limit_ns
    last_to_start = max(0, job.num_workers - 1)  # the step whose batch the last worker prepared
    reads = job.model == "gpt"
    for i in range(job.steps):
        asked = now_ns()
        images, labels = next(batches)  # the host waits here for data, and gives the old batch back
        samples, tokens = counted(images, labels) if reads else (labels.numel(), NO_TOKENS)
        with place():
            ready = timeline.copying()
            images, labels = trainer.to_device(images, labels)
            copied = timeline.copied()
        if i == last_to_start:
            deadline_ns = ready + limit_ns
        timeline.computing()
        loss = trainer.compute(images, labels, update=(i + 1) % job.accumulation_steps == 0)
        done = timeline.step(i, asked, ready, copied, samples, loss, tokens)
        if trainer.after_step() or done > deadline_ns:
            break
    timeline.finish()
    return i + 1
