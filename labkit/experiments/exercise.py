"""An answer to a challenge, tried out: unpickled here, in a process of its own, and measured."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import time
from pathlib import Path
from typing import Any

import torch

from labkit.bench.workbench import Workbench

# What a measurement relies on. An answer that replaces one of them is refused.
CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "sleep")
TORCH = ("allclose", "isfinite", "equal", "randn", "compile")  # Dynamo itself wraps manual_seed


def measure(job: Any, bench: Workbench) -> None:
    """Run the check of exercise `job.task` on the reader's answer.

    The checks are in `labkit.course.exercises`, one module each with `check(answer, bench)`. They
    write measurements; a point named "refused" says why the answer does not count.
    """
    if not str(job.task).isidentifier():
        raise ValueError(f"task={job.task!r} is no exercise.")
    module = importlib.import_module(f"labkit.course.exercises.{job.task}")
    before = _relied_on(module)
    try:
        answer = _unpacked(bench.answer)
        module.check(answer, bench)
    except Refused as refused:
        refuse(bench, str(refused))
    except Exception as error:  # the reader's code may raise anything
        refuse(bench, f"It raised {type(error).__name__}: {str(error)[:300]}")
    if changed := [
        name for name, thing in _relied_on(module).items() if thing is not before.get(name, thing)
    ]:
        refuse(bench, f"It replaces {', '.join(changed)}: then nothing can be measured.")


class Refused(Exception):
    """An answer that does not do the same work; the message says what it does instead."""


def refuse(bench: Workbench, why: str) -> None:
    """Say why the answer does not count."""
    bench.write("refused", values={"why": why})


def _unpacked(path: Path) -> Any:
    """Read the answer, which the reader's own kernel wrote for this process, and delete it."""
    try:
        return pickle.loads(path.read_bytes())
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _relied_on(check: Any) -> dict[str, Any]:
    found = {f"time.{name}": getattr(time, name) for name in CLOCKS}
    found |= {f"torch.{name}": getattr(torch, name) for name in TORCH}
    return found | {f"the check's {name}": thing for name, thing in vars(check).items()}
