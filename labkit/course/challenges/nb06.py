"""The challenges of notebook 06, gradient accumulation."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, EXACT, difference
from labkit.course.code_challenge import Numbers, code
from labkit.course.goals import Goal

Batches = Sequence[tuple[Tensor, Tensor]]

LARGEST = "largest batch in the model"


def watched(model: nn.Module) -> list[int]:
    """Return a list to which the size of every batch that goes through `model` is added."""
    sizes: list[int] = [0]
    model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    return sizes


def train_epoch(model: nn.Module, optimizer: Optimizer, batches: Batches, every: int) -> None:
    """Train for one epoch; so many batches together make an update."""
    for first in range(0, len(batches), every):
        group = batches[first : first + every]
        samples = sum(len(targets) for _, targets in group)
        optimizer.zero_grad()
        for inputs, targets in group:
            loss = cross_entropy(model(inputs), targets, reduction="sum") / samples
            loss.backward()
        optimizer.step()


@code(
    "06-loop",
    hints=(
        "Which micro-batches make an update together? How many samples do they have?",
        "Each group: zero the gradients, add up (summed loss / samples of the group), step.",
    ),
    goals=(EXACT, Goal(LARGEST, at_most=8)),
    example=train_epoch,
)
def loop(answer: Answer) -> Numbers:
    """The whole loop.

    Write a function of (model, optimizer, batches, every) that trains for one epoch: batches is a
    list of (x, y), and every so many make one update, that of the mean cross entropy over their
    samples. The last group may have fewer batches, and its last batch fewer samples.
    """
    sizes = (8,) * 9 + (3,)
    inputs = torch.randn(sum(sizes), 6).double()
    targets = torch.randint(0, 4, (sum(sizes),))
    right = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4)).double()
    model = copy.deepcopy(right)
    together = list(zip(inputs.split(32), targets.split(32), strict=True))  # four of 8 at once
    train_epoch(right, sgd(right), together, 1)
    seen = watched(model)
    answer(model, sgd(model), list(zip(inputs.split(sizes), targets.split(sizes), strict=True)), 4)
    pairs = zip(model.parameters(), right.parameters(), strict=True)
    errors = [difference(weight.detach(), expected.detach()) for weight, expected in pairs]
    return {ERROR: max(errors), LARGEST: max(seen)}


def sgd(model: nn.Module) -> Optimizer:
    """Return an optimizer for which the order of updates matters."""
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
