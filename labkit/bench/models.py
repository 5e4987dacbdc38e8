"""Small models in plain PyTorch, sized by width and depth, and their optimizer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

attention = nn.functional.scaled_dot_product_attention


class CNN(nn.Module):
    """A stem that halves the image, `depth` 3x3 convolution blocks, and a linear head."""

    def __init__(self, width: int, depth: int, classes: int, _image_px: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        convs = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(depth)]
        self.blocks = nn.Sequential(
            *[nn.Sequential(c, nn.BatchNorm2d(width), nn.ReLU(inplace=True)) for c in convs]
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, 3, px, px) to logits (B, classes)."""
        x = torch.relu(self.stem(images))  # (B, width, px/2, px/2)
        return self.head(self.blocks(x).mean(dim=(2, 3)))


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
        patch, heads = 8, next(n for n in (8, 4, 2, 1) if width % n == 0)
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.place = nn.Parameter(torch.zeros(1, (image_px // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images (B, 3, px, px) to logits (B, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, T, width)
        return self.head(self.encoder(x + self.place).mean(dim=1))


class Cache:
    """Keys and values of the tokens so far, per block; room for `length` tokens is made at once."""

    def __init__(self, model: GPT, batch: int, length: int):
        heads, weight = model.blocks[0].heads, model.bytes.weight
        shape = len(model.blocks), 2, batch, heads, length, model.width // heads
        self.kept = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.at = 0  # tokens that are in it: the next ones' place

    def grown(self, block: int, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Keep the keys and values (B, H, T, D) of one block; return (2, B, H, at + T, D)."""
        end = self.at + keys.shape[2]
        self.kept[block, 0, :, :, self.at : end] = keys
        self.kept[block, 1, :, :, self.at : end] = values
        return self.kept[block, :, :, :, :end]


def one_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any):
    """Attend to all keys: a CPU's fused kernel takes 2.5 times as long for one query in BF16."""
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and beside a residual path."""

    def __init__(self, width: int, place: int):
        super().__init__()
        self.place = place
        self.heads = width // 64 if width % 64 == 0 else 1  # of 64 numbers each, as in GPT-2
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, cache: Cache | None):
        """Map (B, T, width) to the same shape; `mask` (B, 1, T, T) says who sees whom."""
        batch, length, width = x.shape
        parts = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, D) each
        if cache is not None:
            k, v = cache.grown(self.place, k, v)
        # A token behind a cache sees all of it. (The length is no constant to torch.compile)
        causal = mask is None and (cache is None or not cache.at)
        attend = one_query if cache and cache.at and x.is_cpu else attention
        seen = attend(q, k, v, mask, is_causal=causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    """A decoder over bytes: `depth` blocks of `width`; byte 0 begins a document.

    With `packed` a row holds several documents: attention stays inside each, and positions begin
    anew at each 0. Else a row is one document, and causal attention keeps its padding out.
    """

    def __init__(self, width: int, depth: int, vocabulary: int, context: int, packed: bool = False):
        super().__init__()
        self.width, self.packed = width, packed
        self.bytes, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, place) for place in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Map bytes (B, T) int64 to logits of the next ones (B, T, vocabulary)."""
        start, mask = cache.at if cache else 0, None
        places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        if self.packed:
            begins = tokens == 0
            document = begins.cumsum(1)  # (B, T)
            mask = document[:, None, :, None] == document[:, None, None, :]
            mask = mask & (places[:, None] >= places)  # (B, 1, T, T)
            places = places - (places * begins).cummax(1).values
        x = self.bytes(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x, mask, cache)
        return self.head(self.norm(x))


def packed(layer: nn.Linear, weights: str, on_cpu: bool) -> nn.Linear:
    """Return a layer with its `weights` (int8, or as they are) as the fastest kernel reads them."""
    weight, bias = layer.weight.data, layer.bias.data
    if weights == "int8":
        scale = weight.abs().amax(1) / 127  # one for each output
        whole = (weight / scale[:, None]).round().to(torch.int8)

        def forward(x: torch.Tensor) -> torch.Tensor:
            product = torch._weight_int8pack_mm(x.flatten(0, -2), whole, scale)
            # CUDA's kernel returns FP32 whatever it is given; attention needs one format
            return product.to(x.dtype).unflatten(0, x.shape[:-1]) + bias

        layer.forward = forward
    elif on_cpu and torch.backends.mkldnn.is_available():
        onednn = torch.ops.mkldnn
        blocked = onednn._reorder_linear_weight(weight, None)
        layer.forward = lambda x: onednn._linear_pointwise(x, blocked, bias, "none", [], "")
    else:
        return layer
    layer.weight = None  # what it was is not kept as well
    return layer


def make_model(name: str, *sizes: int) -> nn.Module:
    """Build a model by its knob's name; `sizes` are width, depth, and what goes in and out."""
    return {"cnn": CNN, "mlp": MLP, "transformer": Transformer, "gpt": GPT}[name](*sizes)


def unguarded(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return the optimizer `kind` without the guards that import torch.compile, which take 0.9 s.

    Its arithmetic is the same, and its name, which profiler traces have.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("zero_grad", "add_param_group")}
    plain["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), plain)


AdamW, Adam, SGD = map(unguarded, (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD))
