"""A run as files to share: a picture, a table of its steps, or a page with both."""

from __future__ import annotations

import base64
import html
import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from labkit.results import saving
from labkit.results.run import Run

MARK = "<!-- written by labkit -->"
HEAD = f"""<!DOCTYPE html>
{MARK}
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; }}
  pre {{ background: #f6f6f6; padding: 0.8em; overflow-x: auto; font-size: 13px; }}
  img {{ max-width: 100%; }}
</style>
"""


def export(run: Run, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Write a run in the format of the path's suffix: .html, .md, .png, .svg, .pdf or .csv.

    Args:
        run: A run with steps.
        path: Where to. A page of HTML is self-contained, and can be mailed.
        overwrite: Whether a file that labkit did not write may be replaced.

    Raises:
        ValueError: the suffix is none of these.
        FileKept: another program's file is there.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in saving.MARKS:
        return saving.save_figure(run.plot(), path, overwrite)
    texts = {".html": html_page, ".md": markdown, ".csv": lambda run: run.frame.to_csv()}
    if suffix not in texts:
        known = ".html, .md, .csv, .png, .svg or .pdf"
        raise ValueError(
            f"export({str(path)!r}): the format follows from the suffix; give {known}."
        )
    return write(path, texts[suffix](run), overwrite)


def html_page(run: Run, verdict: str = "") -> str:
    """Return a self-contained page of HTML: the verdict, the pictures, the settings, the machine.

    `verdict` is the text of a verdict that is known already; without it the run is diagnosed.
    """
    parts = [
        HEAD,
        f"<title>labkit: {html.escape(run.id)}</title>",
        f"<h1>{html.escape(_headline(run))}</h1>",
        f"<pre>{html.escape(verdict or str(run.diagnose()))}</pre>",
        _image(run.plot(), "Utilization over the run, and its mean step"),
    ]
    if run.workers.batches:
        parts.append(_image(run.workers.plot(), "What each loader worker did"))
        parts.append(f"<pre>{html.escape(str(run.workers))}</pre>")
    settings = "\n".join(f"{name}={value!r}" for name, value in run.pipeline.changed().items())
    parts.append(f"<h2>Settings</h2><pre>{html.escape(settings or 'the defaults')}</pre>")
    parts.append(f"<h2>Machine</h2><pre>{html.escape(str(run.machine))}</pre>")
    return "\n".join(parts)


def markdown(run: Run, verdict: str = "") -> str:
    """Return the verdict, the numbers and the machine for an issue or a pull request."""
    verdict = verdict or str(run.diagnose())
    return (
        f"{MARK}\n### {_headline(run)}\n\n```text\n{verdict}\n```\n\n"
        f"{run.numbers}\n\n*{run.machine.line}*\n"
    )


def _headline(run: Run) -> str:
    recorded = f"RECORDED on {run.machine.name}: " if run.recorded else ""
    return f"{recorded}{run.diagnose().headline}"


def _image(figure: Figure, text: str) -> str:
    """Return a figure as an image within the page."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<p><img alt="{html.escape(text)}" src="data:image/png;base64,{data}"></p>'


def write(path: str | os.PathLike[str], text: str, overwrite: bool = False) -> Path:
    """Write a text; FileKept where a file that labkit did not write is there."""
    path = Path(path)
    saving.check(path, _is_ours, overwrite)
    with saving.replacing(path) as file:
        file.write(text.encode())
    return path


def _is_ours(path: Path) -> bool:
    """Return whether `export` wrote a page or a Markdown file; a .csv holds no mark of it."""
    return MARK in path.read_text(errors="replace")[:200]
