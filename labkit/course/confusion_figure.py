"""The confusion matrix of the fault set as a figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

RIGHT = LinearSegmentedColormap.from_list("right", ["#FFFFFF", "#009E73"])
WRONG = LinearSegmentedColormap.from_list("wrong", ["#FFFFFF", "#D55E00"])


def draw(score: Any) -> Figure:
    """Draw a `Score`: planted down, named across; right ones green, wrong ones red."""
    planted = list(score.matrix)
    named = list(next(iter(score.matrix.values())))
    counts = np.array([[score.matrix[p][n] for n in named] for p in planted])
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    colours = np.array(
        [
            [(RIGHT if p == n else WRONG)(share[i, j]) for j, n in enumerate(named)]
            for i, p in enumerate(planted)
        ]
    )
    figure = Figure(figsize=(8.2, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(colours, aspect="auto")
    for i, j in zip(*np.nonzero(counts), strict=True):
        axes.text(
            j, i, counts[i, j], ha="center", va="center", fontsize=11,
            color="white" if share[i, j] > 0.6 else "black",
        )  # fmt: skip
    axes.set_xticks(range(len(named)), [_words(n) for n in named], fontsize=9)
    axes.set_yticks(range(len(planted)), [_words(p) for p in planted], fontsize=9)
    axes.set_xticks(np.arange(len(named) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(planted) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#CCCCCC", linewidth=0.8)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("named first by the diagnosis")
    axes.set_ylabel("planted")
    right = "no runs" if score.accuracy is None else f"{score.accuracy:.1%} right"
    title = (
        f"{score.n} runs of the {score.half} half: {right}, {score.false_alarms} healthy called "
        f"sick\n{score.machine} ({score.kind.upper()})"
    )
    axes.set_title(title, loc="left", fontsize=11).set_parse_math(False)
    return figure


def _words(name: str) -> str:
    return {"memory_bandwidth": "memory\nbandwidth", "compute": "compute\n(healthy)"}.get(
        name, name
    )
