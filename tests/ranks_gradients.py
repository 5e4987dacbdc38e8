"""Run by torchrun in test_ranks: every rank's averaged gradients of one batch, saved to a file."""

import sys
from types import SimpleNamespace

import torch
from torch import distributed as dist

from labkit.bench.rank import DistributedTrainer

MICRO = (1, 2)  # micro-batches that a rank's share of the batch is trained in


def job(**changes):
    """What a Trainer reads of a job; an MLP, as batch norm's statistics are each rank's own."""
    knobs = {
        "seed": 0, "precision": "fp32", "model": "mlp", "width": 32, "depth": 2, "image_px": 16,
        "channels_last": False, "fused_optimizer": False, "compile": None, "non_blocking": False,
        "prefetch_to_device": False, "accumulation_steps": 1,
    }  # fmt: skip
    return SimpleNamespace(**knobs | changes)


def batch():
    """A fixed batch: (32, 3, 16, 16) uint8 and (32,) int64."""
    random = torch.Generator().manual_seed(7)
    pixels = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8, generator=random)
    return pixels, torch.randint(0, 10, (32,), generator=random)


def gradients(trainer):
    """All gradients, in one vector."""
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


def train(out, micro):
    """Train one rank's share of the batch in `micro` micro-batches, without an update."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    knobs = job(accumulation_steps=micro)
    trainer = DistributedTrainer(knobs, torch.device("cpu"), no_sync=micro > 1)
    trainer.optimizer.step = lambda *_: None  # what is looked at are the gradients
    trainer.optimizer.zero_grad = lambda **_: None
    parts = zip(*(part[rank::ranks].chunk(micro) for part in batch()), strict=True)
    for number, part in enumerate(parts, 1):
        trainer.compute(*part, update=number == micro)
    torch.save(gradients(trainer), f"{out}.{rank}.{micro}")
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for micro in MICRO:
        train(sys.argv[1], micro)
