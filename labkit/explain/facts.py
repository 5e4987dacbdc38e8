"""What the rules of the diagnosis look at: the numbers of one run, or of one profiler trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.explain.step_breakdown import CLASSES, split_steps

PAUSE = 1.5  # a step's compute is a pause where it is longer than this many medians
TOP_STEPS = 0.1  # the share of steps looked at for stalls


@dataclass(frozen=True)
class Facts:
    """One run or trace in numbers; shares are of wall time, 0 to 1, None where not measured.

    Attributes:
        kind: "cpu" or "gpu": what the device is.
        source: Where the shares come from, in words.
        shares: By class of `step_breakdown.CLASSES`; they add up to 1.
        pauses: Compute time beyond `PAUSE` medians, in single steps.
        stolen: Compute time in which the CPU did not run the model's own thread.
        stalls: Share of the waiting that falls into the worst tenth of the steps.
        compute_us: Compute of the average step, µs.
        xray: The inside of the compute, as the bench's x-ray saw it; empty where there is none.
        trace: The `Breakdown` of a profiler trace: of the x-ray's on a GPU, or the one diagnosed.
        knobs: The pipeline's settings.
        cores: CPU cores the run may use.
    """

    kind: str
    source: str
    shares: dict[str, float]
    pauses: float = 0.0
    stolen: float | None = None
    stalls: float = 0.0
    compute_us: float | None = None
    trace: Any = None
    xray: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, Any] = field(default_factory=dict)
    cores: int | None = None


class Evidence:
    """The measured steps of a run, from which facts can be drawn, and drawn again resampled."""

    def __init__(self, run: Any):
        """Read the stamps, thread times, x-ray and settings of `run`."""
        first = max(run.warmup - 1, 0)
        self.matrix = split_steps(run.stamps[first:])  # (steps, classes), s
        self.own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped
        self.kind = run.machine.kind
        self.xray = run.xray_facts or {}
        self.trace = run.xray if self.kind == "gpu" else None
        self.knobs = run.pipeline.to_dict()
        self.cores = run.machine.cpu_cores

    def __len__(self) -> int:
        return len(self.matrix)

    def facts(self, rows: np.ndarray | None = None) -> Facts:
        """Return the facts of all steps, or of the given rows (a resampled run)."""
        matrix = self.matrix if rows is None else self.matrix[rows]
        own = self.own if rows is None else self.own[rows]
        total = float(matrix.sum())
        compute, wait = matrix[:, CLASSES.index("compute")], matrix[:, CLASSES.index("wait")]
        known = self.kind == "cpu" and len(own) == len(compute) and np.isfinite(own).all()
        stolen = None
        if known:
            stolen = float(np.maximum(compute - own, 0).sum() / total)
            compute = np.minimum(own, compute)  # a pause is ours only where we were running
        return Facts(
            kind=self.kind,
            source=f"step stamps, {len(matrix)} steps",
            shares=dict(zip(CLASSES, (matrix.sum(axis=0) / total).tolist(), strict=True)),
            pauses=_beyond(compute, PAUSE * float(np.median(compute))) / total,
            stolen=stolen,
            stalls=_in_worst(wait),
            compute_us=float(matrix[:, CLASSES.index("compute")].mean() * 1e6),
            trace=self.trace,
            xray=self.xray,
            knobs=self.knobs,
            cores=self.cores,
        )


def of_trace(breakdown: Any) -> Facts:
    """Return the facts of a profiler trace, from its `Breakdown`."""
    s = breakdown.shares
    on_gpu = breakdown.device_kind == "gpu"
    shares = {
        "wait": s["dataloader"],
        "copy": s["memcpy"] + s["memset"],
        "compute": s["kernel"] if on_gpu else s["cpu_exec"],
        "launch": s["runtime"] + (s["cpu_exec"] if on_gpu else 0.0) + s["other"],
        "other": s["communication"],
    }
    return Facts(
        kind=breakdown.device_kind,
        source=f"profiler trace {breakdown.source}, {breakdown.steps} steps",
        shares=shares,
        compute_us=breakdown.step_us * shares["compute"],
        trace=breakdown,
    )


def _beyond(times: np.ndarray, limit: float) -> float:
    return float((times - limit)[times > limit].sum())


def _in_worst(wait: np.ndarray) -> float:
    """Return the share of all waiting that falls into the worst tenth of the steps."""
    worst = np.sort(wait)[-max(1, round(TOP_STEPS * len(wait))) :]
    return float(worst.sum() / wait.sum()) if wait.sum() > 0 else 0.0
