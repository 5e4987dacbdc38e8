"""Challenge: after how many steps a compilation has paid."""

from __future__ import annotations

from typing import Any

from labkit.bench.workbench import Workbench

CASES = {
    (30, 20, 15): 6000,
    (1, 7, 4): 334,  # 333 steps save 999 ms
    (10, 12, 12): None,
    (10, 12, 15): None,
    (0, 10, 5): 0,
}


def check(answer: Any, bench: Workbench) -> None:
    """Compare with what the numbers say."""
    wrong = sum(answer(*case) != right for case, right in CASES.items())
    bench.write("steps", values={"wrong": wrong})


# -- answers: one that passes, and some that do not ------------------------------------------


def pays_after(compile_s, eager_ms, compiled_ms):
    """The first step count by which the saved milliseconds are at least those of compiling."""
    import math

    saved_ms = eager_ms - compiled_ms
    return math.ceil(1000 * compile_s / saved_ms) if saved_ms > 0 else None


def rounded_down(compile_s, eager_ms, compiled_ms):
    """One step too early."""
    saved_ms = eager_ms - compiled_ms
    return int(1000 * compile_s // saved_ms) if saved_ms > 0 else None


def always_pays(compile_s, eager_ms, compiled_ms):
    """Slower code never pays."""
    return max(0, round(1000 * compile_s / ((eager_ms - compiled_ms) or 1)))


def constant(compile_s, eager_ms, compiled_ms):
    """Knows the example."""
    return 6000
