"""Plausible answers to every challenge that must fail, at least one of them a cheat.

Those of a knob challenge are changes of what was given. A cheat does less work, or other work. The
code that a challenge starts from is a wrong answer too.
"""

import time

import torch
from torch.nn.functional import cross_entropy

from labkit.course.challenges import solutions

KNOBS = {
    "00-first": {"cheat: no storage wait": {"io_ms": 0.0}},
    "02-feed": {"cheat: no augmentation": {"augment": 0}},
    "03-stalls": {"cheat: fewer stalls": {"stall_every": 100}},
    "04-fit": {"cheat: fewer samples": {"batch_size": 64, "accumulation_steps": 16, "steps": 1}},
}


def in_fp32(loss_of, weights):
    weights = weights.detach().float().requires_grad_()
    return torch.autograd.grad(loss_of(weights), weights)[0]


def a_step_each(model, optimizer, batches, every):
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def joined_groups(model, optimizer, batches, every):
    groups = [batches[at : at + every] for at in range(0, len(batches), every)]
    large = [map(torch.cat, zip(*group, strict=True)) for group in groups]
    a_step_each(model, optimizer, large, 1)


def two_graphs(x):
    y = torch.relu(x * 2)
    if y.sum().item() > 10:
        y = y - y.mean()
    return y * 0.5


BLACKBOARD: dict = {}


def blackboard(rank, ranks, mine, send, receive):  # ranks on several machines share no memory
    board = BLACKBOARD.setdefault(ranks, {})
    board[rank] = mine
    while len(board) < ranks:
        time.sleep(0.001)
    return sum(board.values()) / ranks


class NewOnes:
    def __init__(self, longest):
        self.kept = torch.empty(2, 2, 4, 0, 8)

    def grown(self, keys, values):
        return keys, values


class Concatenated(NewOnes):
    def grown(self, keys, values):
        self.kept = torch.cat([self.kept, torch.stack([keys, values])], dim=3)
        return self.kept[0], self.kept[1]


CODE = {
    "01-stopwatch": {
        "cheat": lambda work, wait, clock: 10.0 + 0 * len([work() for _ in range(20)])
    },
    "05-small-gradients": {
        "without a scale": lambda loss_of, w: torch.autograd.grad(loss_of(w), w)[0],
        "cheat: FP32": in_fp32,
    },
    "06-loop": {"a step for each": a_step_each, "cheat: large batches": joined_groups},
    "07-graph-break": {"as given": two_graphs, "cheat": lambda x: torch.relu(x * 2) * 0.5},
    "11-choose": {"cheat: always none": lambda *_: None},
    "12-cache": {"copied each time": Concatenated, "cheat: only the new ones": NewOnes},
    "09-all-reduce": {"cheat: a blackboard": blackboard},
    "10-gap": {
        "cheat: always the loader": lambda lanes: (solutions.largest_gap(lanes)[0], "DataLoader")
    },
}  # fmt: skip
