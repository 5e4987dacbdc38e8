"""Try an answer out: sent by value to the bench, unpickled there, and given to its check."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.knobs import knob
from labkit.spec import experiment

PAYLOAD = "attempt.pkl"
MAX_BYTES = 16 * 2**20

# What a measurement relies on. An answer that replaces one of them is refused.
CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "sleep")
TORCH = ("allclose", "isfinite", "equal", "randn", "compile")  # Dynamo itself wraps manual_seed


class Refused(Exception):
    """An answer that does not do the same work; the message says what it does instead."""


class Attempt:
    """A function or class on its way to the bench, as the launcher takes it for a `source`."""

    def __init__(self, answer: Any):
        self.answer = answer

    def place(self, folder: Path) -> dict[str, Any]:
        """Write the answer into the run's folder, for its owner alone; return where it is."""
        try:
            data = cloudpickle.dumps(self.answer)
        except Exception as error:  # whatever the reader's objects raise
            raise ValueError(f"It cannot be sent to another process: {error}") from None
        if len(data) > MAX_BYTES:
            raise ValueError(
                f"It drags {len(data) / 2**20:.0f} MiB of data along: define what it needs inside."
            )
        (folder / PAYLOAD).touch(0o600, exist_ok=False)
        (folder / PAYLOAD).write_bytes(data)
        return {"payload": PAYLOAD, "path": [os.path.abspath(p or ".") for p in sys.path]}

    def described(self, spec: Any) -> dict[str, Any]:
        """Return what the run's first event tells: nothing of the answer."""
        return spec.to_spec()


@experiment(
    "an answer to a challenge, tried out",
    task=knob("", "the challenge: module:name", pattern=re.compile(r"|labkit\.course\.nb\d\d:\w+")),
)
def exercise(job: Any, bench: Any) -> None:
    """Write what the check of `job.task` counts, or a point "refused" that says why not."""
    import torch

    def relied_on() -> dict[str, Any]:
        found = {f"time.{name}": getattr(time, name) for name in CLOCKS}
        found |= {f"torch.{name}": getattr(torch, name) for name in TORCH}
        return found | {f"the check's {name}": thing for name, thing in vars(world).items()}

    module, _, name = job.task.partition(":")
    world = importlib.import_module(module)
    check, before = getattr(world, name), relied_on()
    try:
        answer = pickle.loads(bench.answer.read_bytes())  # of the reader's own kernel
        bench.answer.unlink()
        bench.write("answer", values=check(answer, torch))
    except Exception as error:  # the reader's code may raise anything
        raised = f"It raised {type(error).__name__}: {str(error)[:300]}"
        why = str(error) if isinstance(error, Refused) else raised
        bench.write("refused", values={"why": why})
    after = relied_on()
    if changed := [thing for thing in after if after[thing] is not before.get(thing, after[thing])]:
        why = f"It replaces {', '.join(changed)}: then nothing can be measured."
        bench.write("refused", values={"why": why})
