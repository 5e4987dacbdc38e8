"""The number formats of deep learning: range and rounding, from their bits and on real tensors.

A format has a sign, `exponent_bits` and `mantissa_bits`; everything else follows (IEEE 754):
values are (1 + m / 2^mantissa_bits) * 2^e, or m / 2^mantissa_bits * 2^lowest below the normals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.experiments.measure import page, primitives, style
from labkit.experiments.memory import kept_for_backward
from labkit.results.result import Table
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, nn, functional = Later("torch"), Later("torch.nn"), Later("torch.nn.functional")
formats = Later("labkit.bench.formats")

EXAMPLES = (70_000.0, 257.0, 1 / 3, 1e-5, 1e-8)


class Format:
    """A binary floating-point format, by its bits; `mantissa_bits` are those stored, all but a 1.

    Attributes:
        lowest: The exponent of the smallest normal number.
        max: The largest finite number: all mantissa bits set, under the highest exponent.
        smallest_normal: The smallest number that has all its digits.
        smallest: The smallest number above zero: one last mantissa bit, under the lowest exponent.
        eps: The step from 1 to the next number; rounding is off by half of it at most.
        digits: Decimal digits that a number keeps.
    """

    def __init__(self, name: str, exponent_bits: int, mantissa_bits: int):
        self.name, self.exponent_bits, self.mantissa_bits = name, exponent_bits, mantissa_bits
        self.lowest = 2 - 2 ** (exponent_bits - 1)
        self.eps = 2.0**-mantissa_bits
        self.max = (2 - self.eps) * 2.0 ** (1 - self.lowest)
        self.smallest_normal = 2.0**self.lowest
        self.smallest = self.smallest_normal * self.eps
        self.digits = (mantissa_bits + 1) * math.log10(2)


# TF32: NVIDIA A100 Tensor Core GPU Architecture whitepaper, 2020, p. 27; BF16: Google Brain, the
# upper half of an FP32 number; the others: IEEE 754
FP32, TF32 = Format("fp32", 8, 23), Format("tf32", 8, 10)
FP16, BF16 = Format("fp16", 5, 10), Format("bf16", 8, 7)

FORMATS = {each.name: each for each in (FP32, TF32, FP16, BF16)}
STORED = ("fp32", "fp16", "bf16")  # those a tensor can be in


def formats_table() -> Table:
    """Return the formats side by side."""
    head = ("format", "bits: exponent", "mantissa", "largest", "smallest normal", "step at 1")
    rows = [
        (f.name, f.exponent_bits, f.mantissa_bits, f"{f.max:.3g}", f"{f.smallest_normal:.2g}",
         f"{f.eps:.2g}") for f in FORMATS.values()
    ]  # fmt: skip
    return Table(rows, head, left=())


# -- range and rounding ----------------------------------------------------------------------------


@experiment(
    "range and rounding of each number format, on real tensors",
    count=knob(1_000_000, "numbers that are rounded", low=1000, high=1 << 26),
)
def number_formats(job: Any, bench: Any) -> None:
    """Per format: the limits that `torch.finfo` states, the limits found, numbers that break it.

    The limits are found by doubling and halving until nothing is left. "rounding" is the largest
    relative error over `count` normally distributed numbers that go to the format and back.
    """
    for name in STORED:
        dtype = formats.FORMATS[name][0]
        info = torch.finfo(dtype)
        stated = {"max": info.max, "smallest_normal": info.smallest_normal, "eps": info.eps}
        bench.write("finfo", format=name, values=stated)
        bench.write("limits", format=name, values=limits(bench.device, dtype))
        for number in EXAMPLES:
            became = torch.tensor(number, device=bench.device).to(dtype)
            bench.write("example", format=name, number=number, values={"became": text(became)})
        worst = rounding(bench.device, job.count, lambda x, dtype=dtype: x.to(dtype))
        bench.write("rounding", format=name, values={"worst": worst})
        bench.write("norm", format=name, values=norm(bench.device, dtype))
    if bench.usable(["tf32"]):
        worst = rounding(bench.device, job.count, through_tensor_cores)
        bench.write("rounding", format="tf32", values={"worst": worst})


def limits(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Find the smallest number above zero and the step at 1, by halving a tensor on the device."""
    one = torch.ones((), device=device, dtype=dtype)
    smallest, step = one, one
    while (smallest / 2).item() > 0:
        smallest = smallest / 2
    while (one + step / 2).item() > 1:
        step = step / 2
    return {"smallest": smallest.item(), "eps": step.item()}


def rounding(
    device: torch.device, count: int, there: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Return the largest relative error of numbers that are rounded by `there`."""
    x = torch.randn(count, device=device)
    x = x[x.abs() > 1e-3]  # below the normals of fp16 it would be more
    return ((there(x).float() - x).abs() / x.abs()).max().item()


def through_tensor_cores(x: torch.Tensor) -> torch.Tensor:
    """Round to TF32 in hardware: a product with the identity, which changes nothing else."""
    formats.use_tf32(True)
    rows = x[: len(x) // 64 * 64].view(-1, 64)
    rounded = rows @ torch.eye(64, device=x.device)
    formats.use_tf32(False)
    return torch.cat([rounded.flatten(), x[rounded.numel() :]])


def norm(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Take the length of a vector by hand: its squares overflow long before the result would."""
    x = torch.full((4,), 300.0, device=device, dtype=dtype)
    square = x * x
    return {"square": text(square[0]), "norm": text(square.sum().sqrt()),
            "normalised": text((square / square.sum())[0])}  # fmt: skip


def text(x: torch.Tensor) -> str:
    """Write a number as text: JSON has neither inf nor nan."""
    return f"{x.float().item():g}"


@number_formats.figure
def draw_formats(measured: Any) -> Any:
    """Draw each format's range, from the smallest number above zero to the largest, and its step.

    Bars follow from the bits; rings are what this device's own tensors did. TF32 has no ring
    without Tensor Cores.
    """
    height = 0.42 * len(FORMATS)
    figure, (span, step) = page(
        measured, [(0.32, height), (0.75, height)], title="BF16 has FP32's range, FP16 more of its "
        "digits",
    )  # fmt: skip
    for row, (form, colour) in enumerate(zip(FORMATS.values(), style.LINES, strict=False)):
        look = {"color": colour, "lw": 9, "solid_capstyle": "butt"}
        span.plot([form.smallest_normal, form.max], [row, row], **look)
        span.plot([form.smallest, form.smallest_normal], [row, row], alpha=0.35, **look)
        step.plot([1e-9, form.eps / 2], [row, row], **look)
        for axes, of, key in ((span, "limits", "smallest"), (step, "rounding", "worst")):
            for point in measured.where(of, format=form.name):
                axes.plot(point.values[key] or math.nan, row, "o", mfc="white", mec=colour)
        missing = form is not FP32 and not measured.where("rounding", format=form.name)
        words = f"{form.digits:.1f} decimal digits" + " (not measured here)" * missing
        primitives.beside(step, 2 * form.eps, row, words)
    for axes, name in ((span, "range"), (step, "precision")):
        primitives.name_rows(axes, list(FORMATS))
        axes.set_title(name, loc="left")
        axes.set_xscale("log")
    span.set(xlim=(1e-48, 1e42), xlabel="size of a number (pale: digits are lost)")
    step.set(xlim=(1e-9, 3), xlabel="largest relative error of rounding (rings: found here)")
    span.axvline(1.0, color="#999999", lw=0.8, ls=":")
    return figure


# -- autocast --------------------------------------------------------------------------------------


@experiment(
    "the dtype that comes out of each operation under autocast",
    precision=knob("bf16", "number format of autocast", choices=("fp16", "bf16")),
)
def autocast_types(job: Any, bench: Any) -> None:
    """Per operation: the dtype of its output for an FP32 input and for a 16-bit input."""
    dtype = formats.DTYPES[job.precision]
    short = {formats.FORMATS[name][0]: name for name in STORED}
    full = torch.randn(8, 16, device=bench.device)  # (B, features)
    image = torch.randn(2, 3, 8, 8, device=bench.device)  # (B, channels, h, w)
    with torch.autocast(bench.device.type, dtype=dtype):
        for name, work in operations(bench.device).items():
            came = {}
            for given, kind in (("from fp32", torch.float32), ("from 16 bits", dtype)):
                x, picture = full.to(kind), image.to(kind)
                try:
                    came[given] = short[work(x, picture).dtype]
                except RuntimeError as error:  # an operation that this device lacks in 16 bits
                    came[given] = f"not possible: {str(error).splitlines()[0][:60]}"
            bench.write("output", op=name, precision=job.precision, values=came)
    for name, kind in (("fp32", None), (job.precision, dtype)):
        kept = kept_bytes(bench.device, kind)
        bench.write("kept", precision=name, values={"mib": kept / 2**20})


def kept_bytes(device: torch.device, dtype: torch.dtype | None) -> int:
    """Return the bytes that the forward of a small network keeps for its backward, but weights."""
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    model = model.to(device)
    cast = torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
    with kept_for_backward(model) as kept, cast:
        model(torch.randn(4096, 256, device=device))  # (B, features)
    return sum(kept.values())


def operations(device: torch.device) -> dict[str, Callable]:
    """Return operations by name, functions of (8, 16) features and a (2, 3, 8, 8) image."""
    weight = torch.randn(16, 16, device=device)
    kernel = torch.randn(4, 3, 3, 3, device=device)
    mean, var = torch.zeros(16, device=device), torch.ones(16, device=device)
    labels = torch.zeros(8, dtype=torch.int64, device=device)
    f = functional
    return {
        "matmul": lambda x, _: x @ weight.to(x.dtype),
        "linear": lambda x, _: f.linear(x, weight),
        "conv2d": lambda _, image: f.conv2d(image, kernel),
        "add": lambda x, _: x + x,
        "relu": lambda x, _: f.relu(x),
        "gelu": lambda x, _: f.gelu(x),
        "batch_norm": lambda x, _: f.batch_norm(x, mean.clone(), var.clone(), training=True),
        "layer_norm": lambda x, _: f.layer_norm(x, (16,)),
        "softmax": lambda x, _: f.softmax(x, -1),
        "exp": lambda x, _: x.exp(),
        "sum": lambda x, _: x.sum(),
        "cross_entropy": lambda x, _: f.cross_entropy(x, labels),
        "mse_loss": lambda x, _: f.mse_loss(x, torch.zeros_like(x)),
    }
