"""Small models in plain PyTorch, sized by width and depth, and their optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn


class CNN(nn.Module):
    """A stem that halves the image, `depth` 3x3 convolution blocks, and a linear head."""

    def __init__(self, width: int, depth: int, classes: int, _image_px: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        convs = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(depth)]
        self.blocks = nn.Sequential(
            *[nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)) for conv in convs]
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, 3, px, px) to logits (B, classes)."""
        features = torch.relu(self.stem(images))  # (B, width, px/2, px/2)
        return self.head(self.blocks(features).mean(dim=(2, 3)))


class MLP(nn.Module):
    """The image as one long vector through `depth` hidden layers of `width`."""

    def __init__(self, width: int, depth: int, classes: int, image_px: int):
        super().__init__()
        sizes = [3 * image_px**2] + [width] * depth
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, 3, px, px) to logits (B, classes)."""
        return self.layers(images)


class Transformer(nn.Module):
    """A small vision transformer: 8x8 patches as tokens, `depth` encoder layers of `width`."""

    def __init__(self, width: int, depth: int, classes: int, image_px: int):
        super().__init__()
        patch = 8
        heads = next(count for count in (8, 4, 2, 1) if width % count == 0)
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.place = nn.Parameter(torch.zeros(1, (image_px // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, 3, px, px) to logits (B, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # (B, T, width)
        return self.head(self.encoder(tokens + self.place).mean(dim=1))


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and beside a residual path."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = width // 64 if width % 64 == 0 else 1  # of 64 numbers each, as in GPT-2
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (B, T, width) to the same shape."""
        batch, length, width = tokens.shape
        parts = self.qkv(self.attention_norm(tokens)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D) each
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.down(nn.functional.gelu(self.up(self.mlp_norm(tokens))))


class GPT(nn.Module):
    """A decoder over bytes: `depth` blocks of `width`; byte 0 begins a document.

    A row is one document: causal attention keeps its padding out.
    """

    def __init__(self, width: int, depth: int, vocabulary: int, context: int):
        super().__init__()
        self.bytes = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map bytes (B, T) int64 to logits of the next ones (B, T, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        features = self.bytes(tokens) + self.places(places)
        for block in self.blocks:
            features = block(features)
        return self.head(self.norm(features))


MODELS = {"cnn": CNN, "mlp": MLP, "transformer": Transformer, "gpt": GPT}


def make_model(name: str, *sizes: int) -> nn.Module:
    """Build a model by its knob's name; `sizes` are width, depth, and what goes in and out."""
    return MODELS[name](*sizes)


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
