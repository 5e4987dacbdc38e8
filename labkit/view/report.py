"""A run as files to share: a picture, a table of its steps, or a page with both."""

from __future__ import annotations

import base64
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.results import saving
from labkit.results.privacy import for_others
from labkit.results.result import Result
from labkit.results.run import Run
from labkit.results.templates import template

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # a second, which `labkit watch` need not wait for

MARK = "<!-- written by labkit -->"


def export(run: Run, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a run in the format of the path's suffix: .html, .md, .png, .svg, .pdf or .csv.

    Args:
        run: A run with steps.
        path: Where to. A page of HTML is self-contained, and can be mailed.
        overwrite: Whether a file that is not as labkit wrote it may be replaced.

    Raises:
        ValueError: the suffix is none of these.
        FileKept: such a file is there.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in saving.FIGURES:
        return saving.save_figure(run.plot(), path, overwrite)
    texts = {".html": html_page, ".md": markdown, ".csv": lambda run: run.frame.to_csv()}
    if suffix not in texts:
        known = ".html, .md, .csv, .png, .svg or .pdf"
        raise ValueError(
            f"export({str(path)!r}): the format follows from the suffix; give {known}."
        )
    return saving.save_text(path, texts[suffix](run), overwrite)


def html_page(run: Run, verdict: str = "") -> str:
    """Return a self-contained page of HTML: the verdict, the pictures, the settings, the machine.

    `verdict` is the text of a verdict that is known already; without it the run is diagnosed.
    """
    changed = run.pipeline.changed().items()
    return template("report.html").render(
        mark=MARK,
        run=run,
        headline=_headline(run),
        verdict=for_others(verdict or str(run.diagnose())),
        run_png=_png(run.plot()),
        workers_png=_png(run.workers.plot()) if run.workers else "",
        settings="\n".join(f"{name}={value!r}" for name, value in changed) or "the defaults",
    )


def page_of(result: Result) -> str:
    """Return a result's table as a self-contained page of HTML."""
    table = for_others(result._repr_html_())
    return f'<!DOCTYPE html>\n{MARK}\n<meta charset="utf-8">\n<title>labkit</title>\n{table}\n'


def markdown(run: Run, verdict: str = "") -> str:
    """Return the verdict, the numbers and the machine for an issue or a pull request."""
    found = run.diagnose()
    text = f"{for_others(verdict or str(found))}\n\n{run.numbers}\n{run.machine.line}"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{MARK}\n### {found.headline}\n\n{fence}text\n{text}\n{fence}\n"


def _headline(run: Run) -> str:
    recorded = f"{run.mark}: " if run.mark else ""
    return f"{recorded}{run.diagnose().headline}"


def _png(figure: Figure) -> str:
    """Return a figure as a PNG in base64."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return base64.b64encode(file.getvalue()).decode()
