"""Progress and results on screen: a line on stderr, or the output of a notebook cell.

On a terminal the line is rewritten in place, in a log written once at the end; stdout stays free.
In a notebook it is the output of the cell, and gives way to a figure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from labkit.diagnosis.findings import Diagnosis
from labkit.diagnosis.hot_lines import sampled_lines
from labkit.results.log_reader import in_notebook
from labkit.results.run_data import RunData
from labkit.text import printable

Kept = TypeVar("Kept")

PERIOD_S = 0.2  # s between two updates: a person reads no faster
OVER = "\r\x1b[K"  # begins a line that is written over the one before, on a terminal


class Display:
    """Progress on one line: call `line` as often as you like, and `final` for what is to stay.

    `first` is shown in the line's place in a notebook, such as a widget that draws itself.
    """

    def __init__(self, first: object = None):
        self.shown_at = 0.0
        self.handle: Any = None  # of IPython, in a notebook
        self.over = OVER if sys.stderr.isatty() else ""
        if in_notebook():
            from IPython.display import Pretty, display

            self.handle = display(first or Pretty(""), display_id=True)

    @property
    def due(self) -> bool:
        """Whether a user would see another line by now."""
        is_seen = self.handle is not None or self.over
        return bool(is_seen) and time.monotonic() - self.shown_at >= PERIOD_S

    def line(self, text: str, rich: object = None) -> None:
        """Say how far it is, a few times a second; `rich` is shown in its place in a notebook."""
        if self.due:
            self.final(text, rich, end="")
            self.shown_at = time.monotonic()

    def final(self, text: str, rich: object = None, end: str = "\n") -> None:
        """Leave `text`, or `rich` in its place in a notebook."""
        if self.handle is None:
            print(f"{self.over}{printable(text)}", end=end, file=sys.stderr, flush=True)
            return
        from IPython.display import Pretty

        self.handle.update(rich or Pretty(text))


def loop_summary(run: RunData, verdict: Diagnosis, to_try: str, *more: str) -> str:
    """Return what a watched loop leaves: its numbers, verdict, what `more` is known, its lines.

    `to_try` says how settings are tried, where they may help.
    """
    texts = [run.numbers, str(verdict), *more]
    texts += [str(lines)] if len(lines := sampled_lines(run)) else []
    texts.append(f"record: {run.path} (lk.load, labkit diagnose)")
    texts += [to_try] if verdict.bottleneck == "input" else []
    return "\n".join(texts)


def remember(function: Callable[..., object], result: Kept) -> Kept:
    """Keep a result as `function.last`, as in `lk.run.last`: an interrupted call returns none."""
    vars(function)["last"] = result
    return result
