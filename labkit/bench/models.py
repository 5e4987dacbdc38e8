"""Small models in plain PyTorch, sized by width and depth, and their optimizer."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable

import torch
from torch import nn

PATCH = 8  # px, edge of a token of the transformer


def cnn(width: int, depth: int, classes: int, _image_px: int) -> nn.Sequential:
    """Return a stem that halves the image, `depth` 3x3 convolution blocks, and a linear head."""
    layers = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(inplace=True)]
    for _ in range(depth):
        layers.append(nn.Conv2d(width, width, 3, padding=1, bias=False))
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    head = nn.Linear(width, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def mlp(width: int, depth: int, classes: int, image_px: int) -> nn.Sequential:
    """Return `depth` hidden layers of `width` on the image as one long vector."""
    sizes = [3 * image_px**2] + [width] * depth
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


class Transformer(nn.Module):
    """A small vision transformer: patches as tokens, `depth` encoder layers of `width`."""

    def __init__(self, width: int, depth: int, classes: int, image_px: int):
        super().__init__()
        heads = math.gcd(8, width)
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.place = nn.Parameter(torch.zeros(1, (image_px // PATCH) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, 3, px, px) to logits (B, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # (B, T, width)
        return self.head(self.encoder(tokens + self.place).mean(dim=1))


# {name: what makes it of (width, depth, classes, image_px), for images (B, 3, px, px)}
MODELS: dict[str, Callable[[int, int, int, int], nn.Module]] = {
    "cnn": cnn, "mlp": mlp, "transformer": Transformer
}  # fmt: skip


def set_layout(model: nn.Module, layout: torch.memory_format) -> None:
    """Store the weights of convolutions in this layout."""
    convert: Callable[..., nn.Module] = model.to  # its annotations lack memory_format
    convert(memory_format=layout)


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW without the guards that import torch.compile, which take 0.9 s.

    Its arithmetic is the same, and so is its name, which profiler traces have.
    """

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
