"""Tables that grow step by step through a lesson: `lk.Ladder` of runs, `lk.Scaling` of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from labkit.analysis.cost import joules_per_sample
from labkit.results.ranks import Ranks
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.show.primitives import Bar, hbars, rows_in
from labkit.show.run_header import delays_of, machine_lines, several_header
from labkit.show.style import ALARM, COMPUTE, OTHER, drawable, our_style, page

NO_GAIN = "no difference beyond the noise"


@dataclass(frozen=True)
class Rung:
    """One step of a ladder, against the rungs below it that were measured on the same machine.

    `gain` and `total` are ratios of throughput: to the rung before, to the first; None where
    either side has no numbers. `null` says that the gain is within the two runs' own noise.
    `delays` are its simulated delays, where the ladder's steps differ in them.
    """

    name: str
    run: Run
    gain: float | None = None
    total: float | None = None
    null: bool = False
    delays: str = ""

    @property
    def note(self) -> str:
        """Remarks beside the numbers; "" where they speak for themselves."""
        run = self.run
        if run.throughput is None:
            return f"{run.outcome}: {run.error or 'too few steps for numbers'}"
        return _joined(
            run.mark or "",
            "" if run.outcome == "finished" else run.outcome,
            NO_GAIN if self.null else "",
            f"noisy: spread {run.spread:.0%}" if run.noisy else "",
            f"simulated delay: {self.delays}" if self.delays else "",
        )

    @property
    def bar(self) -> Bar:
        """Its bar, in units of the first step's on the same machine."""
        run = self.run
        if run.throughput is None:
            return Bar(drawable(self.name, 36), None, self.note, ink=ALARM)
        gain = f", {self.gain:.2f}x" if self.gain else ""
        text = _joined(
            f"{run.throughput:,.0f}, busy {run.busy_text}{gain}",
            "RECORDED" if run.recorded else "",  # on what, the header says
            "" if run.outcome == "finished" else run.outcome,
            NO_GAIN if self.null else "noisy" if run.noisy else "",
        )
        colour, hatch = OTHER if self.null else COMPUTE, "///" if run.recorded else None
        return Bar(drawable(self.name, 36), self.total or 1.0, text, colour, hatch=hatch)


class Ladder(Result):
    """Steps on the way up, each with its run: `lk.Ladder().add("start", run)`, shown as a table.

    Args:
        energy: Also show joules per sample, where the run's record has an energy counter.
        limit: Also show the bottleneck that the diagnosis names.
    """

    def __init__(self, *, energy: bool = False, limit: bool = False) -> None:
        self.runs: dict[str, Run] = {}  # by the step's name, from first to last
        self.energy, self.limit = energy, limit

    def add(self, name: str, run: Run) -> Ladder:
        """Put a step on top and return the ladder; the same name again replaces that step's run.

        A run that failed stays as a row that says why. Raises ValueError, naming the step, for
        what is not a Run and for a run that is still going on.
        """
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"name={name!r}: give the step a name, such as 'more workers'.")
        if not isinstance(run, Run):
            raise ValueError(f"{name!r}: {type(run).__name__} is not a Run; give what lk.run gave.")
        if run.running:
            raise ValueError(f"{name!r} is still running: add it after run.wait() or run.stop().")
        self.runs[name] = run
        return self

    @property
    def rungs(self) -> list[Rung]:
        """The steps from first to last, with their gains.

        Runs of another machine (a RECORDED one) are a ladder of their own: what the hardware
        gained is no gain of the change.
        """
        rungs: list[Rung] = []
        for name, run in self.runs.items():
            delays = "" if self._delays else run.pipeline.simulated_delay
            below = [r.run for r in rungs if r.run.throughput and _place(r.run) == _place(run)]
            gain, total, null = None, None, False
            if below and run.throughput is not None:
                step, whole = run.compare(below[-1]), run.compare(below[0])
                gain, total, null = step.speedup, whole.speedup, not step.significant
            rungs.append(Rung(name, run, gain, total, null, delays))
        return rungs

    @property
    def _delays(self) -> str:
        """The simulated delays that all steps have in common; "" where they differ."""
        each = {delays_of([run]) for run in self.runs.values() if run.throughput is not None}
        return each.pop() if len(each) == 1 else ""

    def table(self) -> Table:
        """Return the steps with their gains, and what the numbers rest on below."""
        if not self.runs:
            return Table([], title="Ladder(): no steps yet; add(name, run)")
        more = ["J/sample"] * self.energy + ["limited by"] * self.limit
        head = ["", "step", "samples/s", "busy", "step ms", "gain", "total", *more, ""]
        rows = []
        for number, rung in enumerate(self.rungs):
            run, cells = rung.run, [None] * (5 + len(more))
            if run.throughput is not None:
                joules = joules_per_sample(run)
                cells = [
                    f"{run.throughput:,.0f}", run.busy_text, f"{run.step_ms:.1f}",
                    _times(rung.gain), _times(rung.total),
                    *([None if joules is None else f"{joules:.3g}"] * self.energy),
                    *([run.diagnose().bottleneck] if self.limit else []),
                ]  # fmt: skip
            rows.append([number, rung.name, *cells, rung.note])
        return _table(rows, head, self.runs.values(), self._delays)

    @our_style
    def plot(self) -> Figure:
        """Draw a bar of samples/s per step, grey where the step gained nothing beyond the noise."""
        rungs, runs = self.rungs, list(self.runs.values())
        if not rungs:
            return page([("The ladder has no steps yet.", {})], [])[0]
        title = "samples/s, step by step"
        if top := [rung for rung in rungs if rung.total]:
            title = f"{top[-1].name}: {top[-1].total:.1f}x the throughput of the first step"
        mixed = len({_place(run) for run in runs if run.throughput}) > 1
        texts = ["each machine's bars have a scale of their own" if mixed else "", delays_of(runs)]
        return _bars(several_header(title, texts, runs), [rung.bar for rung in rungs])

    def __len__(self) -> int:
        return len(self.runs)


class Scaling(Result):
    """Runs of ranks against one process: `lk.Scaling(one).add("2 ranks", ranks)`, a table."""

    def __init__(self, one: Run):
        """`one` is the run that rows are compared with where they name no other."""
        if not isinstance(one, Run):
            raise ValueError(f"{type(one).__name__} is not a Run; give what lk.run gave.")
        self.one = one
        self.rows: dict[str, tuple[Ranks, Run]] = {}  # by name, with its own one process

    def add(self, name: str, ranks: Ranks, one: Run | None = None) -> Scaling:
        """Add a row and return the table; the same name again replaces that row.

        `one` is the one process of that row, where its pipeline is another than the table's.
        Raises ValueError where the two ran different pipelines, or one is still running.
        """
        if not isinstance(ranks, Ranks):
            raise ValueError(f"{name!r}: {type(ranks).__name__} is not a distributed run.")
        if ranks.running:
            raise ValueError(f"{name!r} is still running: add it after wait() or stop().")
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
                efficiency = ranks.efficiency(one)
                parts = (times.wait, times.others, times.transfer)
                cells = [
                    f"{ranks.throughput:,.0f}", _times(ranks.speedup(one)),
                    None if efficiency is None else f"{efficiency:.0%}",
                    *(f"{np.mean(part):.0%}" for part in parts),
                ]  # fmt: skip
            rows.append([name, ranks.world_size, *cells, _note(ranks, one)])
        return _table(rows, head, self._runs)

    @our_style
    def plot(self) -> Figure:
        """Draw a bar per row, filled as far as the ranks came, outlined as far as perfect is."""
        title = "samples/s over those of one process; the outline is perfect scaling"
        rate = self.one.throughput
        bars = [Bar("one process", 1, f"{rate:,.0f} samples/s" if rate else "no numbers", OTHER)]
        for name, (ranks, one) in self.rows.items():
            short, note = drawable(name, 36), _note(ranks, one)
            if ranks.throughput is None or one.throughput is None:
                bars.append(Bar(short, None, note or "too few steps for numbers", ink=ALARM))
                continue
            speedup, efficiency = ranks.speedup(one), ranks.efficiency(one)
            title = (
                f"{name}: {speedup:.2f}x one process, "
                f"{efficiency:.0%} of perfect scaling (the outline)"
            )
            rate = f"{ranks.throughput:,.0f} samples/s, {speedup:.2f}x"
            text, hatch = f"{rate}, efficiency {efficiency:.0%}", "///" if ranks.recorded else None
            text = _joined(text, note)
            bars.append(Bar(short, speedup, text, COMPUTE, outline=len(ranks), hatch=hatch))
        return _bars(several_header(title, [], self._runs), bars)

    @property
    def _runs(self) -> list[Any]:
        return [self.one, *(ranks for ranks, _ in self.rows.values())]


def _note(ranks: Ranks, one: Run) -> str:
    ended = "" if ranks.outcome == "finished" else ranks.error or ranks.outcome
    return _joined(ranks.mark or "", ended, "noisy" if ranks.noisy or one.noisy else "")


def _table(rows: list, head: list[str], runs: Any, *more: str) -> Table:
    foot = _joined(*(text for text, _ in machine_lines(runs)), *more)
    names = 1 if "step" in head else 0
    return Table(rows, head, foot=[foot], left=(names, len(head) - 1))


def _bars(header: list, bars: list[Bar]) -> Figure:
    """Draw bars below a header, names to the left, no axis below."""
    figure, (axes,) = page(header, [(0.08, rows_in(len(bars)))], 2.3, 0.1)
    hbars(axes, bars)
    return figure


def _place(run: Run) -> tuple[Any, ...]:
    return run.recorded, run.machine.name, run.machine.kind


def _times(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}x"


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))
