"""The ladder: a table that grows from step to step of a lesson, and keeps what gained nothing."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from labkit.analysis.cost import joules_per_sample
from labkit.results.run import Run, stated_waits
from labkit.show.run_header import machine_lines, stated_of

NO_GAIN = "no difference beyond the noise"
TEXT = "text-align:left;padding:2px 8px;max-width:300px"
NUMBER = "text-align:right;padding:2px 8px;white-space:nowrap"
HEAD = ("", "step", "samples/s", "busy", "step ms", "gain", "in all", "")
ENERGY, LIMIT = "J/sample", "limited by"  # columns on request


@dataclass(frozen=True)
class Rung:
    """One step of a ladder, against the rungs below it that were measured on the same machine.

    `gain` and `in_all` are ratios of throughput: to the rung before, to the first; None where
    either side has no numbers. `null` says that the gain is within the two runs' own noise.
    `stated` are its stated waits, where the ladder's steps differ in them.
    """

    name: str
    run: Run
    gain: float | None = None
    in_all: float | None = None
    null: bool = False
    stated: str = ""

    @property
    def note(self) -> str:
        """What has to be said beside the numbers; "" where they speak for themselves."""
        stated = f"stated: {self.stated}" if self.stated and self.run.throughput else ""
        return "; ".join(filter(None, [self.verdict, stated]))

    @property
    def verdict(self) -> str:
        """How the step went, where its numbers do not say it."""
        if self.run.throughput is None:
            return f"{self.run.outcome}: {self.run.error or 'too few steps for numbers'}"
        notes = [
            self.run.mark or "",
            "" if self.run.outcome == "finished" else self.run.outcome,
            NO_GAIN if self.null else "",
            f"noisy: spread {self.run.spread:.0%}" if self.run.noisy else "",
        ]
        return "; ".join(filter(None, notes))


class Ladder:
    """Steps on the way up, each with its run: `lk.Ladder().add("start", run)`, shown as a table.

    Args:
        energy: Also show joules per sample, where the run's record has an energy counter.
        limit: Also show the bottleneck that the diagnosis names.
    """

    def __init__(self, *, energy: bool = False, limit: bool = False) -> None:
        self._runs: dict[str, Run] = {}
        self._more = {ENERGY: energy, LIMIT: limit}

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
        self._runs[name] = run
        return self

    @property
    def rungs(self) -> list[Rung]:
        """The steps from first to last, with their gains.

        Runs of another machine (a RECORDED one) are a ladder of their own: what the hardware
        gained is no gain of the change.
        """
        rungs: list[Rung] = []
        for name, run in self._runs.items():
            stated = "" if self.stated else stated_waits(run.pipeline)
            below = [r.run for r in rungs if r.run.throughput and _place(r.run) == _place(run)]
            if not below or run.throughput is None:
                rungs.append(Rung(name, run, stated=stated))
                continue
            step, whole = run.compare(below[-1]), run.compare(below[0])
            null = not step.significant
            rungs.append(Rung(name, run, step.speedup, whole.speedup, null, stated))
        return rungs

    @property
    def stated(self) -> str:
        """The stated waits that all steps have in common; "" where they differ or have none."""
        each = {stated_of([run]) for run in self._runs.values() if run.throughput is not None}
        return each.pop() if len(each) == 1 else ""

    @property
    def foot(self) -> str:
        """What the numbers rest on: the machines, and the waits that were stated."""
        lines = [text for text, _ in machine_lines(self._runs.values())]
        return "; ".join(filter(None, [*lines, self.stated]))

    @property
    def runs(self) -> dict[str, Run]:
        """{step's name: its run}, from first to last."""
        return dict(self._runs)

    @property
    def head(self) -> tuple[str, ...]:
        """What the table's columns are: `HEAD`, and those asked for."""
        return (*HEAD[:-1], *(name for name, asked in self._more.items() if asked), HEAD[-1])

    def rows(self) -> list[tuple[str, ...]]:
        """The table under `head`, every cell as text."""
        more = [name for name, asked in self._more.items() if asked]
        return [(str(i), *_cells(rung, more)) for i, rung in enumerate(self.rungs)]

    def plot(self) -> Any:
        """Draw the ladder's throughput as bars, as a matplotlib Figure."""
        from labkit.show.ladder_figure import draw_ladder

        return draw_ladder(self)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        if not self._runs:
            return "Ladder(): no steps yet; add(name, run)"
        rows = [self.head, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            cells[1], cells[-1] = row[1].ljust(widths[1]), row[-1]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, self.foot])

    def _repr_html_(self) -> str:
        if not self._runs:
            return f"<p>{html.escape(repr(self))}</p>"
        body = "".join(_html_row(row, "td") for row in self.rows())
        return (
            f"<table>{_html_row(self.head, 'th')}{body}</table>"
            f"<p><small>{html.escape(self.foot)}</small></p>"
        )


def _place(run: Run) -> tuple:
    return run.recorded, run.machine.name, run.machine.kind


def _cells(rung: Rung, more: list[str]) -> tuple[str, ...]:
    run = rung.run
    if run.throughput is None:
        return (rung.name, *["-"] * (5 + len(more)), rung.note)
    return (
        rung.name, f"{run.throughput:,.0f}", run.busy_text, f"{run.step_ms:.1f}",
        _ratio(rung.gain), _ratio(rung.in_all), *(_asked_for(run, name) for name in more),
        rung.note,
    )  # fmt: skip


def _asked_for(run: Run, column: str) -> str:
    if column == LIMIT:
        return run.diagnose().bottleneck
    joules = joules_per_sample(run)
    return "-" if joules is None else f"{joules:.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _html_row(cells: tuple[str, ...], tag: str) -> str:
    """One row: names and notes to the left, numbers to the right and on one line."""
    texts = (1, len(cells) - 1)
    styles = [TEXT if i in texts else NUMBER for i in range(len(cells))]
    return "<tr>" + "".join(
        f"<{tag} style='{style}'>{html.escape(cell)}</{tag}>"
        for cell, style in zip(cells, styles, strict=True)
    ) + "</tr>"  # fmt: skip
