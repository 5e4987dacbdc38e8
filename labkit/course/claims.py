"""Claims: sentences of the course that the reader's own numbers bear out, or not."""

from __future__ import annotations

import os

from labkit.spec import quick_run

STRICT = "LABKIT_STRICT"  # "1" where a claim that does not hold is an error: the tests set it


def check(claim: str, condition: bool, *, full_length: bool = False) -> None:
    """Print `claim` with a tick where `condition` is true, else "not on this machine: ...".

    Args:
        claim: A sentence, such as "BF16 loses digits, not range".
        condition: Whether the numbers at hand bear it out.
        full_length: The claim needs runs of their full length: in a quick run (LABKIT_QUICK=1)
            it is not judged.

    Raises:
        AssertionError: It does not hold, and LABKIT_STRICT=1 is set, as by the tests.
    """
    if full_length and quick_run():
        print(f"- not judged in a quick run: {claim}")
    elif condition:
        print(f"✓ {claim}")
    elif os.environ.get(STRICT) == "1":
        raise AssertionError(f"does not hold here: {claim}")
    else:
        print(f"✗ not on this machine: {claim}")
