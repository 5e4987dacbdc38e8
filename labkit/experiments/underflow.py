"""Gradients too small for FP16: made to vanish, and kept by a scaler.

The task is the everyday one: a field over a picture (a displacement, in metres: millimetres) and
a loss that is a mean over all its numbers. d loss / d output = 2 error / count is then about
2 * 1e-3 / 2e5 = 1e-8, and FP16 has nothing between 0 and 6e-8.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from labkit.experiments.measure import page, primitives, style
from labkit.experiments.number_formats import FP16
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, nn, formats = Later("torch"), Later("torch.nn"), Later("labkit.bench.formats")

TOO_HIGH = 2.0**34  # a loss scale that makes the gradients overflow

# (name, format of autocast or None, GradScaler's settings or None, a fixed factor instead)
CASES: tuple[tuple[str, str | None, dict[str, float] | None, float], ...] = (
    ("fp32", None, None, 1.0),
    ("fp16, no scaler", "fp16", None, 1.0),
    ("fp16, scaler", "fp16", {}, 1.0),
    ("bf16, no scaler", "bf16", None, 1.0),
    ("fp16, scaler too high", "fp16", {"init_scale": TOO_HIGH, "growth_interval": 10}, 1.0),
    ("fp16, fixed factor", "fp16", None, TOO_HIGH),
)


@experiment(
    "gradients that vanish in FP16, and the scaler that keeps them",
    px=knob(256, "edge of the picture", unit="px", low=8, high=2048),
    steps=knob(40, "steps of each training", low=2, high=10_000),
)
def underflow(job: Any, bench: Any) -> None:
    """Train the same small network in each case and write what its gradients came to.

    Values: `loss` per step; `zeros`, the share of the gradient at the output that is exactly 0
    in the first step; `scale` and `skipped` per step, where there is a scaler. Of the FP32 case
    also `exponents`, the histogram of log2 of that gradient.
    """
    x, target = displacement(job.px, bench.device)
    for name, format_, scaling, factor in CASES:
        why = formats.why_not("bf16", bench.device) if format_ == "bf16" else None
        if why:
            bench.skip(name, why)
            continue
        bench.stage(f"training: {name}")
        dtype = formats.DTYPES[format_] if format_ else None
        values = train(x, target, dtype, scaling, factor, job.steps)
        bench.write("training", case=name, values=values)


def displacement(px: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a smooth displacement over a px x px picture, in metres, of at most 2 mm.

    The features of every pixel, (px^2, 16), are waves over the picture; the target is (px^2, 3).
    """
    generator = torch.Generator().manual_seed(0)
    place = torch.linspace(0, 1, px)
    grid = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).view(-1, 2)
    waves = torch.randn(2, 16, generator=generator) * 4
    features = torch.sin(grid @ waves)  # (px^2, 16)
    mix = torch.randn(16, 3, generator=generator)
    target = 2e-3 * torch.tanh(features @ mix)  # (px^2, 3)
    return features.to(device), target.to(device)


def train(
    x: torch.Tensor, target: torch.Tensor, dtype: torch.dtype | None,
    scaling: dict[str, float] | None, factor: float, steps: int,
) -> dict[str, Any]:  # fmt: skip
    """Train one network from the same start; return what is known of every step."""
    torch.manual_seed(0)
    device = x.device.type
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3)).to(x.device)
    nn.init.zeros_(model[2].weight)  # as residual branches often start: from no output
    nn.init.zeros_(model[2].bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=scaling is not None, **(scaling or {}))
    cast = torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext()
    known: dict[str, Any] = {"loss": [], "scale": [], "skipped": []}
    started = time.perf_counter()
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
        if scaling is not None:
            known["scale"].append(scale)
            known["skipped"].append(scaler.get_scale() < scale)
    return known | {"seconds": time.perf_counter() - started}


def gradient(grad: torch.Tensor) -> dict[str, Any]:
    """Describe the gradient at the output: its zeros, and where its other values lie."""
    size = grad.detach().float().abs()
    present = size[(size > 0) & size.isfinite()]
    exponents, counts = present.log2().floor().int().unique(return_counts=True)
    return {
        "dtype": str(grad.dtype).removeprefix("torch."),
        "zeros": (size == 0).float().mean().item(),
        "infinite": (~size.isfinite()).float().mean().item(),
        "exponents": [exponents.tolist(), (counts / size.numel()).tolist()],
    }


@underflow.figure
def draw(measured: Any) -> Any:
    """Draw the gradient's sizes, the loss of every case, and the scale of the case too high."""
    cases = {point.case["case"]: point.values for point in measured.where("training")}
    lost = cases.get("fp16, no scaler", {}).get("zeros")
    title = "" if lost is None else f"in FP16 {lost:.0%} of the gradient becomes 0 without a scaler"
    figure, (sizes, losses, scales) = page(
        measured, [(0.34, 1.15), (0.95, 1.6), (0.62, 0.9)], title=title
    )
    if "fp32" in cases:
        sizes.bar(*cases["fp32"]["exponents"], width=0.85, color=style.LINES[0], align="edge")
    smallest, normal = math.log2(FP16.smallest), math.log2(FP16.smallest_normal)
    sizes.axvspan(-60, smallest - 1, color=style.ALARM, alpha=0.12, lw=0)
    sizes.axvline(normal, color="#555555", lw=1, ls=":")
    sizes.set(ylim=(0, 1.25 * sizes.get_ylim()[1]), xlim=(-50, 2), ylabel="share",
              xlabel="log2 of the gradient at the output, first step, in fp32")  # fmt: skip
    for x, side, words in ((smallest - 1.5, "right", "becomes 0 in fp16"),
                           ((smallest + normal) / 2, "center", "digits lost"),
                           (normal + 0.4, "left", "all digits in fp16")):  # fmt: skip
        sizes.text(x, 0.97, words, ha=side, va="top", transform=sizes.get_xaxis_transform())
    series = []
    for (name, values), colour in zip(cases.items(), style.LINES, strict=False):
        loss = [math.nan if value is None else value for value in values["loss"]]
        name += " (ends in NaN)" * any(map(math.isnan, loss))
        dash = "--" if "no scaler" in name else "-"
        series.append(primitives.Series(name, range(len(loss)), loss, colour, dash, ""))
        skipped = values.get("skipped") or []
        if any(skipped):
            heights = [math.log2(value) for value in values["scale"]]
            scales.step(range(len(heights)), heights, where="post", color=style.LINES[4], lw=1.4)
            at = [step for step, was in enumerate(skipped) if was]
            scales.plot(at, [heights[i] for i in at], "x", color=style.ALARM, ms=6, mew=1.6)
    primitives.lines(losses, series, "step", "loss (m²)", log="y")
    scales.set(ylabel="log2 of the scale",
               xlabel='step of the case "scaler too high" (×: the update was skipped)')  # fmt: skip
    return figure
