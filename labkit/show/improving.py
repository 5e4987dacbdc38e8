"""`lk.improve`: the autopilot at work, its ladder as it grows, and what to type at its end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from labkit.results.result import Table, but
from labkit.results.script import Script, changed_lines, loader_call, script
from labkit.show.display import Display
from labkit.show.ladder import Ladder
from labkit.show.run_header import delays_of, machine_lines
from labkit.show.running import teller
from labkit.spec import Pipeline
from labkit.tuner.improve import Climb, Rung
from labkit.tuner.job import improver

CELL = 90  # characters: errors can be long


class Improvement(Ladder):
    """The autopilot's ladder: what it kept are its steps, and `tried` is every rung.

    `changes` are the knobs to set, `speedup` what they bring, `stopped` why it ended, `snippet` the
    settings as plain PyTorch.
    """

    def __init__(self, climb: Climb, name: str, start: Pipeline | None):
        super().__init__()
        self.climb, self.name, self.start = climb, name, start

    tried = property(lambda self: tuple(self.climb.rungs), doc="Every Rung, also what failed.")
    changes = property(lambda self: self.climb.changes, doc="{knob: value}; {}: nothing gained.")
    speedup = property(lambda self: self.climb.speedup, doc="Throughput over the start's.")
    stopped = property(lambda self: self.climb.stopped, doc="Why it ended.")
    verdict = property(lambda self: self.climb.verdict, doc="The Diagnosis of the best.")

    @property
    def rungs(self) -> list[Any]:
        """The kept steps; each was measured until it was beyond the noise."""
        return [rung._replace(null=False) for rung in super().rungs]

    @property
    def pipeline(self) -> Pipeline | None:
        """The best pipeline; None of the reader's own data."""
        return self.start and self.start.but(**self.changes)

    @property
    def snippet(self) -> str:
        """The settings as plain PyTorch."""
        knobs = {**self.climb.start, "dataset": None}
        lines = changed_lines(knobs, knobs | self.changes).rstrip("\n")
        return lines or f"loader = {loader_call(knobs)}"

    def script(self) -> Script:
        """Return the best pipeline as a whole script; of data of your own, the lines to change."""
        return script(self.pipeline) if self.pipeline else Script(f"{self.snippet}\n")

    @property
    def headline(self) -> str:
        """The result in one line."""
        climb, best = self.climb, self.climb.kept[-1:]
        if not best or not best[0].rate:
            return f"improve({self.name}): nothing measured yet"
        rate = f"{best[0].rate:,.0f} samples/s"
        if not self.changes:
            healthy = self.verdict and self.verdict.bottleneck == "compute"
            said = f"nothing {'to change' if healthy else 'was changed'}, {rate}"
        else:
            said = f"{self.speedup:.2f}x the start, {rate}"
        return f"improve({self.name}): {said}; {climb.stopped or 'going on'}"

    def grow(self) -> None:
        """Take in what has been kept."""
        self.runs = {rung.what: rung.runs[-1] for rung in self.climb.kept}

    def table(self, now: str = "") -> Table:
        """Return every rung, also what was not kept; below, what ended it and what to type."""
        climb, rows = self.climb, []
        for rung in climb.rungs:
            hope, losses = rung.expected, rung.losses
            rows.append((
                rung.finding or None, rung.what,
                hope and f"{hope[0]:.2f}x ({hope[1]:.2f} to {hope[2]:.2f})",
                rung.rate and f"{rung.rate:,.0f}", rung.gain and f"{rung.gain:.2f}x",
                None if losses is None else f"{losses:+.1%}", rung.said[:CELL],
            ))  # fmt: skip
        head = ("on top", "change", "expected", "samples/s", "gain", "losses", "")
        foot = [now] if now else [f"not tried: {k}: {why}" for k, why in climb.left_out.items()]
        if climb.stopped and not now:
            if climb.verdict and climb.verdict.bottleneck != "compute":
                foot.append(f"left: {climb.verdict.advice}")
            runs = sum(len(rung.runs) for rung in climb.rungs)
            foot += [f"{runs} runs, {climb.seconds:.0f} s", *self.snippet.split("\n")]
        runs = list(self.runs.values())
        foot += [*(text for text, _ in machine_lines(runs)), delays_of(runs)] if runs else []
        kept = [place for place, rung in enumerate(climb.rungs) if rung.kept]
        copies = {"PyTorch": self.snippet} if climb.stopped else {}
        if climb.stopped and self.start:
            copies["labkit"] = but(self.changes)
        left = (0, 1, 2, 6)
        return Table(rows, head, self.headline, foot, left=left, bold=kept, copies=copies)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        climb = self.climb
        names = ("changes", "speedup", "stopped", "snippet", "name")
        return {
            **{name: getattr(self, name) for name in names},
            "start": climb.start, "best": climb.knobs, "interrupted": climb.interrupted,
            "rungs": [rung.to_dict() for rung in climb.rungs], "not_tried": climb.left_out,
            "seconds": climb.seconds, "diagnosis": climb.verdict and climb.verdict.to_dict(),
            "runs": sum(len(rung.runs) for rung in climb.rungs),
        }  # fmt: skip


def improve(
    pipeline_or_dataset: Any = None,
    *,
    step: Any = None,
    model: Any = None,
    optimizer: Any = None,
    collate_fn: Any = None,
    batch_size: int | None = None,
    may_change: Collection[str] = (),
    seconds: float | None = None,
) -> Improvement:
    """Fix what is on top, measure, ask again, until nothing is worth it; show every step.

    A change is kept only where it gains beyond the noise and the losses stay the same. At most 12
    runs. An interrupt ends it: the best so far is returned.

    Args:
        pipeline_or_dataset: A `labkit.Pipeline` (the default one, if left out); or your own dataset
            or DataLoader; or "module:function", a function that returns the dataset.
        step: Your training step: `step(batch)`, or `step(model, optimizer, batch)`; it copies the
            batch to its device, and returns the loss. As an object or "module:name", as all parts.
        model: The step's model, or a function that makes it: for compile and channels_last.
        optimizer: Its optimizer, or a function of the parameters that makes it.
        collate_fn: Your own.
        batch_size: Of a dataset (else 32).
        may_change: Any of "batch_size" and "precision", which change what is trained.
        seconds: Time budget: no run begins that would end later.

    Raises:
        ValueError: Something cannot be run, and why.
        RuntimeError: The starting point cannot be measured, with the reason.
    """
    what = Pipeline() if pipeline_or_dataset is None else pipeline_or_dataset
    parts = {"step": step, "model": model, "optimizer": optimizer, "collate_fn": collate_fn}
    made, name, bench = improver(what, may_change, seconds, batch_size, **parts)
    start = what if isinstance(what, Pipeline) else None
    improve.last = found = Improvement(made.climb, name, start)
    display = Display()

    def each() -> None:
        found.grow()
        display.final(line_of(made.climb.rungs[-1]), found.table("going on"))

    made.each, bench.bench.each = each, teller(display, found.table)
    try:
        made.run()
        found.grow()
        return found
    finally:
        display.final("", found.table())  # the headline is the table's own


def line_of(rung: Rung) -> str:
    """Say in one line what was found, changed, expected and measured."""
    rate = f"{rung.rate:,.0f} samples/s" if rung.rate else "no number"
    if not rung.finding:
        return f"start: {rate}"
    hope = f"expected {rung.expected[0]:.2f}x, measured "
    gain = f"{rung.gain:.2f}x ({rate})" if rung.gain else rate
    losses = "" if rung.losses is None else f", losses {rung.losses:+.1%}"
    return f"{rung.finding} -> {rung.what}: {hope}{gain}{losses}: {rung.said}"
