"""The number formats of heavy math: what each is to PyTorch, and which make sense on a device."""

from __future__ import annotations

import warnings

import torch

from labkit.bench.resolve_config import lacks_format

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}  # of tensors; those that take autocast


def set_fp32(precision: str) -> None:
    """Set how products and convolutions of FP32 tensors are computed, as `precision` asks.

    "ieee" forbids TF32, "tf32" allows it in both. Any other leaves PyTorch's own settings: FP32
    for products, TF32 for convolutions where the card has it.
    """
    if precision not in ("ieee", "tf32"):
        return
    allowed = precision == "tf32"
    with warnings.catch_warnings():  # the newer names must not be mixed with these, which 2.8 has
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed


def computes_in(precision: str, model: str, device: torch.device) -> str:
    """Return the format that most of a model's FLOPs run in: one that `lk.peaks` measures.

    "fp32" leaves PyTorch's own settings: TF32 for convolutions where the card has it.
    """
    if precision == "fp32" and model == "cnn" and not why_not("tf32", device):
        return "tf32"
    return "fp32" if precision == "ieee" else precision


def why_not(name: str, device: torch.device) -> str | None:
    """Return why work in this format makes no sense on a device; None where it does."""
    capability = None
    if device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return lacks_format(name, device.type, capability)
