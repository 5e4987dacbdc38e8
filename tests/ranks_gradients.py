"""Run by torchrun in test_ranks: every rank's averaged gradients of one batch, saved to a file."""

import sys
from types import SimpleNamespace

import torch
from torch import distributed as dist

from labkit.bench.rank import DistributedTrainer
from labkit.spec import Pipeline

MICRO = (1, 2)  # micro-batches that a rank's share of the batch is trained in


def job(micro=1):
    """What a Trainer reads of a job; an MLP, as batch norm's statistics are each rank's own."""
    mlp = Pipeline(model="mlp", width=32, depth=2, image_px=16, accumulation_steps=micro)
    return SimpleNamespace(**mlp.to_dict())


def batch():
    """A fixed batch: (32, 3, 16, 16) uint8 and (32,) int64."""
    random = torch.Generator().manual_seed(7)
    pixels = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8, generator=random)
    return pixels, torch.randint(0, 10, (32,), generator=random)


def gradients(trainer):
    """All gradients, in one vector."""
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for micro in MICRO:
        trainer = DistributedTrainer(job(micro), torch.device("cpu"), no_sync=micro > 1)
        trainer.optimizer.step = lambda *_: None  # what is looked at are the gradients
        trainer.optimizer.zero_grad = lambda **_: None
        parts = zip(*(part[rank::ranks].chunk(micro) for part in batch()), strict=True)
        for number, part in enumerate(parts, 1):
            trainer.compute(*part, update=number == micro)
        torch.save(gradients(trainer), f"{sys.argv[1]}.{rank}.{micro}")
        dist.barrier()
