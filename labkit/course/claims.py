"""Claims: sentences of the course that the user's own numbers bear out, or not."""

from __future__ import annotations

import os

from labkit.bench.quick_runs import quick_run

STRICT = "LABKIT_STRICT"  # "1" where a claim that does not hold is an error: the tests set it


def check(claim: str, condition: bool, *, exact: bool = False) -> None:
    """Print `claim` with a tick where `condition` is true, else that it does not hold here.

    Args:
        claim: A sentence, such as "BF16 loses digits, not range".
        condition: Whether the numbers at hand bear it out.
        exact: The claim is about values, not about times: it holds on every machine. One about
            times that fails in a quick run (LABKIT_QUICK=1: short runs, side by side) is not
            judged.

    Raises:
        AssertionError: The claim does not hold although it was judged, and LABKIT_STRICT=1 is set,
            as by the tests.
    """
    if condition:
        print(f"✓ {claim}")
    elif quick_run() and not exact:
        print(f"- not judged in a quick run: {claim}")
    elif os.environ.get(STRICT) == "1":
        raise AssertionError(f"does not hold here: {claim}")
    else:
        print(f"✗ not on this machine: {claim}")
