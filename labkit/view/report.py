"""A run as files to share: a picture, a table of its steps, or a page with both."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.diagnosis.judge import of_run
from labkit.knobs import as_typed
from labkit.results import saving
from labkit.results.privacy import for_others
from labkit.results.run_data import RunData
from labkit.results.templates import template
from labkit.view.run_figure import draw_run


def export(run: RunData, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a run in the format of the path's suffix: .html, .csv, or one of matplotlib's.

    Args:
        run: A run with steps.
        path: Where to. A page of HTML is self-contained, and can be mailed.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        ValueError: the suffix is none of these; matplotlib says which of its own there are.
        FileKept: such a file is there.
    """
    path = Path(path)
    suffix = path.suffix
    if suffix == ".html":
        return saving.save_text(path, html_page(run, str(of_run(run))), overwrite)
    if suffix == ".csv":
        return saving.save_text(path, run.frame.to_csv(), overwrite)
    with saving.replacing(path, overwrite) as file:
        draw_run(run).savefig(file, format=suffix.lower().lstrip(".") or "png")
    return path


def html_page(run: RunData, verdict: str) -> str:
    """Return a self-contained page of HTML: the `verdict`, the pictures, settings, machine."""
    return template("report.html").render(
        run=run,
        verdict=for_others(verdict),
        picture=draw_run(run).html("Utilization over the run, and its mean step"),
        settings=as_typed(run.pipeline.changed()) or "the defaults",
    )
