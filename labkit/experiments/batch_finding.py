"""`lk.largest_batch`: search for the largest batch that fits, and show what was tried."""

from __future__ import annotations

import html
import sys
from typing import Any

from IPython.display import HTML, display

from labkit.experiments import largest_batch as batch_finder
from labkit.experiments.largest_batch import LargestBatch
from labkit.experiments.measuring import progress_line
from labkit.results.launch import launch
from labkit.results.measurements import Experiment, Measurements
from labkit.show import display as live
from labkit.spec import Pipeline


def largest_batch(
    pipeline: Pipeline | None = None,
    *,
    limit_gib: float | None = None,
    margin: float = 0.1,
    multiple: int = 8,
    most: int = 16_384,
    **knobs: Any,
) -> LargestBatch:
    """Find the largest batch that trains within a limit on memory, each try in its own process.

    Starts at the pipeline's own batch size. On a GPU the limit is what is free on the card, unless
    `limit_gib` says less; on a CPU it is on the training process's own memory, beyond what PyTorch
    itself takes, and stated: 0.5 GiB unless `limit_gib` says otherwise. What is found was trained
    with again, for more steps, in a fresh process, in which it may use the margin too. The loader's
    memory is not in it.

    Args:
        pipeline: What to train; its `batch_size` is where the search begins.
        limit_gib: The limit, GiB; None as above.
        margin: Share of the limit that the first steps leave free, 0 up to 1.
        multiple: Sizes from this on are multiples of it.
        most: The largest size to try.
        **knobs: Changes to `pipeline`.

    Raises:
        ValueError: A bad setting, before anything starts.
        RuntimeError: A try that failed for another reason than memory.
        KeyboardInterrupt: While searching; that try has been stopped, and what was tried before
            is in `lk.largest_batch.last`.
    """
    pipeline = (pipeline or Pipeline()).but(**knobs)
    batch_finder.check(margin, multiple, most, limit_gib)
    search = LargestBatch(pipeline, margin, multiple, most)
    largest_batch.last = search  # what an interrupt leaves
    view = Table(search)

    def attempt(batch_size: int, steps: int) -> Measurements:
        params = {"pipeline": pipeline.to_dict(), "batch_size": batch_size, "steps": steps}
        again = steps == batch_finder.CONFIRMING_STEPS  # what grows by then is the margin's to take
        params |= {"limit_gib": limit_gib, "margin": 0.0 if again else margin}
        started = launch(Experiment("batch_fits", params, pipeline.device))
        return started.wait(each=view.update)

    try:
        batch_finder.find(search, attempt, view.grown)
    finally:
        view.finish()
    return search


class Table:
    """The table of tries while it grows: in a notebook's cell, or on a terminal's stderr."""

    def __init__(self, search: LargestBatch):
        self.search, self.text = search, ""
        self.handle = display(HTML(""), display_id=True) if live.in_notebook() else None

    def update(self, running: Measurements) -> None:
        """Say what is being tried now."""
        text = progress_line(running)
        if text != self.text and self.handle is not None:
            line = f"<code>{html.escape(text)}</code>"
            self.handle.update(HTML(self.search._repr_html_() + line))
        elif text != self.text and sys.stderr.isatty():
            print(f"\r{text.ljust(len(self.text))}", end="", file=sys.stderr, flush=True)
        self.text = text

    def grown(self) -> None:
        """One try more: a line of its own on a terminal."""
        if self.handle is None:
            row = "  ".join(self.search.rows()[-1]).rstrip()
            print(f"{chr(13) if sys.stderr.isatty() else ''}{row}", file=sys.stderr)

    def finish(self) -> None:
        """Leave the figure, or the line that says how it ended."""
        if self.handle is None:
            print(self.search.line, file=sys.stderr)
        elif any(t.peak_gib for t in self.search.tried):
            self.handle.update(live.StaticFigure.drawn(self.search.plot()))
        else:
            self.handle.update(live.StaticFigure(b"", 0, self.search.line))
