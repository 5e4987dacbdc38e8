"""`lk.script(pipeline)`: what a pipeline does as a script of plain PyTorch, to take along."""

from __future__ import annotations

import functools
import html
import json
import os
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.process import folders
from labkit.results.machine import asked_of
from labkit.results.plain_pytorch import changed_lines, whole_script
from labkit.results.run import Run
from labkit.spec import Pipeline

CARD = "background:#f8f8f8; color:#222; padding:0.6em; overflow-x:auto; line-height:1.35"


class Script(str):
    """Plain PyTorch code: a string that prints as code, here and in a notebook."""

    text = property(str, doc="The code as a plain string.")

    def save(self, path: str | os.PathLike) -> Path:
        """Write the code to a file, such as "train.py"; return its path."""
        Path(path).write_text(self, encoding="utf-8")
        return Path(path)

    def to_dict(self) -> dict[str, str]:
        """Return {"script": the code}."""
        return {"script": str(self)}

    def __repr__(self) -> str:
        return str(self).rstrip("\n")

    def _repr_html_(self) -> str:
        with suppress(ImportError):  # it comes with IPython
            from pygments import highlight
            from pygments.formatters import HtmlFormatter
            from pygments.lexers import PythonLexer

            return highlight(self, PythonLexer(), HtmlFormatter(noclasses=True, cssstyles=CARD))
        return f'<pre style="{CARD}">{html.escape(self)}</pre>'


def script(what: Pipeline | Run, *, before: Pipeline | Run | None = None) -> Script:
    """Return a pipeline as a whole training script in plain PyTorch, with nothing of this kit.

    It trains on the same images, and on a CPU to the same losses, bit by bit; what cannot act on
    the device is left out, as in a run. Only `xray`, which is measuring, is not in it. The last
    lines print the losses and the throughput. `.save("train.py")`, `.text`.

    Args:
        what: A Pipeline, written for this machine (about 2 s); or the Run of one, for the device
            and sizes that it ran with, elsewhere too.
        before: Return only the statements that differ from this one's, at once; they hold what
            was asked for, whatever this machine can do.

    Raises:
        ValueError: It is neither, or a knob of it cannot be written: the message names it.
    """
    for one in (what, before or what):
        if not isinstance(getattr(one, "asked", one), Pipeline):
            raise ValueError(
                f"lk.script({type(one).__name__}): give a Pipeline, or the Run of one; for a "
                "loader of your own, lk.tune(loader).script() writes its DataLoader."
            )
    asked = getattr(what, "asked", what)
    if before is not None:
        old = getattr(before, "asked", before)
        lines = changed_lines(old.to_dict(), asked.to_dict())
        none = "nothing changed" if old == asked else "these knobs are not in the script"
        return Script(lines or f"# {none}\n")
    if isinstance(what, Run):
        job, left_out = what.pipeline.to_dict(), what.not_applied
        threads = what.machine.threads if what.machine.kind == "cpu" else None
    else:
        job, left_out, threads = _on_this_machine(asked)
    about = f"What {asked!r} does on {job['device']}."
    about += "".join(f" Left out: {name} ({why})." for name, why in left_out.items())
    title = "A training script in plain PyTorch.\n\n"
    return Script(whole_script(job, threads, title + textwrap.fill(about, 99) + "\n"))


@functools.lru_cache(64)
def _on_this_machine(pipeline: Pipeline) -> tuple[dict[str, Any], dict[str, str], int | None]:
    """Return the job that a pipeline is here, what was not applied and why, and a CPU's threads."""
    asked = json.dumps(pipeline.to_dict())
    found = asked_of("labkit.bench.resolve_config", str(folders.home()), asked)
    return found["job"], found["not_applied"], found["threads"]
