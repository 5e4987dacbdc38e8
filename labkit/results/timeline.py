"""Arithmetic on a run's time: its steps as an array, and how busy the device was by when."""

from __future__ import annotations

from typing import Any

import numpy as np


def stamps_ns(steps: list[dict[str, Any]]) -> np.ndarray:
    """Return (steps, 6) in ns since the first batch was asked for; needs a step at least.

    Columns: asked, ready, copy start, copy end, busy start, busy end. Where the events have no
    device times (a CPU), copy and compute are what the host did.
    """
    rows = []
    for step in steps:
        asked, ready, copied, done = step["t"]
        copy, busy = step.get("copy", (ready, copied)), step.get("busy", (copied, done))
        rows.append((asked, ready, *copy, *busy))
    return np.array(rows, dtype=np.int64) - rows[0][0]


def busy_until(busy: np.ndarray, moments_s: np.ndarray) -> np.ndarray:
    """Return the seconds that the device had been busy by each moment; `busy` is (n, 2), s."""
    done = np.concatenate([[0.0], np.cumsum(busy[:, 1] - busy[:, 0])])
    # Flat between intervals, rising at 1 inside them
    total = np.column_stack([done[:-1], done[1:]]).ravel()
    return np.interp(moments_s, busy.ravel(), total, left=0.0)


def utilization_over_time(busy: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (middle of each bin in s, busy share of it) for busy intervals (n, 2) in s."""
    if len(busy) == 0:
        return np.empty(0), np.empty(0)
    edges = np.linspace(0.0, busy[-1, 1], bins + 1)
    shares = np.diff(busy_until(busy, edges)) / np.diff(edges)
    return (edges[:-1] + edges[1:]) / 2, shares
