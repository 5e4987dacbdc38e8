"""`lk.tune`: a search for loader settings that a person can watch, and stop at any time."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Sequence
from typing import Any

from labkit.show.display import in_notebook
from labkit.show.follow import Follower
from labkit.tuner.job import TuningJob
from labkit.tuner.tuning import Trial, Tuning

PERIOD_S = 0.2


def tune(
    dataset_or_pipeline: Any,
    *,
    collate_fn: Any = None,
    step: Any = None,
    batch_size: int | Sequence[int] | None = None,
    baseline: dict[str, Any] | None = None,
    max_workers: int | None = None,
    seconds: float = 1.5,
) -> Tuning:
    """Find the cheapest DataLoader settings that are as fast as the fastest.

    A prediction from each run says what to try next; isolated runs measure it; what is too close
    to tell is measured again. An interrupt keeps the best so far in `lk.tune.last`.

    Args:
        dataset_or_pipeline: A `labkit.Pipeline`; or your own dataset or DataLoader; or
            "module:function", a function that returns the dataset.
        collate_fn: Yours, as an object or "module:name".
        step: What your loop does with one batch, a function of it, as an object or "module:name".
            Without it nothing computes, and the loader's own throughput is what is raised.
        batch_size: The batch size to tune for (a dataset's is 32 where it is left out); several,
            to search among them too: the first is where it starts, and another batch size is
            another training.
        baseline: The settings you have now, such as `{"num_workers": 2}`; else PyTorch's defaults,
            or those of the pipeline or DataLoader given.
        max_workers: The most workers to try; else 12, or twice the cores where that is more.
        seconds: How long each setting is measured, s; its start comes on top.

    Raises:
        ValueError: Something that cannot be tuned, before anything runs.
        RuntimeError: The setting to start from cannot be measured, with the reason: a dataset that
            fails on some item, for example.
        KeyboardInterrupt: The run that was going on has been stopped first.
    """
    job = TuningJob(
        dataset_or_pipeline, collate_fn=collate_fn, step=step, batch_size=batch_size,
        baseline=baseline, max_workers=max_workers, seconds=seconds,
    )  # fmt: skip
    tune.last = job.tuning
    table = NotebookTable() if in_notebook() else TextTable()
    job.each, job.live = table.update, table.running
    try:
        return job.run()
    finally:
        table.finish(job.tuning)


class NotebookTable:
    """The table of trials in the output of a cell, growing."""

    def __init__(self):
        from IPython.display import display

        self.shown, self.text = 0.0, ""
        self.handle = display(Html(""), display_id=True)

    def update(self, tuning: Tuning) -> None:
        """Show the trials so far."""
        self.tuning = tuning
        self.handle.update(Html(page(tuning, self.text)))

    def running(self, run: Any) -> None:
        """Say how far the run is that is going on, a few times a second."""
        if time.monotonic() - self.shown > PERIOD_S:
            self.shown, follower = time.monotonic(), Follower()
            follower.read(run)
            self.text = line_of(follower, run)
            self.update(self.tuning)

    def finish(self, tuning: Tuning) -> None:
        """Leave the finished table."""
        self.text = ""
        self.update(tuning)


class Html:
    """HTML with a text that is the same for every tuning: stored notebooks are compared."""

    def __init__(self, text: str):
        self.text = text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.text, "text/plain": "<labkit tuning>"}


class TextTable:
    """The trials as lines on stderr, one when each has been measured; stdout stays free."""

    def __init__(self):
        self.shown, self.width, self.said = 0.0, 0, 0

    def update(self, tuning: Tuning) -> None:
        """Write the runs that have ended since the last call."""
        ended = sum(len(trial.rates) + bool(trial.error) for trial in tuning.tried)
        if ended == self.said:
            return
        self.said = ended
        self._line(trial_line(tuning, tuning.latest), "\n")

    def running(self, run: Any) -> None:
        """Rewrite a line about the run that is going on, where there is a terminal."""
        if sys.stderr.isatty() and time.monotonic() - self.shown > PERIOD_S:
            self.shown, follower = time.monotonic(), Follower()
            follower.read(run)
            self._line(line_of(follower, run), "")

    def finish(self, tuning: Tuning) -> None:
        """Write the result in one line."""
        self._line(tuning.headline, "\n")

    def _line(self, text: str, end: str) -> None:
        start = "\r" if sys.stderr.isatty() else ""
        print(start + text.ljust(self.width), end=end, file=sys.stderr, flush=True)
        self.width = 0 if end else len(text)


def line_of(follower: Follower, run: Any) -> str:
    """Say what the run that is going on does, without how many steps it might do."""
    return follower.line(run).replace(f" of {follower.steps_asked}", "")


def trial_line(tuning: Tuning, trial: Trial) -> str:
    """Say in one line what a trial gave, what was expected of it, and why it was tried."""
    rate = f"{trial.rates[-1]:,.0f} samples/s" if trial.rates and not trial.error else "failed"
    expected = trial.expected
    hoped = f" (predicted {expected[1]:,.0f} to {expected[2]:,.0f})" if expected else ""
    again = f", run {len(trial.rates)}" if len(trial.rates) > 1 else f": {trial.why}"
    what = tuning.verdict(trial)
    return f"{trial.setting}: {rate}{hoped}{'; ' + what if what else ''}{again}"


def page(tuning: Tuning, now: str = "") -> str:
    """Return the tuning as HTML: the result, the table of trials, the snippet; all escaped."""
    say = html.escape
    left = "text-align:left;padding-right:14px"
    head, *rows = tuning.rows()
    best = tuning.winner
    body = [f"<tr>{''.join(f'<th style={left!r}>{say(cell)}</th>' for cell in head)}</tr>"]
    for trial, row in zip(tuning.tried, rows, strict=True):
        bold = ";font-weight:bold" if trial is best else ""
        cells = "".join(f"<td style='{left}{bold}'>{say(cell[:200])}</td>" for cell in row)
        body.append(f"<tr>{cells}</tr>")
    small = [f"{name}: {reason}" for name, reason in tuning.reasons.items()] if tuning.done else []
    small += [*tuning.notes, f"samples/s, measured on {tuning.line}"]
    notes = "".join(f"<div>{say(note)}</div>" for note in small)
    code = f"<pre style='margin:4px 0'>{say(tuning.snippet)}</pre>" if tuning.done else ""
    going = f"<div><i>{say(now or 'starting')}</i></div>" if not tuning.done else ""
    return (
        "<div style='max-width:860px;border-left:4px solid #0072B2;padding-left:12px'>"
        f"<div style='font-size:115%'><b>{say(tuning.headline)}</b></div>"
        f"<table>{''.join(body)}</table>{going}{code}<small>{notes}</small></div>"
    )
