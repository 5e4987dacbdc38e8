"""What people take along of a run: a picture, a table of its steps, or a page."""

from __future__ import annotations

import base64
import html
import os
from pathlib import Path

from labkit.results import saving
from labkit.results.run import Run
from labkit.view.style import png_of

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
    """Write a run in the format of the path's suffix: .html, .csv, .png, .svg or .pdf.

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
    if suffix == ".csv":
        return _write(path, run.frame.to_csv(), overwrite)
    if suffix == ".html":
        return _write(path, page(run, str(run.diagnose())), overwrite)
    known = ".html, .csv, .png, .svg or .pdf"
    raise ValueError(f"export({str(path)!r}): the format follows from the suffix; give {known}.")


def write_page(run: Run, path: str, verdict: str) -> Path:
    """Write a page of HTML with a verdict that is known.

    Raises FileKept where a file that labkit did not write is there, and OSError.
    """
    return _write(Path(path), page(run, verdict), overwrite=False)


def page(run: Run, verdict: str) -> str:
    """Return a self-contained page of HTML: the verdict, the picture, the settings, the machine."""
    recorded = f"RECORDED on {run.machine.name}: " if run.recorded else ""
    settings = "\n".join(f"{name}={value!r}" for name, value in run.pipeline.changed().items())
    picture = base64.b64encode(png_of(run.plot())).decode()
    parts = [
        HEAD,
        f"<title>labkit: {html.escape(run.id)}</title>",
        f"<h1>{html.escape(recorded + run.diagnose().headline)}</h1>",
        f"<pre>{html.escape(verdict)}</pre>",
        '<p><img alt="Utilization over the run, and its mean step" '
        f'src="data:image/png;base64,{picture}"></p>',
        f"<h2>Settings</h2><pre>{html.escape(settings or 'the defaults')}</pre>",
        f"<h2>Machine</h2><pre>{html.escape(str(run.machine))}</pre>",
    ]
    if run.workers.batches:
        parts.insert(-2, f"<h2>Loader</h2><pre>{html.escape(str(run.workers))}</pre>")
    return "\n".join(parts)


def _write(path: Path, text: str, overwrite: bool) -> Path:
    saving.check(path, _is_ours, overwrite)
    with saving.replacing(path) as file:
        file.write(text.encode())
    return path


def _is_ours(path: Path) -> bool:
    """Return whether `export` wrote a page; a .csv holds no mark of it."""
    return MARK in path.read_text(errors="replace")[:200]
