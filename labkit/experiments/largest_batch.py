"""`lk.largest_batch`: a search whose every try is a process of its own.

An out-of-memory error ends that try and nothing else. What fits is tried again, for more steps, in
a fresh process, before it is believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.experiments.measure import display, primitives, progress_line, run_header, style
from labkit.results.launch import launch
from labkit.results.machine import Machine
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.spec import KNOBS, Experiment, Pipeline, experiment, knob
from labkit.wiring import Later

machine, loop = Later("labkit.bench.machine"), Later("labkit.bench.loop")
model_size, config = Later("labkit.bench.model_size"), Later("labkit.bench.resolve_config")

STEPS, CONFIRMING_STEPS = 3, 12  # the optimizer's state is there from the second step on
LEAP = 8  # at most so many times the last size that fitted: the line is no law beyond
FINE = 32  # good enough: a gap of a 32nd of what fits
KILLED = "SIGKILL"  # the system's own out-of-memory killer
GIB = 2**30


# -- one try, in the bench -------------------------------------------------------------------------


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
    """Train `steps` steps of `pipeline` at `batch_size` under a limit; write whether it went.

    Batches are random images: no loader, no files. A refused allocation is an answer here, no
    failure; every other error is one.
    """
    limit_bytes = int((job.limit_gib or 0) * GIB)
    limit_bytes = limit_bytes or machine.default_limit_bytes(bench.device)
    size = {"batch_size": job.batch_size}
    if job.pipeline:
        plan, _ = config.resolve_config({**job.pipeline, **size}, bench.device)
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


# -- the search ------------------------------------------------------------------------------------


def largest_batch(
    pipeline: Pipeline | None = None,
    *,
    limit_gib: float | None = None,
    margin: float = 0.1,
    multiple: int = 8,
    most: int = 16_384,
    **knobs: Any,
) -> LargestBatch:
    """Find the largest batch that trains within a limit on memory, each try in its own process.

    On a GPU the limit is what is free on the card, unless `limit_gib` says less; on a CPU it is on
    the training process's own memory, beyond what PyTorch itself takes, and stated: 0.5 GiB unless
    `limit_gib` says otherwise. What is found was trained with again, for more steps, in a fresh
    process, in which it may use the margin too. The loader's memory is not in it.

    Args:
        pipeline: What to train; its `batch_size` is where the search begins.
        limit_gib: The limit, GiB; None as above.
        margin: Share of the limit that the first steps leave free, 0 to 0.99.
        multiple: Sizes from this on are multiples of it.
        most: The largest size to try.
        **knobs: Changes to `pipeline`.

    Raises:
        ValueError: A bad setting, before anything starts.
        RuntimeError: A try that failed for another reason than memory.
        KeyboardInterrupt: While searching; that try has been stopped, and what was tried before
            is in `lk.largest_batch.last`.
    """
    pipeline = (pipeline or Pipeline()).but(**knobs)
    batch_fits.knobs["margin"].check(margin)
    batch_fits.knobs["limit_gib"].check(limit_gib)
    if multiple < 1:
        raise ValueError(f"multiple={multiple!r} is not allowed: use a whole number from 1.")
    KNOBS["batch_size"].check(most)
    search = largest_batch.last = LargestBatch(pipeline, margin, multiple, most)  # for an interrupt
    shown = display.Display()
    try:
        while (plan := search.next) is not None:
            size, steps = plan
            # what grows until it is confirmed is the margin's to take
            params = {"margin": 0.0 if steps == CONFIRMING_STEPS else margin, "steps": steps}
            params |= {"pipeline": pipeline.to_dict(), "batch_size": size, "limit_gib": limit_gib}
            started = launch(Experiment("batch_fits", params, pipeline.device))
            search.take(started.wait(each=lambda run: shown.line(progress_line(run))))
    finally:
        drawn = display.in_notebook() and any(t.peak_gib for t in search.tried)
        shown.final(search.line, display.StaticFigure.drawn(search.plot()) if drawn else None)
    return search


@dataclass(frozen=True)
class Try:
    """One size that was tried: whether it trained for `steps` steps, and what it took, GiB."""

    batch_size: int
    fits: bool
    steps: int
    peak_gib: float | None = None
    why: str | None = None  # it did not fit
    confirming: bool = False


class LargestBatch(Result):
    """What `lk.largest_batch` found: `.batch_size`, `.tried`, and under which limit."""

    def __init__(self, pipeline: Pipeline, margin: float, multiple: int, most: int):
        self.pipeline, self.margin, self.multiple, self.most = pipeline, margin, multiple, most
        self.tried: list[Try] = []
        self.limit_gib: float | None = None  # known from the first try on
        self.how, self.machine = "", Machine.from_dict({})

    @property
    def fitting(self) -> int:
        """The largest size that fitted and lies below every size that did not; 0 without any."""
        sizes = (t.batch_size for t in self.tried if t.fits)
        return max((s for s in sizes if self.refused is None or s < self.refused), default=0)

    @property
    def refused(self) -> int | None:
        """The smallest size that did not fit."""
        return min((t.batch_size for t in self.tried if not t.fits), default=None)

    @property
    def batch_size(self) -> int | None:
        """The largest size that fitted twice, the second time for more steps; None: there is none.

        As long as nothing was confirmed there is none either.
        """
        low = self.fitting
        twice = (t.batch_size for t in self.tried if t.fits and t.confirming)
        return max((size for size in twice if size <= low), default=None)

    @property
    def next(self) -> tuple[int, int] | None:
        """The size to try next and for how many steps; None where the search is over."""
        size = self._next_size()
        if size is not None:
            return size, STEPS
        return (self.fitting, CONFIRMING_STEPS) if self.fitting > (self.batch_size or 0) else None

    def _next_size(self) -> int | None:
        """Return the size to try next, or None where the bracket is small enough.

        Upwards it leaps to where a line through the measured peaks meets the limit, or doubles.
        Between a size that fits and one that does not, it tries by turns what the line says and the
        middle: a line that misleads costs at most as many tries again as plain bisection.
        """
        low, high, line = self.fitting, self.refused, self._line_meets()
        if not self.tried:
            return min(self.pipeline.batch_size, self.most)
        if high is None:
            size = min(line, LEAP * low) if line >= low + self.multiple else 2 * low
            size = None if low >= self.most else min(self.most, size)
        else:
            unit = 1 if high <= self.multiple else self.multiple
            if high - low <= max(unit, low // FINE):
                return None
            bracketed = len(self.tried) - [t.fits for t in self.tried].index(False)
            size = line if line and bracketed % 2 else (low + high) // 2
            size = min(max(size, low + unit), high - 1)
        even = size and size // self.multiple * self.multiple
        return even if even and even > low else size

    def _line_meets(self) -> int:
        """Return where the line through the two largest measured peaks meets the limit, or 0."""
        peaks = {t.batch_size: t.peak_gib for t in self.tried if t.fits and t.peak_gib}
        (b0, p0), (b1, p1) = [(0, 0.0), (0, 0.0), *sorted(peaks.items())][-2:]
        if len(peaks) < 2 or p1 <= p0:
            return 0
        meets = b1 + (self.limit_gib * (1 - self.margin) - p1) * (b1 - b0) / (p1 - p0)
        return int(min(max(meets, 0), KNOBS["batch_size"].high))  # it may be infinite

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
        if self.batch_size is None:
            found = "not even one sample fits" if self.next is None else "search not over"
        else:
            most = " (the most that was asked for)" * (self.batch_size == self.most)
            found = f"largest batch {self.batch_size}"
            found += most if self.next is None else " so far: search not over"
        return f"{found} in {self.limit_gib:.3g} GiB less a margin of {self.margin:.0%}: {self.how}"

    def table(self) -> Table:
        """Return what was tried, in order."""
        rows = []
        for t in self.tried:
            largest = t.confirming and t.batch_size == self.batch_size
            notes = filter(None, ["checked again" * t.confirming, "largest" * largest, t.why])
            rows.append((t.batch_size, t.steps, t.peak_gib and f"{t.peak_gib:.3f}",
                         "yes" if t.fits else "no", ", ".join(notes)[:90]))  # fmt: skip
        head = ("batch", "steps", "peak GiB", "fits", "")
        return Table(rows, head, foot=[self.line], left=(4,))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "batch_size": self.batch_size, "limit_gib": self.limit_gib, "margin": self.margin,
            "how": self.how, "machine": self.machine.to_dict(),
            "pipeline": self.pipeline.to_dict(), "tried": [vars(t) for t in self.tried],
        }  # fmt: skip

    def plot(self) -> Any:
        """Draw memory against batch size as a matplotlib Figure."""
        return style.our_style(draw)(self)


def draw(search: LargestBatch) -> Any:
    """Draw the peak of every try against its batch: dots that fit, crosses that were refused."""
    knobs = ", ".join(f"{n}={v!r}" for n, v in search.pipeline.changed().items())
    refused = next((f"; refused at {t.batch_size}: {t.why}" for t in search.tried if t.why), "")
    lines = [(search.line, run_header.BOLD), ((knobs or "the default pipeline") + refused, {}),
             (search.machine.line, run_header.GREY)]  # fmt: skip
    figure, (axes,) = style.page(lines, [(0.24, 2.3)])
    limit, margin = search.limit_gib or 0, f"margin of {search.margin:.0%}"
    inner, dot = limit * (1 - search.margin), {"color": style.COMPUTE, "marker": "o", "ls": ""}
    looks = {
        "fits": dot | {"markerfacecolor": "white"}, "fits, checked again": dot,
        "refused": {"color": style.ALARM, "marker": "x", "ls": "", "mew": 2},
        "limit": {"color": style.ALARM}, margin: {"color": "#F3D9CC", "linewidth": 6},
    }  # fmt: skip
    axes.axhspan(inner, limit, color="#F3D9CC", linewidth=0)
    axes.axhline(limit, color=style.ALARM, linewidth=1.3)
    for t in search.tried:
        look = "refused" if not t.fits else "fits, checked again" if t.confirming else "fits"
        peak = inner if not t.fits else t.peak_gib
        axes.plot(t.batch_size, float("nan") if peak is None else peak, zorder=3, **looks[look])
    axes.set_ylim(0, limit * 1.12 or 1)
    axes.set_xlim(0, max((t.batch_size for t in search.tried), default=1) * 1.08)
    axes.set_xlabel("batch size, samples")
    axes.set_ylabel("peak memory, GiB")
    primitives.legend(axes, looks)
    return figure
