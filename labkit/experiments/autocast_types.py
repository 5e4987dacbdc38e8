"""What autocast does to each operation: the dtype that comes out, asked of the tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from labkit.bench.formats import DTYPES
from labkit.bench.workbench import Workbench

SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def measure(job: Any, bench: Workbench) -> None:
    """Per operation: the dtype of its output for an FP32 input and for a 16-bit input."""
    dtype = DTYPES[job.precision]
    full = torch.randn(8, 16, device=bench.device)  # (B, features)
    image = torch.randn(2, 3, 8, 8, device=bench.device)  # (B, channels, h, w)
    with torch.autocast(bench.device.type, dtype=dtype):
        for name, work in operations(bench.device).items():
            came = {}
            for given, x, picture in (
                ("from fp32", full, image),
                ("from 16 bits", full.to(dtype), image.to(dtype)),
            ):
                try:
                    came[given] = SHORT[work(x, picture).dtype]
                except RuntimeError as error:  # an operation that this device lacks in 16 bits
                    came[given] = f"not possible: {str(error).splitlines()[0][:60]}"
            bench.write("output", op=name, precision=job.precision, values=came)
    for name, kind in (("fp32", None), (job.precision, dtype)):
        kept = kept_for_backward(bench.device, kind)
        bench.write("kept", precision=name, values={"mib": kept / 2**20})


def kept_for_backward(device: torch.device, dtype: torch.dtype | None) -> int:
    """Bytes that the forward of a small network keeps for its backward, its weights left out.

    Told by PyTorch itself, which hands every tensor that it saves to a hook; each storage counts
    once. Peak memory of a process or a card also holds what does not depend on the format.
    """
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    model = model.to(device)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    cast = torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast:
        out = model(torch.randn(4096, 256, device=device))  # (B, features)
    del out
    return sum(kept.values())


def operations(device: torch.device) -> dict[str, Callable]:
    """The operations by name, each a function of (8, 16) features and a (2, 3, 8, 8) image."""
    weight = torch.randn(16, 16, device=device)
    kernel = torch.randn(4, 3, 3, 3, device=device)
    mean, var = torch.zeros(16, device=device), torch.ones(16, device=device)
    labels = torch.zeros(8, dtype=torch.int64, device=device)
    return {
        "matmul": lambda x, _: x @ weight.to(x.dtype),
        "linear": lambda x, _: F.linear(x, weight),
        "conv2d": lambda _, image: F.conv2d(image, kernel),
        "add": lambda x, _: x + x,
        "relu": lambda x, _: F.relu(x),
        "gelu": lambda x, _: F.gelu(x),
        "batch_norm": lambda x, _: F.batch_norm(x, mean.clone(), var.clone(), training=True),
        "layer_norm": lambda x, _: F.layer_norm(x, (16,)),
        "softmax": lambda x, _: F.softmax(x, -1),
        "exp": lambda x, _: x.exp(),
        "sum": lambda x, _: x.sum(),
        "cross_entropy": lambda x, _: F.cross_entropy(x, labels),
        "mse_loss": lambda x, _: F.mse_loss(x, torch.zeros_like(x)),
    }
