"""The number formats of deep learning: range and rounding, autocast, and gradients lost in FP16.

IEEE 754: (1 + m / 2^mantissa_bits) * 2^e, or m / 2^mantissa_bits * 2^lowest below the normals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.experiments.measure import flops, formats, models, nn, page, primitives, style, torch
from labkit.results.result import Table
from labkit.spec import experiment, knob


class Format:
    """A binary floating-point format, by its bits; `eps` is the step from 1 to the next number."""

    def __init__(self, name: str, exponent_bits: int, mantissa_bits: int):
        self.name, self.bits = name, (exponent_bits, mantissa_bits)
        self.lowest = 2 - 2 ** (exponent_bits - 1)
        self.eps = 2.0**-mantissa_bits
        self.max = (2 - self.eps) * 2.0 ** (1 - self.lowest)
        self.smallest_normal = 2.0**self.lowest
        self.smallest = self.smallest_normal * self.eps
        self.digits = (mantissa_bits + 1) * math.log10(2)


# TF32: NVIDIA A100 Tensor Core GPU Architecture whitepaper, 2020, p. 27; BF16: Google Brain, the
# upper half of an FP32 number; the others: IEEE 754
BITS = {"fp32": (8, 23), "tf32": (8, 10), "fp16": (5, 10), "bf16": (8, 7)}
FORMATS = {name: Format(name, *bits) for name, bits in BITS.items()}
STORED = ("fp32", "fp16", "bf16")  # those a tensor can be in


def formats_table() -> Table:
    """Return the formats side by side."""
    head = ("format", "bits: exponent", "mantissa", "largest", "smallest normal", "step at 1")
    rows = [(f.name, *f.bits, f"{f.max:.3g}", f"{f.smallest_normal:.2g}", f"{f.eps:.2g}")
            for f in FORMATS.values()]  # fmt: skip
    return Table(rows, head, left=())


@experiment(
    "range and rounding of each number format, on real tensors",
    count=knob(1_000_000, "numbers that are rounded", low=1000, high=1 << 26),
)
def number_formats(job: Any, bench: Any) -> None:
    """Write per format the limits found and the largest error of rounding."""
    x = torch.randn(job.count, device=bench.device)
    x = x[x.abs() > 1e-3]  # below the normals of fp16 it would be more

    def rounding(name: str, rounded: torch.Tensor) -> None:
        worst = ((rounded.float() - x).abs() / x.abs()).max().item()
        bench.write("rounding", format=name, values={"worst": worst})

    for name in STORED:
        dtype = formats.FORMATS[name][0]
        smallest = step = one = torch.ones((), device=bench.device, dtype=dtype)
        while (smallest / 2).item() > 0:
            smallest = smallest / 2
        while (one + step / 2).item() > 1:
            step = step / 2
        found = {"smallest": smallest.item(), "eps": step.item()}
        bench.write("limits", format=name, values=found)
        rounding(name, x.to(dtype))
    if bench.usable(["tf32"]):  # rounded in hardware: a product with 1 changes nothing else
        x = x[: len(x) // 64 * 64]
        formats.use_tf32(True)
        rounded = x.view(-1, 64) @ torch.eye(64, device=bench.device)
        formats.use_tf32(False)
        rounding("tf32", rounded.flatten())


@number_formats.figure
def draw_formats(measured: Any) -> Any:
    """Draw each format's range and step from its bits; rings are what this device's tensors did."""
    height = 0.42 * len(FORMATS)
    title = "BF16 has FP32's range, FP16 more of its digits"
    figure, (span, step) = page(measured, [(0.1, height), (0.6, height)], title=title)
    for row, (form, colour) in enumerate(zip(FORMATS.values(), style.LINES, strict=False)):
        look = {"color": colour, "lw": 9, "solid_capstyle": "butt"}
        span.plot([form.smallest_normal, form.max], [row, row], **look)
        span.plot([form.smallest, form.smallest_normal], [row, row], alpha=0.35, **look)
        step.plot([1e-9, form.eps / 2], [row, row], **look)
        for axes, of, key in ((span, "limits", "smallest"), (step, "rounding", "worst")):
            for point in measured.where(of, format=form.name):
                axes.plot(point.values[key] or math.nan, row, "o", mfc="white", mec=colour)
        primitives.beside(step, 2 * form.eps, row, f"{form.digits:.1f} decimal digits")
    primitives.name_rows(span, list(FORMATS))
    primitives.name_rows(step, list(FORMATS))
    span.set(xscale="log", xlim=(1e-48, 1e42), xlabel="range of numbers (pale: digits are lost)")
    step.set(xscale="log", xlim=(1e-9, 3), xlabel="largest error of rounding (rings: found here)")
    return figure


@experiment(
    "the dtype that comes out of each operation under autocast",
    precision=knob("bf16", "number format of autocast", choices=("fp16", "bf16")),
)
def autocast_types(job: Any, bench: Any) -> None:
    """Write per operation the dtype of its output for an FP32 input and for a 16-bit input."""
    dtype = formats.DTYPES[job.precision]
    short = {formats.FORMATS[name][0]: name for name in STORED}
    full = torch.randn(8, 16, device=bench.device)  # (B, features)
    image = torch.randn(2, 3, 8, 8, device=bench.device)  # (B, channels, h, w)
    with torch.autocast(bench.device.type, dtype=dtype):
        for name, work in operations(bench.device).items():
            came = {}
            for given, kind in (("from fp32", torch.float32), ("from 16 bits", dtype)):
                try:
                    came[given] = short[work(full.to(kind), image.to(kind)).dtype]
                except RuntimeError as error:  # an operation that this device lacks in 16 bits
                    came[given] = f"not possible: {str(error).splitlines()[0][:60]}"
            bench.write("output", op=name, precision=job.precision, values=came)
    # what the forward of a small network keeps for its backward, but weights
    layers = nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()
    model = nn.Sequential(*layers).to(bench.device)
    for name, half in (("fp32", False), (job.precision, True)):
        cast = torch.autocast(bench.device.type, dtype=dtype, enabled=half)
        with flops.kept_for_backward(model) as kept, cast:
            model(torch.randn(4096, 256, device=bench.device))  # (B, features)
        bench.write("kept", precision=name, values={"mib": sum(kept.values()) / 2**20})


def operations(device: torch.device) -> dict[str, Callable]:
    """Return operations by name, functions of (8, 16) features and a (2, 3, 8, 8) image."""
    weight = torch.randn(16, 16, device=device)
    kernel = torch.randn(4, 3, 3, 3, device=device)
    labels, f = torch.zeros(8, dtype=torch.int64, device=device), nn.functional
    return {
        "matmul": lambda x, _: x @ weight.to(x.dtype),
        "linear": lambda x, _: f.linear(x, weight),
        "conv2d": lambda _, image: f.conv2d(image, kernel),
        "add": lambda x, _: x + x,
        "gelu": lambda x, _: f.gelu(x),
        "layer_norm": lambda x, _: f.layer_norm(x, (16,)),
        "softmax": lambda x, _: f.softmax(x, -1),
        "exp": lambda x, _: x.exp(),
        "sum": lambda x, _: x.sum(),
        "cross_entropy": lambda x, _: f.cross_entropy(x, labels),
    }


# Gradients too small for FP16: of a field over a picture (a displacement, in metres: millimetres)
# and a loss that is a mean over all its numbers. d loss / d output = 2 error / count is then about
# 2 * 1e-3 / 2e5 = 1e-8, and FP16 has nothing between 0 and 6e-8.

TOO_HIGH = 2.0**34  # a loss scale that makes the gradients overflow

# name: (format of autocast or None, GradScaler's settings or None, a fixed factor instead)
CASES: dict[str, tuple[str | None, dict[str, float] | None, float]] = {
    "fp32": (None, None, 1.0),
    "fp16, no scaler": ("fp16", None, 1.0),
    "fp16, scaler": ("fp16", {}, 1.0),
    "bf16, no scaler": ("bf16", None, 1.0),
    "fp16, scaler too high": ("fp16", {"init_scale": TOO_HIGH, "growth_interval": 10}, 1.0),
    "fp16, fixed factor": ("fp16", None, TOO_HIGH),
}


@experiment(
    "gradients that vanish in FP16, and the scaler that keeps them",
    px=knob(256, "edge of the picture", unit="px", low=8, high=2048),
    steps=knob(40, "steps of each training", low=2, high=10_000),
)
def underflow(job: Any, bench: Any) -> None:
    """Train the same small network in each case; write what its first gradient came to, and all."""
    # a smooth displacement over a picture, (px^2, 3), of 2 mm; each pixel's features are waves
    torch.manual_seed(0)
    place = torch.linspace(0, 1, job.px)
    grid = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).view(-1, 2)
    x = torch.sin(grid @ (torch.randn(2, 16) * 4))  # (px^2, 16)
    target = 2e-3 * torch.tanh(x @ torch.randn(16, 3))
    x, target = x.to(bench.device), target.to(bench.device)
    for name, (kind, scaling, factor) in CASES.items():
        if kind == "bf16" and (why := formats.why_not("bf16", bench.device)):
            bench.skip(name, why)
            continue
        bench.stage(f"training: {name}")
        values = train(x, target, job.steps, formats.DTYPES.get(kind), scaling, factor)
        bench.write("training", case=name, values=values)


def train(x: Any, target: Any, steps: int, dtype: Any, scaling: Any, factor: float) -> dict:
    """Train one network from the same start; return what is known of every step."""
    torch.manual_seed(0)
    device = x.device.type
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3)).to(x.device)
    nn.init.zeros_(model[2].weight)  # as residual branches often start: from no output
    nn.init.zeros_(model[2].bias)
    optimizer = models.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=scaling is not None, **(scaling or {}))
    cast = torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None)
    known: dict[str, Any] = {"loss": [], "scale": [], "skipped": []}
    for step in range(steps):
        with cast:
            out = model(x)  # (px^2, 3), in 16 bits under autocast
            loss = nn.functional.mse_loss(out.float(), target)
        if step == 0:
            out.register_hook(lambda grad: known.update(gradient(grad)))
        scale = scaler.get_scale()
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)  # not where a gradient is infinite or NaN
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        known["loss"].append(loss.item())
        known["scale"].append(scale)
        known["skipped"].append(scaler.get_scale() < scale)
    return known


def gradient(grad: torch.Tensor) -> dict[str, Any]:
    """Return the share of a gradient that is exactly 0, and the histogram of the others' log2."""
    size = grad.detach().float().abs()
    present = size[(size > 0) & size.isfinite()]
    exponents, counts = present.log2().floor().int().unique(return_counts=True)
    dtype, zeros = str(grad.dtype).removeprefix("torch."), (size == 0).float().mean().item()
    histogram = [exponents.tolist(), (counts / size.numel()).tolist()]
    return {"dtype": dtype, "zeros": zeros, "exponents": histogram}


@underflow.figure
def draw_underflow(measured: Any) -> Any:
    """Draw the gradient's sizes, the loss of every case, and the scale of the case too high."""
    cases = {point.case["case"]: point.values for point in measured.where("training")}
    lost = cases.get("fp16, no scaler", {}).get("zeros", math.nan)
    title = f"in FP16 {lost:.0%} of the gradient becomes 0 without a scaler"
    panels = [(0.34, 1.15), (0.95, 1.6), (0.62, 0.9)]
    figure, (sizes, losses, scales) = page(measured, panels, title=title)
    if "fp32" in cases:
        sizes.bar(*cases["fp32"]["exponents"], width=0.85, color=style.LINES[0], align="edge")
    fp16 = FORMATS["fp16"]
    sizes.axvspan(-60, math.log2(fp16.smallest) - 1, color=style.ALARM, alpha=0.12, lw=0)
    sizes.axvspan(fp16.lowest, 2, color=style.COMPUTE, alpha=0.12, lw=0)
    sizes.set(xlim=(-50, 2), ylabel="share", xlabel="log2 of the first gradient at the output, in "
              "fp32 (red: becomes 0 in fp16; green: keeps all digits)")  # fmt: skip
    series = []
    for (name, values), colour in zip(cases.items(), style.LINES, strict=False):
        loss = values["loss"]
        name += " (ends in NaN)" * (None in loss)
        dash = "--" if "no scaler" in name else "-"
        series.append(primitives.Series(name, range(len(loss)), loss, colour, dash, ""))
    primitives.lines(losses, series, "step", "loss (m²)", log="y")
    high = cases.get("fp16, scaler too high", {"scale": [], "skipped": []})
    heights = [math.log2(scale) for scale in high["scale"]]
    skipped = [i for i, was in enumerate(high["skipped"]) if was]
    scales.step(range(len(heights)), heights, where="post", color=style.LINES[4], lw=1.4)
    scales.plot(skipped, [heights[i] for i in skipped], "x", color=style.ALARM, ms=6, mew=1.6)
    scales.set(ylabel="log2 of the scale",
               xlabel='step of the case "scaler too high" (×: the update was skipped)')  # fmt: skip
    return figure
