"""The solutions of the challenges in code, as a reader may ask to see them: plain PyTorch."""

import torch
from torch import nn


def ms_per_call(work, wait, clock):
    """Return what a call takes on the device, without the set-up of the first one."""
    work()
    wait()
    start = clock()
    for _ in range(20):
        work()
    wait()
    return (clock() - start) / 20


def with_loss_scale(loss_of, weights):
    """Return the gradient of a loss that is enlarged for the backward pass."""
    scale = 2.0**14
    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0].float() / scale  # in FP32 small numbers fit


def train_epoch(model, optimizer, batches, every):
    """Train for one epoch; so many batches together make an update."""
    for first in range(0, len(batches), every):
        group = batches[first : first + every]
        samples = sum(len(targets) for _, targets in group)
        optimizer.zero_grad()
        for inputs, targets in group:
            loss = nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
            (loss / samples).backward()
        optimizer.step()


def one_graph(x):
    """Choose between two tensors without leaving the graph."""
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


def part_by_part(rank, ranks, mine, send, receive):
    """Return the mean of all ranks' gradients; each rank adds up one part, and shares its sum."""
    parts = mine.chunk(ranks)
    others = [other for other in range(ranks) if other != rank]
    for other in others:
        send(other, parts[other])
    total = parts[rank] + sum(receive(other) for other in others)
    for other in others:
        send(other, total)
    return torch.cat([total if each == rank else receive(each) for each in range(ranks)]) / ranks


def largest_gap(lanes):
    """Return the length of the largest gap between kernels, ms, and the lane active in it."""
    kernels = lanes["kernels"]
    gaps = zip(kernels, kernels[1:], strict=False)
    length, begin, stop = max((start - end, end, start) for (_, end), (start, _) in gaps)

    def active(lane):
        spans = lanes.get(lane, ())
        return sum(max(0, min(end, stop) - max(start, begin)) for start, end in spans)

    return length, max(("DataLoader", "CPU operators", "CUDA calls"), key=active)


def smallest_that_feeds(paths, cores, images_per_s):
    """Return the path of fewest bytes of those that are fast enough; None where none is."""
    fed = [name for name, (ms, _) in paths.items() if cores * 1000 / ms >= images_per_s]
    return min(fed, key=lambda name: paths[name][1], default=None)


class Preallocated:
    """A cache that makes room once and writes each new token into its place."""

    def __init__(self, longest):
        self.longest = longest
        self.length = 0

    def grown(self, keys, values):
        """Take new keys and values (B, H, T, D); return those of all tokens so far."""
        new = torch.stack([keys, values])
        start = self.length
        if not start:
            self.kept = new.new_empty(*new.shape[:3], self.longest, new.shape[4])
        self.length = start + new.shape[3]
        self.kept[:, :, :, start : self.length] = new
        return tuple(self.kept[:, :, :, : self.length])
