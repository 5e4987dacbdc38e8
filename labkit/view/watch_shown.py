"""What is shown of a watched loop: a line while it goes on, its diagnosis and cells at the end."""

from __future__ import annotations

import html
import linecache

from labkit.diagnosis.hot_lines import CELL, Lines
from labkit.results.run import Run
from labkit.view.display import Display, StaticFigure
from labkit.watching.recorder import Recorder

TO_TRY = "to try settings on it: lk.tune(loader, step=...)"
LEAST_SHARE = 0.01  # of the time: a line of a cell with less is not marked


def progress_line(recorder: Recorder) -> str:
    """Say in one line how far a pass is and what has been measured."""
    tally = recorder.steps.tally
    kind = recorder.kind
    done = recorder.steps.next - recorder.first_step
    of = f"/{recorder.length}" if recorder.length else ""
    parts = [f"epoch {recorder.epoch + 1}, step {done}{of}"]
    if tally.wall:
        parts.append(f"{tally.samples / tally.wall * 1e9:,.0f} {recorder.batches.unit}/s")
        if kind == "cpu" or recorder.steps.clock is not None:  # else only launches are timed
            most = "at most " if kind == "gpu" else ""  # gaps between kernels count as busy
            busy = f"{kind.upper()} busy {most}{tally.busy / tally.wall:.0%}"
            parts.append(f"{busy}, waiting for data {tally.wait / tally.wall:.0%}")
    return " · ".join(parts)


def leave(display: Display, run: Run) -> None:
    """Leave the run and its diagnosis; in a notebook its figure, where the line was."""
    found = None if run.throughput is None else run.diagnose()
    tip = [TO_TRY] if found and found.bottleneck == "input" else []
    if display.handle is None:
        texts = [repr(run)]
        if found:
            notes = [note for note in found.notes if note not in str(found)]
            texts += [str(found), *notes]
            texts += [str(run.lines)] if len(run.lines) else []
        display.final("\n".join(texts + tip))
        return
    display.final("\n".join([repr(run), *tip]), StaticFigure.of(run) if found else None)
    if found:
        from IPython.display import HTML
        from IPython.display import display as show

        show(found, *map(HTML, marked_cells(run.lines)))


def marked_cells(lines: Lines) -> list[str]:
    """Return the cells of the notebook that the time went to, as HTML, each line with its share.

    The loop's own lines are marked too, with what was done under them: the `for`, a call.
    """
    cells: dict[str, dict[int, float]] = {}  # {file: {number of a line: share}}
    for each in lines.lines + lines.around(~lines.mask("worker"), "site"):
        if CELL.search(each.file):
            shares = cells.setdefault(each.file, {})  # of a line named twice, the larger
            shares[each.line] = max(each.share, shares.get(each.line, 0.0))
    return [_marked_cell(file, shares) for file, shares in cells.items()]


def _marked_cell(file: str, shares: dict[int, float]) -> str:
    rows = []
    for number, text in enumerate(linecache.getlines(file), 1):
        share = shares.get(number, 0.0)
        is_marked = share >= LEAST_SHARE
        mark = f"{share:4.0%}" if is_marked else " " * 4
        alpha = 0.1 + 0.5 * share if is_marked else 0
        shade = f"background: rgba(213, 94, 0, {alpha:.2f})"
        rows.append(f'<span style="{shade}">{mark}  {html.escape(text.rstrip())}</span>')
    return f'<pre style="font-family: monospace">{chr(10).join(rows)}</pre>'
