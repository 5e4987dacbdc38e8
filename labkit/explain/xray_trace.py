"""The trace of a run's x-ray, read by the same reader as any other profiler trace."""

from __future__ import annotations

from typing import Any

from labkit.explain.trace import trace

FILE_NAME = "xray.json.gz"  # written by labkit.bench.xray into the run's folder


def read(run: Any) -> Any:
    """Return the Breakdown of the x-ray of `run`; None where its folder holds no trace."""
    path = run.path / FILE_NAME
    return trace(path) if run.path.is_dir() and path.is_file() else None
