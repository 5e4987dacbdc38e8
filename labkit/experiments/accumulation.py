"""Whether micro-batches add up to the large batch: the update compared, and the classic mistakes.

"The update" is plain SGD's: the learning rate times the gradient. It is compared before it is added
to the weights, since adding rounds it to the weights' own digits. The error is the norm of the
difference over the norm of the update that one large batch gives, all parameters as one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.bench.models import make_model
from labkit.bench.workbench import Workbench

PX, CLASSES, VOCABULARY, LONGEST = 32, 10, 50, 24
LR = 0.1
IGNORED = -100  # the label of a position that is padding, as cross_entropy skips it

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def measure(job: Any, bench: Workbench) -> None:
    """Compare `count` micro-batches of `micro` samples with one batch of `micro` x `count`.

    FP32 and FP64, without batch norm; then what goes wrong, each with its cure, in FP64, where
    rounding hides nothing.
    """
    bench.stage("comparing updates")
    use_exact_math()
    for model in ("mlp", "transformer"):
        for dtype in (torch.float32, torch.float64):
            if dtype is torch.float64 and bench.device.type == "mps":
                bench.skip(f"{model}, float64", "Apple GPUs have no FP64")
                continue
            error = equivalence(job, bench.device, model, dtype)
            name = str(dtype).removeprefix("torch.")
            bench.write("equivalence", values={"error": error}, model=model, dtype=name)
    exact = torch.float32 if bench.device.type == "mps" else torch.float64
    for name, mistake in MISTAKES.items():
        wrong, cured, cure = mistake(job, bench.device, exact)
        bench.write("mistake", values={"error": wrong, "cured": cured, "cure": cure}, name=name)
    bench.write("hidden by Adam", values={"error": hidden_by_adam(job, bench.device, exact)})


def equivalence(job: Any, device: torch.device, model: str, dtype: torch.dtype) -> float:
    """Relative difference of the update: accumulated against at once."""
    net, images, labels = net_and_batch(model, job.micro * job.count, device, dtype)
    at_once = update_of(net, [(images, labels, 1.0)])
    parts = zip(images.split(job.micro), labels.split(job.micro), strict=True)
    return difference(update_of(net, ((x, y, 1 / job.count) for x, y in parts)), at_once)


def no_division(job: Any, device: torch.device, dtype: torch.dtype) -> tuple:
    """The losses are added up as they are: the update is `count` times too long."""
    net, images, labels = net_and_batch("mlp", job.micro * job.count, device, dtype)
    at_once = update_of(net, [(images, labels, 1.0)])
    parts = list(zip(images.split(job.micro), labels.split(job.micro), strict=True))
    wrong = update_of(net, ((x, y, 1.0) for x, y in parts))
    right = update_of(net, ((x, y, 1 / len(parts)) for x, y in parts))
    return difference(wrong, at_once), difference(right, at_once), "loss / number of micro-batches"


def hidden_by_adam(job: Any, device: torch.device, dtype: torch.dtype) -> float:
    """What is left of the missing division in Adam's first step, which divides by the gradient."""
    net, images, labels = net_and_batch("mlp", job.micro * job.count, device, dtype)
    gradient = update_of(net, [(images, labels, 1.0)]) / LR
    return difference(adams_first(job.count * gradient), adams_first(gradient))


def adams_first(gradient: torch.Tensor) -> torch.Tensor:
    """Adam's first update for that gradient, before it is added to any weights."""
    zeros = torch.zeros_like(gradient, requires_grad=True)
    zeros.grad = gradient
    torch.optim.Adam([zeros], lr=LR).step()
    return zeros.detach()


def batch_norm(job: Any, device: torch.device, dtype: torch.dtype) -> tuple:
    """Batch norm takes mean and deviation of each micro-batch alone: another function."""
    net, images, labels = net_and_batch("cnn", job.micro * job.count, device, dtype)
    at_once = update_of(net, [(images, labels, 1.0)])
    parts = list(zip(images.split(job.micro), labels.split(job.micro), strict=True))
    wrong = update_of(net, ((x, y, 1 / len(parts)) for x, y in parts))
    cured = with_group_norm(net)
    at_once_cured = update_of(cured, [(images, labels, 1.0)])
    right = update_of(cured, ((x, y, 1 / len(parts)) for x, y in parts))
    return difference(wrong, at_once), difference(right, at_once_cured), "group norm instead"


def unequal_last(job: Any, device: torch.device, dtype: torch.dtype) -> tuple:
    """The last micro-batch is half as long, and weighs as much as the others."""
    size = job.micro * job.count - job.micro // 2
    net, images, labels = net_and_batch("mlp", size, device, dtype)
    at_once = update_of(net, [(images, labels, 1.0)])
    parts = list(zip(images.split(job.micro), labels.split(job.micro), strict=True))
    wrong = update_of(net, ((x, y, 1 / len(parts)) for x, y in parts))
    right = update_of(net, ((x, y, len(y) / size) for x, y in parts))
    return difference(wrong, at_once), difference(right, at_once), "weight by samples"


def token_mean(job: Any, device: torch.device, dtype: torch.dtype) -> tuple:
    """Each micro-batch averages over its own tokens, and they differ in number."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.ReLU(),
                        nn.Linear(64, VOCABULARY)).to(device, dtype)  # fmt: skip
    count = job.micro * job.count
    tokens = torch.randint(0, VOCABULARY, (count, LONGEST), device=device)  # (B, T)
    labels = torch.randint(0, VOCABULARY, (count, LONGEST), device=device)
    lengths = torch.randint(2, LONGEST + 1, (count, 1), device=device).sort(dim=0).values
    labels[torch.arange(LONGEST, device=device) >= lengths] = IGNORED
    at_once = update_of(net, [(tokens, labels, 1.0)], of_tokens)
    parts = list(zip(tokens.split(job.micro), labels.split(job.micro), strict=True))
    wrong = update_of(net, ((x, y, 1 / len(parts)) for x, y in parts), of_tokens)
    total = (labels != IGNORED).sum().item()
    right = update_of(
        net, ((x, y, (y != IGNORED).sum().item() / total) for x, y in parts), of_tokens
    )
    return difference(wrong, at_once), difference(right, at_once), "weight by tokens"


MISTAKES = {
    "no division by the number of steps": no_division,
    "batch norm's statistics": batch_norm,
    "unequal last batch": unequal_last,
    "loss averaged over tokens": token_mean,
}


def mean_loss(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy, averaged over the samples."""
    return cross_entropy(net(inputs), labels)


def of_tokens(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy, averaged over the tokens that are no padding."""
    return cross_entropy(net(inputs).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def update_of(net: nn.Module, parts: Iterator | list, loss: Loss = mean_loss) -> torch.Tensor:
    """Accumulate the gradients of (inputs, labels, weight) parts; return SGD's update, flat."""
    net.zero_grad(set_to_none=True)
    for inputs, labels, weight in parts:
        (loss(net, inputs, labels) * weight).backward()
    return LR * torch.cat([p.grad.flatten() for p in net.parameters()])


def difference(update: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; taken in FP64 where there is one."""
    if reference.device.type != "mps":
        update, reference = update.double(), reference.double()
    return ((update - reference).norm() / reference.norm()).item()


def net_and_batch(model: str, size: int, device: torch.device, dtype: torch.dtype) -> tuple:
    """Return a model of the bench and a batch of random pictures and labels for it."""
    torch.manual_seed(0)
    net = make_model(model, 64, 2, CLASSES, PX).to(device, dtype).train()
    images = torch.rand(size, 3, PX, PX, device=device, dtype=dtype)
    return net, images, torch.randint(0, CLASSES, (size,), device=device)


def with_group_norm(net: nn.Module) -> nn.Module:
    """Replace batch norm by group norm, which looks at one sample at a time."""
    for block in net.blocks:
        old = block[1]
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        block[1] = nn.GroupNorm(8, old.num_features, **like)
    return net


def use_exact_math() -> None:
    """No TF32: its 10 bits would be the error that is seen."""
    from labkit.bench.formats import use_tf32

    use_tf32(False)
