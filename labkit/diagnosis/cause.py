"""A cause: a function that looks at the evidence, and what it finds.

It takes the `Evidence` and returns a `Finding`, however little it costs, or
None; where it asks for what was not measured it is not judged. Its docstring has the condition, and
the thresholds in it by their names in `thresholds.py`. The functions stand in
`labkit/diagnosis/causes`, in the order in which they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import Finding

Rule = Callable[[Evidence], Finding | None]
LOSS = "loss"  # what costs device time: the losses of each bottleneck add up
LATE = "late"  # why the loop waits for data: the first that is found counts
WARNING = "warning"  # said whatever it costs
CAUSES: dict[str, list[Rule]] = {LOSS: [], LATE: [], WARNING: []}


def cause(when: str) -> Callable[[Rule], Rule]:
    """Register a rule, which is asked as one of LOSS, LATE and WARNING."""

    def registered(rule: Rule) -> Rule:
        CAUSES[when].append(rule)
        return rule

    return registered


def found(evidence: Evidence, when: str) -> Iterator[Finding]:
    """Yield what the causes of a kind find that can be judged from this evidence."""
    for rule in CAUSES[when]:
        finding = asked(rule, evidence)
        if finding is not None:
            yield finding
