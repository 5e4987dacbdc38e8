"""What `lk.improve` returns: a table and a figure that grow change by change."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.figure import Figure

from labkit.diagnosis.loader_code import LoopCode
from labkit.results.result import Result, Table, but
from labkit.results.run import Run
from labkit.results.script import Script, changed_lines, loader_line, script
from labkit.spec import Pipeline
from labkit.tuning.improve import Climb
from labkit.view.primitives import Bar, hbars, rows_in
from labkit.view.run_header import delays_of, machine_lines, several_header
from labkit.view.style import ALARM, COMPUTE, drawable, our_style, page

CELL = 90  # characters: errors can be long


class Rung(NamedTuple):
    """A change that was kept; gain and total are ratios of throughput."""

    name: str
    run: Run
    gain: float | None  # over the step before
    total: float | None  # over the start
    note: str


class Ladder(Result):
    """What the autopilot found: what it kept are its steps, and `tried` is every rung."""

    def __init__(
        self, climb: Climb, name: str, start: Pipeline | None, code: LoopCode | None = None
    ):
        """`start` is the pipeline that was improved, `code` how a loop of the reader's is written.

        One of the two is None.
        """
        self.runs: dict[str, Run] = {}  # by the step's name, from first to last
        self.climb = climb
        self.name = name
        self.start = start
        self.code = (code or LoopCode()).with_names()

    tried = property(lambda self: tuple(self.climb.rungs), doc="Every Rung, also what failed.")
    changes = property(lambda self: self.climb.changes, doc="{knob: value}; {}: nothing gained.")
    speedup = property(lambda self: self.climb.speedup, doc="Throughput over the start's.")
    stopped = property(lambda self: self.climb.stopped, doc="Why it ended.")
    verdict = property(lambda self: self.climb.verdict, doc="The Diagnosis of the best.")

    _count = property(lambda self: sum(len(rung.runs) for rung in self.climb.rungs))

    @property
    def rungs(self) -> list[Rung]:
        """The kept steps with their gains; each was measured until it was beyond the noise."""
        rungs = []
        measured: list[Run] = []
        for name, run in self.runs.items():
            gain = total = None
            if run.throughput is not None:
                if measured:
                    gain = run.compare(measured[-1]).speedup
                    total = run.compare(measured[0]).speedup
                measured.append(run)
            rungs.append(Rung(name, run, gain, total, _note(run)))
        return rungs

    def __len__(self) -> int:
        return len(self.runs)

    @our_style
    def plot(self) -> Figure:
        """Draw a bar of samples/s per kept step."""
        bars = []
        title = "samples/s, step by step" if self.runs else "no steps yet"
        for rung in self.rungs:
            bars.append(_bar(rung))
            if rung.total:
                title = f"{rung.name}: {rung.total:.1f}x the throughput of the first step"
        runs = self.runs.values()
        header = several_header(title, [delays_of(runs)], runs)
        figure, (axes,) = page(header, [(0.08, rows_in(len(bars)))], 2.3, 0.1)
        hbars(axes, bars)
        return figure

    @property
    def pipeline(self) -> Pipeline | None:
        """The best pipeline; None of the reader's own data."""
        return self.start and self.start.but(**self.changes)

    @property
    def snippet(self) -> str:
        """The settings as plain PyTorch."""
        knobs = self.climb.start
        if self.start:
            lines = changed_lines(knobs, knobs | self.changes).rstrip("\n")
            return lines or loader_line(knobs)
        changes = {"batch_size": knobs["batch_size"], **self.changes}
        return self.code.lines(changes).rstrip("\n")

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
            losses = rung.losses
            said = "not predicted" if rung.finding else None
            if rung.expected:
                said = "{:.2f}x ({:.2f} to {:.2f})".format(*rung.expected)
            rows.append((
                rung.finding or None, rung.what,
                said, _say(rung.rate, "{:,.0f}"),
                _say(rung.gain, "{:.2f}x"), _say(losses, "{:+.1%}"), rung.said[:CELL],
            ))  # fmt: skip
        head = ("on top", "change", "expected", "samples/s", "gain", "losses", "")
        foot = [now] if now else [f"not tried: {k}: {why}" for k, why in climb.left_out.items()]
        copies = {}
        if climb.stopped and not now:
            if climb.verdict and climb.verdict.bottleneck != "compute":
                foot.append(f"left: {climb.verdict.advice}")
            foot += [f"{self._count} runs, {climb.seconds:.0f} s", *self.snippet.split("\n")]
            copies = {"PyTorch": self.snippet, "labkit": but(self.changes) if self.start else ""}
        runs = self.runs.values()
        foot += [*(text for text, _ in machine_lines(runs)), delays_of(runs)]
        kept = [place for place, rung in enumerate(climb.rungs) if rung.kept]
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
            "runs": self._count,
        }  # fmt: skip


def _note(run: Run) -> str:
    """Return the remarks beside the numbers; "" where they speak for themselves."""
    if run.throughput is None:
        return f"{run.outcome}: {run.error or 'too few steps for numbers'}"
    ended = "" if run.outcome == "finished" else run.outcome
    return _joined(ended, "noisy" * run.noisy)


def _bar(rung: Rung) -> Bar:
    """Return a rung's bar; none for a run without numbers, whose text says why."""
    run = rung.run
    name = drawable(rung.name, 36)
    if run.throughput is None:
        return Bar(name, None, rung.note, COMPUTE, ink=ALARM)
    gain = f", {rung.gain:.2f}x" if rung.gain else ""
    text = f"{run.throughput:,.0f}, busy {run.busy_text}{gain}"
    return Bar(name, rung.total or 1.0, _joined(text, "noisy" * run.noisy), COMPUTE)


def _say(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))
