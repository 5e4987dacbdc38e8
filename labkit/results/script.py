"""`lk.script(pipeline)`: what a pipeline does, in plain PyTorch; or the lines that knobs change.

`labkit/data/train.py.jinja` is the script, with a place for every knob.
"""

from __future__ import annotations

import ast
import difflib
import os
import textwrap
from pathlib import Path

from labkit.bench.resolve_config import resolve_config
from labkit.instruments.loader_knobs import LEAST_WARMUP, warmup_steps
from labkit.knobs import Settings
from labkit.results import saving
from labkit.results.hardware import machine
from labkit.results.run_data import RunData
from labkit.results.templates import template
from labkit.spec import GRAPH_MODES, KNOBS, LOADER_KNOBS, PYTORCH_PREFETCH, Pipeline, automatic

WIDTH = 100  # columns of a line at most
INDENT = 4  # before the statements of main()


class Script(str):
    """Plain PyTorch code: a string that prints as code."""

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write the code to a file, such as "train.py"; return its path.

        A file that is there is replaced only with `overwrite`, else FileKept is raised.
        """
        return saving.save_text(path, self, overwrite)

    def __repr__(self) -> str:
        return str(self).rstrip("\n")


def script(what: Pipeline | RunData, *, before: Pipeline | RunData | None = None) -> Script:
    """Return a pipeline as a training script in plain PyTorch, without labkit.

    It trains the same model with the same optimizer on the same data. What cannot act on the device
    is left out, and so is `xray`. It ends by printing the loss and the throughput.

    Args:
        what: A Pipeline, written for this machine (about 2 s); or a Run, for where it ran.
        before: Return the changed lines instead, as a unified diff from this one's script. They
            hold what was asked for, whether this machine can do it or not, and of a Run what was
            found for knobs that were left open, such as the width.

    Raises:
        ValueError: It is neither, or a knob of it cannot be written: the message names it.
    """
    if before is not None:
        old, new = (_code_of(_job_of(_knobs_of(each))).splitlines() for each in (before, what))
        names = ("before/train.py", "after/train.py")
        text = "\n".join(difflib.unified_diff(old, new, *names, lineterm="", n=1))
        return Script(f"{text or '# nothing changed'}\n")
    asked = _pipeline_of(what)
    if isinstance(what, RunData):
        here = what.machine
        job, left_out = what.pipeline.to_dict(), what.not_applied
    else:
        here = machine()
        is_here = asked.device == "auto" or here.device.startswith(asked.device)
        found, left_out = resolve_config(
            asked.to_dict(), vars(here) if is_here else {"device": asked.device}
        )
        job = vars(found)
    left = "".join(f" Left out: {name} ({why})." for name, why in left_out.items())
    about = f"What {asked!r} does on {job['device']}.{left}"
    return Script(whole_script(job, here.threads if job["device"] == "cpu" else None, about))


def _pipeline_of(what: Pipeline | RunData) -> Pipeline:
    """Return the Pipeline that was asked for; raise ValueError where there is none."""
    asked = getattr(what, "asked", what)
    if type(asked) is Pipeline:  # none that was watched
        return asked
    raise ValueError(f"lk.script({type(what).__name__}): give a Pipeline, or the Run of one.")


def _knobs_of(what: Pipeline | RunData) -> Settings:
    """Return the knobs that were asked for; of a Run, those left open as they then were."""
    asked = _pipeline_of(what).to_dict()
    found = what.pipeline.to_dict() if isinstance(what, RunData) else {}
    return found | {name: value for name, value in asked.items() if value is not None}


def whole_script(job: Settings, threads: int | None, about: str) -> str:
    """Return the script of a `job`, every knob with the value that runs; `threads` on a CPU.

    ValueError names the knob that cannot be written.
    """
    if job["width"] is None or job["depth"] is None:
        raise ValueError(
            "width=None is chosen for the device that the script is for, which is not here: state "
            "width and depth, or give lk.script a Run that was measured on it."
        )
    # the steps of prefetched batches are left out of the throughput, or a third
    warmup = max(1, min(warmup_steps(job), job["steps"] // 3))
    return _code_of(job, threads, warmup, textwrap.fill(about, WIDTH - 1))


def changed_lines(before: Settings, after: Settings) -> str:
    """Return the statements of the script of `after` that the one of `before` does not have.

    Both are {knob: value} of a Pipeline; knobs that are missing or None have their defaults.
    """
    kept = _statements(before)
    return "".join(f"{text}\n" for text in _statements(after) if text not in kept)


def loader_line(knobs: Settings) -> str:
    """Return the statement that makes a pipeline's loader; `knobs` as in `changed_lines`."""
    return f"loader = {_loader_call(_job_of(knobs))}"


def _job_of(knobs: Settings) -> Settings:
    """Return every knob, those that are missing or None with their defaults."""
    job = {name: knob.default for name, knob in KNOBS.items()}
    job |= {name: value for name, value in knobs.items() if value is not None}
    return job | {name: value for name, value in automatic(job).items() if job[name] is None}


def _statements(knobs: Settings) -> list[str]:
    """Return what a pipeline's script sets up, and what its loop does, statement by statement."""
    code = _code_of(_job_of(knobs))
    tree = ast.parse(code).body
    nodes: list[ast.stmt] = [node for node in tree if isinstance(node, ast.Assign)]
    [main] = (each for each in tree if isinstance(each, ast.FunctionDef) and each.name == "main")
    for node in main.body:
        nodes += node.body if isinstance(node, ast.For) else [node]
    lines = code.split("\n")
    texts = ("\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes)
    return list(map(textwrap.dedent, texts))


def _code_of(
    job: Settings, threads: int | None = None, warmup: int = LEAST_WARMUP, about: str = ""
) -> str:
    """Return the template, filled in for a job: all alone, for a GPU or a CPU alike."""
    return template("train.py.jinja").render(
        job,
        about=about,
        graph_modes=GRAPH_MODES,
        loader=_loader_call(job),
        threads=threads,
        warmup=warmup,
    )


def _loader_call(job: Settings) -> str:
    """Return the call that makes the DataLoader of a job."""
    arguments = [f"batch_size={job['batch_size']}", "shuffle=True"]
    for name in LOADER_KNOBS:
        value = job[name]
        is_default = not value or (name, value) == ("prefetch_factor", PYTORCH_PREFETCH)
        if name == "num_workers" or not (is_default or name == "batch_size"):
            arguments.append(f"{name}={value!r}")
    return call_lines("DataLoader", ["dataset", *arguments], len("loader"))


def call_lines(call: str, arguments: list[str], name: int) -> str:
    """Return `call(arguments)`, wrapped where it is too long after a name of `name` letters."""
    line = f"{call}({', '.join(arguments)})"
    if len(line) <= WIDTH - INDENT - len(" = ") - name:
        return line
    return "\n".join([f"{call}(", *(f"    {argument}," for argument in arguments), ")"])
