"""What is shown of a watched loop: a line while it goes on, its diagnosis and lines at the end."""

from __future__ import annotations

from labkit.api import Run
from labkit.view.display import Display, StaticFigure
from labkit.watching.recorder import Recorder

TO_TRY = "to try settings on it: lk.tune(loader, step=...)"


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
        from IPython.display import display as show

        show(found)
        if len(run.lines):
            show(run.lines)
