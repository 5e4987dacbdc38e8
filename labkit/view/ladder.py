"""Tables that grow step by step: `lk.Ladder` of runs, `lk.Scaling` of ranks, the autopilot's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from labkit.diagnosis.cost import joules_per_sample
from labkit.diagnosis.loader_code import LoopCode
from labkit.results.ranks import Ranks
from labkit.results.result import Result, Table, but, percent
from labkit.results.run import Run
from labkit.results.script import Script, changed_lines, loader_line, script
from labkit.spec import Pipeline
from labkit.tuning.improve import Climb
from labkit.view.primitives import Bar, hbars, rows_in
from labkit.view.run_header import delays_of, machine_lines, several_header
from labkit.view.style import ALARM, COMPUTE, OTHER, drawable, our_style, page

NO_GAIN = "no difference beyond the noise"
CELL = 90  # characters: errors can be long


class Rung(NamedTuple):
    """One step of a ladder; gain and total are ratios of throughput, on the same machine."""

    name: str
    run: Run
    gain: float | None  # over the step before
    total: float | None  # over the first
    null: bool  # the gain is within the runs' own noise
    note: str


class Ladder(Result):
    """Steps on the way up, each with its run: `lk.Ladder().add("start", run)`, shown as a table.

    `energy` also shows joules per sample, where they were counted, and `limit` the bottleneck.
    """

    def __init__(self, *, energy: bool = False, limit: bool = False) -> None:
        self.runs: dict[str, Run] = {}  # by the step's name, from first to last
        self.energy, self.limit = energy, limit

    def add(self, name: str, run: Run) -> Ladder:
        """Put a step on top, or in the place of its name; ValueError for a run still going on."""
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"name={name!r}: give the step a name, such as 'more workers'.")
        _check(name, run, Run, "is not a Run; give what lk.run gave")
        self.runs[name] = run
        return self

    @property
    def rungs(self) -> list[Rung]:
        """The steps from first to last, with their gains.

        Runs of another machine (a RECORDED one) are a ladder of their own: what the hardware
        gained is no gain of the change.
        """
        rungs, ladders = [], {}
        for name, run in self.runs.items():
            below = ladders.setdefault((run.recorded, run.machine.name), [])
            gain, total, null = None, None, False
            if run.throughput is not None and below:
                step, whole = run.compare(below[-1]), run.compare(below[0])
                gain, total, null = step.speedup, whole.speedup, not step.significant
            below += [run] if run.throughput is not None else []
            rungs.append(Rung(name, run, gain, total, null, _note(run, run.noisy, null)))
        return rungs

    def table(self) -> Table:
        """Return the steps with their gains, and what the numbers rest on below."""
        if not self.runs:
            return Table([], title="Ladder(): no steps yet; add(name, run)")
        mfu = any(run.mfu for run in self.runs.values())
        more = ["MFU"] * mfu + ["J/sample"] * self.energy + ["limited by"] * self.limit
        head = ["", "step", "samples/s", "busy", "step ms", "gain", "total", *more, ""]
        rows = []
        for number, rung in enumerate(self.rungs):
            run, cells = rung.run, [None] * (5 + len(more))
            if run.throughput is not None:
                cells = [
                    f"{run.throughput:,.0f}", run.busy_text, f"{run.step_ms:.1f}",
                    _say(rung.gain, "{:.2f}x"), _say(rung.total, "{:.2f}x"),
                    *([percent(run.mfu)] * mfu),
                    *([_say(joules_per_sample(run), "{:.3g}")] * self.energy),
                    *([run.diagnose().bottleneck] if self.limit else []),
                ]  # fmt: skip
            rows.append([number, rung.name, *cells, rung.note])
        return _table(rows, head, self.runs.values())

    @our_style
    def plot(self) -> Figure:
        """Draw a bar of samples/s per step, grey where the step gained nothing beyond the noise."""
        bars, title = [], "samples/s, step by step" if self.runs else "no steps yet"
        for rung in self.rungs:
            run, text = rung.run, rung.note
            if run.throughput is not None:
                gain = f", {rung.gain:.2f}x" if rung.gain else ""
                doubt = NO_GAIN if rung.null else "noisy" * run.noisy
                text = f"{run.throughput:,.0f}, busy {run.busy_text}{gain}"
                text = _joined(text, "RECORDED" * run.recorded, doubt)
            colour = OTHER if rung.null else COMPUTE
            bars.append(_bar(rung.name, run, rung.total or 1.0, text, colour))
            if rung.total:
                title = f"{rung.name}: {rung.total:.1f}x the throughput of the first step"
        return _bars(title, self.runs.values(), bars)

    def __len__(self) -> int:
        return len(self.runs)


class Scaling(Result):
    """Runs of ranks against one process: `lk.Scaling(one).add("2 ranks", ranks)`, a table."""

    def __init__(self, one: Run):
        """`one` is the run that rows are compared with where they name no other."""
        _check("one process", one, Run, "is not a Run; give what lk.run gave")
        self.one = one
        self.rows: dict[str, tuple[Ranks, Run]] = {}  # by name, with its own one process

    def add(self, name: str, ranks: Ranks, one: Run | None = None) -> Scaling:
        """Add a row, or replace that name's; `one` is its one process, where it is not the table's.

        Raises ValueError where the two ran different pipelines, or one is still running.
        """
        _check(name, ranks, Ranks, "is not a distributed run")
        ranks.speedup(one or self.one)  # refuses another pipeline
        self.rows[name] = ranks, one or self.one
        return self

    def table(self) -> Table:
        """Return speedup, efficiency and where the ranks' time went, the one process first."""
        head = ["", "ranks", "samples/s", "speedup", "efficiency", "data", "others", "exchange", ""]
        rate = self.one.throughput
        rows = [["one process", None, rate and f"{rate:,.0f}", "1.00x", "100%", *[""] * 4]]
        for name, (ranks, one) in self.rows.items():
            times, cells = ranks.times, [None] * 6
            if ranks.throughput is not None and times is not None:
                shares = [np.mean(share) for share in (times.wait, times.others, times.transfer)]
                shares = [_say(share, "{:.0%}") for share in (ranks.efficiency(one), *shares)]
                cells = [f"{ranks.throughput:,.0f}", _say(ranks.speedup(one), "{:.2f}x"), *shares]
            rows.append([name, ranks.world_size, *cells, _note(ranks, ranks.noisy or one.noisy)])
        return _table(rows, head, self._runs)

    @our_style
    def plot(self) -> Figure:
        """Draw a bar per row in times its own one process (the tick), outlined up to perfect."""
        title, bars = "samples/s over those of one process", []
        for name, (ranks, one) in self.rows.items():
            text, perfect = _note(ranks, ranks.noisy or one.noisy), None
            if speedup := ranks.speedup(one):
                perfect, efficiency = len(ranks), f"{ranks.efficiency(one):.0%}"
                title = f"{name}: {speedup:.2f}x one process (the tick), {efficiency} of perfect"
                rates = f"{ranks.throughput:,.0f} against {one.throughput:,.0f} samples/s"
                text = _joined(f"{speedup:.2f}x: {rates}, efficiency {efficiency}", text)
            tick = None if perfect is None else 1.0
            bars.append(_bar(name, ranks, speedup, text, COMPUTE, outline=perfect, before=tick))
        rate = self.one.throughput
        alone = f"{rate:,.0f} samples/s on one process" if rate else "no numbers on one process"
        bars = bars or [Bar("one process", 1, alone, OTHER)]
        return _bars(title, self._runs, bars)

    @property
    def _runs(self) -> list[Any]:
        return [self.one, *(ranks for ranks, _ in self.rows.values())]


class Improvement(Ladder):
    """The autopilot's ladder: what it kept are its steps, and `tried` is every rung."""

    def __init__(
        self, climb: Climb, name: str, start: Pipeline | None, code: LoopCode | None = None
    ):
        """`start` is the pipeline that was improved, `code` how a loop of the reader's is written.

        One of the two is None.
        """
        super().__init__()
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


def _check(name: str, run: Any, kind: type, why: str) -> None:
    if not isinstance(run, kind):
        raise ValueError(f"{name!r}: {type(run).__name__} {why}.")
    if run.running:
        raise ValueError(f"{name!r} is still running: add it after wait() or stop().")


def _note(run: Any, noisy: bool, null: bool = False) -> str:
    """Return the remarks beside the numbers; "" where they speak for themselves."""
    if run.throughput is None:
        return f"{run.outcome}: {run.error or 'too few steps for numbers'}"
    ended = "" if run.outcome == "finished" else run.outcome
    return _joined(run.mark or "", ended, NO_GAIN if null else "", "noisy" * noisy)


def _bar(name: str, run: Any, value: float | None, text: str, colour: str, **more: Any) -> Bar:
    """Return a bar of `value`; none for a run without numbers, whose `text` says why."""
    known, name = run.throughput is not None, drawable(name, 36)
    look = {"hatch": "///" if run.recorded else None, "ink": "black" if known else ALARM}
    return Bar(name, value if known else None, text, colour, **look, **more)


def _table(rows: list, head: list[str], runs: Iterable[Any]) -> Table:
    foot = _joined(*(text for text, _ in machine_lines(runs)), delays_of(runs))
    return Table(rows, head, foot=[foot], left=(int("step" in head), len(head) - 1))


def _bars(title: str, runs: Iterable[Any], bars: list[Bar]) -> Figure:
    """Draw bars below a header, names to the left, no axis below."""
    header = several_header(title, [delays_of(runs)], runs)
    figure, (axes,) = page(header, [(0.08, rows_in(len(bars)))], 2.3, 0.1)
    hbars(axes, bars)
    return figure


def _say(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))
