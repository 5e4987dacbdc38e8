"""The reader's code on its way into a process of its own: by value, and never back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import cloudpickle

PAYLOAD = "attempt.pkl"
MAX_BYTES = 16 * 2**20


class Unsendable(ValueError):
    """An answer that cannot be sent to another process; the message says why."""


class Attempt:
    """A function or class, as the launcher takes it for a `source`."""

    def __init__(self, answer: Any):
        self.answer = answer

    def place(self, folder: Path) -> dict[str, Any]:
        """Write the answer into the run's folder, for its owner alone; return where it is."""
        try:
            data = cloudpickle.dumps(self.answer)
        except Exception as error:  # whatever the reader's objects raise
            raise Unsendable(f"It cannot be sent to another process: {error}") from None
        if len(data) > MAX_BYTES:
            raise Unsendable(
                f"It drags {len(data) / 2**20:.0f} MiB of data along: define what it needs inside."
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(folder / PAYLOAD, flags, 0o600), "wb") as file:
            file.write(data)
        return {"payload": PAYLOAD, "path": [os.path.abspath(p or ".") for p in sys.path]}

    def described(self, spec: Any) -> dict[str, Any]:
        """Return what the run's first event tells: which exercise, nothing of the answer."""
        return spec.to_spec()

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete an answer that was never read."""
        (folder / PAYLOAD).unlink(missing_ok=True)
