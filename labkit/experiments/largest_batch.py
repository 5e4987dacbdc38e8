"""`lk.largest_batch`: a search whose every try is a process of its own, so that one may fail.

What fits is tried again, for more steps, in a fresh process, before it is believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.experiments.measure import (
    display,
    loop,
    machine,
    model_size,
    primitives,
    progress_line,
    resolve_config,
    run_header,
    style,
)
from labkit.results.launch import launch
from labkit.results.machine import Machine
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.spec import KNOBS, Experiment, Pipeline, experiment, knob

STEPS, CONFIRMING_STEPS = 3, 12  # the optimizer's state is there from the second step on
LEAP, MULTIPLE = 4, 8  # each size is so many times the last that fitted; a multiple of that
FINE = 16  # good enough: a gap of a 16th of what fits
KILLED = "SIGKILL"  # the system's own out-of-memory killer
GIB, MOST = 2**30, int(KNOBS["batch_size"].high)


@experiment(
    "whether a pipeline can train at one batch size within a limit on memory",
    pipeline=knob({}, "knobs of the pipeline; empty: a small CNN's"),
    batch_size=knob(16, "samples in a batch", low=1, high=16_384),
    steps=knob(STEPS, "steps to train", low=1, high=10_000),
    limit_gib=knob(None, "limit on memory", kind="float", unit="GiB", low=1e-6, high=1 << 20,
                   auto="what is free on the card; on a CPU 0.5 GiB"),
    margin=knob(0.1, "share of the limit that is left free", low=0, high=0.99),
)  # fmt: skip
def batch_fits(job: Any, bench: Any) -> None:
    """Train `steps` steps of `pipeline` on random images under a limit; write whether it went."""
    limit_bytes = int((job.limit_gib or 0) * GIB) or machine.default_limit_bytes(bench.device)
    size = {"batch_size": job.batch_size}
    if job.pipeline:
        plan, _ = resolve_config.resolve_config({**job.pipeline, **size}, bench.device)
    else:
        plan = model_size.plain_job(bench.device, **size)
    limit = machine.impose(bench.device, int(limit_bytes * (1 - job.margin)))
    done, why = 0, None
    try:
        trainer = loop.Trainer(plan, bench.device)
        images, labels = model_size.noise_batch(plan)
        for done in range(job.steps):
            bench.stage(f"batch {job.batch_size}: step", done, job.steps)
            trainer.compute(*trainer.to_device(images, labels), update=True)
            bench.synchronize()
            limit.check()
        done = job.steps
    except (RuntimeError, MemoryError) as error:
        if not machine.refused(error):
            raise
        why = machine.in_words(error)
    limit.lift()
    bench.write("fits", batch_size=job.batch_size, values={
        "fits": why is None, "why": why, "steps": done, "peak_bytes": limit.used(),
        "limit_bytes": limit_bytes, "margin": job.margin, "how": limit.how,
    })  # fmt: skip


def largest_batch(
    pipeline: Pipeline | None = None, *, limit_gib: float | None = None, margin: float = 0.1,
    **knobs: Any,
) -> LargestBatch:  # fmt: skip
    """Find the largest batch that trains within a limit on memory, each try in its own process.

    The search begins at the batch size of `pipeline` with `knobs` changed. `limit_gib` is by
    default what is free on the card, or 0.5 GiB of a CPU's memory beyond PyTorch's own; the first
    steps leave `margin` of it free, 0 to 0.99. An interrupt leaves what was tried in
    `lk.largest_batch.last`. Raises ValueError for a bad setting before anything starts,
    RuntimeError where a try failed for another reason than memory.
    """
    pipeline = (pipeline or Pipeline()).but(**knobs)
    batch_fits.knobs["margin"].check(margin)
    batch_fits.knobs["limit_gib"].check(limit_gib)
    search = largest_batch.last = LargestBatch(pipeline, margin)  # for an interrupt
    shown = display.Display()
    try:
        while (plan := search.next) is not None:
            size, steps = plan
            # what grows until it is confirmed is the margin's to take
            params = {"margin": 0.0 if steps == CONFIRMING_STEPS else margin, "steps": steps}
            params |= {"pipeline": pipeline.to_dict(), "batch_size": size, "limit_gib": limit_gib}
            started = launch(Experiment("batch_fits", params, pipeline.device))
            search.take(started.wait_or_raise(each=lambda run: shown.line(progress_line(run))))
    finally:
        drawn = display.in_notebook() and search.tried
        shown.final(search.line, display.StaticFigure.drawn(search.plot()) if drawn else None)
    return search


@dataclass(frozen=True)
class Try:
    """One size that was tried: whether it trained for `steps` steps, and what it took, GiB."""

    batch_size: int
    fits: bool
    steps: int
    peak_gib: float | None = None
    why: str | None = None  # what refused it
    confirming: bool = False  # the second time, for more steps


class LargestBatch(Result):
    """The search and its result: what was tried, in order, and the largest batch that fits."""

    def __init__(self, pipeline: Pipeline, margin: float):
        self.pipeline, self.margin = pipeline, margin
        self.tried: list[Try] = []
        self.limit_gib: float | None = None  # known from the first try on
        self.how, self.machine = "", Machine.from_dict({})

    def _bracket(self, confirmed: bool = False) -> tuple[int, int | None]:
        """Return the largest size that fitted, or 0, below the smallest refused one, or None."""
        high = min((t.batch_size for t in self.tried if not t.fits), default=None)
        sizes = [t.batch_size for t in self.tried if t.fits and t.confirming >= confirmed]
        return max((s for s in sizes if high is None or s < high), default=0), high

    @property
    def batch_size(self) -> int | None:
        """The largest size that fitted twice, the second time for more steps; None without one."""
        return self._bracket(confirmed=True)[0] or None

    @property
    def next(self) -> tuple[int, int] | None:
        """The size to try next and for how many steps; None where the search is over."""
        low, high = self._bracket()
        if not self.tried:
            return self.pipeline.batch_size, STEPS
        if high is None:
            size = min(LEAP * low, MOST)
        else:
            enough = max(1 if high <= MULTIPLE else MULTIPLE, low // FINE)
            size = (low + high) // 2 if high - low > enough else low
        if size > low:
            even = size // MULTIPLE * MULTIPLE
            return (even if even > low else size), STEPS
        return (low, CONFIRMING_STEPS) if low > (self.batch_size or 0) else None

    def take(self, measured: Measurements) -> None:
        """Add the try that `measured` tells of; raise RuntimeError where it failed otherwise."""
        size, steps = measured.params["batch_size"], measured.params["steps"]
        confirming, self.machine = steps == CONFIRMING_STEPS, measured.machine
        if measured.points:
            found = measured.points[-1].values
            self.limit_gib, self.how = found["limit_bytes"] / GIB, found["how"]
            peak_gib = found["peak_bytes"] and found["peak_bytes"] / GIB
            told = Try(size, found["fits"], found["steps"], peak_gib, found["why"], confirming)
        elif measured.outcome == "stopped":
            raise KeyboardInterrupt
        elif KILLED in (measured.error or ""):
            told = Try(size, False, 0, None, measured.error, confirming)
        else:
            raise RuntimeError(f"batch_size={size}: {measured.error or measured.outcome}")
        self.tried.append(told)

    @property
    def line(self) -> str:
        """What was found, and under which limit, in words."""
        if self.limit_gib is None:
            return "nothing was tried to its end"
        found = f"largest batch {self.batch_size}" if self.batch_size else "no sample fits"
        found = f"search not over: {found} so far" if self.next else found
        return f"{found} in {self.limit_gib:.3g} GiB less a margin of {self.margin:.0%}: {self.how}"

    def table(self) -> Table:
        """Return what was tried, in order."""
        rows = []
        for t in self.tried:
            fits, notes = "yes" if t.fits else "no", ["checked again" * t.confirming, t.why]
            peak, note = t.peak_gib and f"{t.peak_gib:.3f}", ", ".join(filter(None, notes))[:90]
            rows.append((t.batch_size, t.steps, peak, fits, note))
        return Table(rows, ("batch", "steps", "peak GiB", "fits", ""), foot=[self.line], left=(4,))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        tried, here = [vars(t) for t in self.tried], self.machine.to_dict()
        return {"batch_size": self.batch_size, "limit_gib": self.limit_gib, "how": self.how,
                "tried": tried, "pipeline": self.pipeline.to_dict(), "machine": here}  # fmt: skip

    def plot(self) -> Any:
        """Draw memory against batch size as a matplotlib Figure."""
        return style.our_style(draw)(self)


def draw(search: LargestBatch) -> Any:
    """Draw the peak of every try against its batch: dots that fit, crosses that were refused."""
    found, _, how = search.line.partition(": ")
    lines = [(found, run_header.BOLD), (how, {}), (repr(search.pipeline), run_header.GREY),
             (search.machine.line, run_header.GREY)]  # fmt: skip
    figure, (axes,) = style.page(lines, [(0.48, 2.3)])  # its legend has two rows
    limit, dot = search.limit_gib or 0, {"color": style.COMPUTE, "marker": "o", "ls": ""}
    inner = limit * (1 - search.margin)
    looks = {
        "fits": dot | {"mfc": "white"}, "fits, checked again": dot,
        "refused": {"color": style.ALARM, "marker": "x", "ls": "", "mew": 2},
        "limit, less its margin": {"color": style.ALARM, "lw": 1.3},
    }  # fmt: skip
    for name, of in zip(looks, ((True, False), (True, True), (False, False)), strict=False):
        tries = [t for t in search.tried if (t.fits, t.confirming and t.fits) == of]
        peaks = [t.peak_gib if t.fits else inner for t in tries]
        axes.plot([t.batch_size for t in tries], np.array(peaks, float), zorder=3, **looks[name])
    axes.axhspan(inner, limit, color="#F3D9CC", linewidth=0)
    axes.axhline(limit, color=style.ALARM, linewidth=1.3)
    axes.set(xlim=(0, None), ylim=(0, limit * 1.12 or 1))
    axes.set(xlabel="batch size, samples", ylabel="peak memory, GiB")
    primitives.legend(axes, looks)
    return figure
