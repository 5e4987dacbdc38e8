"""The one progress display: a line that is rewritten while work goes on, then what is left of it.

In a notebook it is the output of the cell, elsewhere a line on stderr: rewritten in place on a
terminal, written once at the end in a log. stdout stays free.
"""

from __future__ import annotations

import html
import sys
import time
from typing import Any

from IPython.display import HTML, display

PERIOD_S = 0.2  # between two looks of a person's eye


def in_notebook() -> bool:
    """Return whether this is a Jupyter kernel, whose front end shows HTML and widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Display:
    """Progress on one line: call `line` as often as you like, and `final` once."""

    def __init__(self):
        self.text, self.shown_at = "", 0.0
        self.handle = display(HTML(""), display_id=True) if in_notebook() else None

    def line(self, text: str, rich: Any = None) -> None:
        """Say how far it is, a few times a second; `rich` is shown in its place in a notebook."""
        if time.monotonic() - self.shown_at < PERIOD_S or (text == self.text and rich is None):
            return
        self.shown_at = time.monotonic()
        if self.handle is not None:
            self.handle.update(HTML(f"<code>{html.escape(text)}</code>") if rich is None else rich)
        elif sys.stderr.isatty():
            print(f"\r{text.ljust(len(self.text))}", end="", file=sys.stderr, flush=True)
        self.text = text

    def final(self, text: str = "", rich: Any = None) -> None:
        """Leave `text`, or `rich` in its place in a notebook."""
        if self.handle is not None:
            self.handle.update(HTML(f"<code>{html.escape(text)}</code>") if rich is None else rich)
        elif text or sys.stderr.isatty():
            start = "\r" if sys.stderr.isatty() else ""
            print(f"{start}{text.ljust(len(self.text))}".rstrip(" "), file=sys.stderr, flush=True)
        self.text, self.shown_at = "", 0.0
