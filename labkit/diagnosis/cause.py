"""A cause: a function that looks at the evidence, with the page that explains what it finds.

It takes the `Evidence` and returns a `Finding`, however little it costs, or
None; where it asks for what was not measured it is not judged. Its docstring has the condition, and
the thresholds in it by their names in `thresholds.py`. The functions stand in
`labkit/diagnosis/causes`, in the order in which they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from labkit.diagnosis.evidence import Evidence, NotMeasured, asked
from labkit.diagnosis.findings import Finding, explains

Rule = Callable[[Evidence], Finding | None]
LOSS = "loss"  # what costs device time: the losses of each bottleneck add up
LATE = "late"  # why the loop waits for data: the first that is found counts
FIRST = "first"  # said before all else: it slows everything that was measured
WARNING = "warning"  # said whatever it costs


class Cause(NamedTuple):
    """A rule, when it is asked, and the causes that it may name."""

    rule: Rule
    when: str
    names: tuple[str, ...]


CAUSES: list[Cause] = []


def cause(page: str, *names: str, when: str = LOSS) -> Callable[[Rule], Rule]:
    """Register a rule that finds causes of these names, which a page of the symptoms explains."""
    explains(page, *names)

    def registered(rule: Rule) -> Rule:
        CAUSES.append(Cause(rule, when, names))
        return rule

    return registered


def found(evidence: Evidence, when: str = LOSS) -> Iterator[Finding]:
    """Yield what the causes of a kind find that can be judged from this evidence."""
    for each in CAUSES:
        finding = asked(each.rule, evidence) if each.when == when else None
        if finding is not None:
            yield finding


def not_judged(evidence: Evidence) -> dict[str, list[str]]:
    """Return the instruments that a run could have had and had not, and what asked for them."""
    could_have = {
        "xray": evidence.of_bench,
        "workers": evidence.has_workers,
        **dict.fromkeys(("kernels", "heat", "launches"), evidence.kind == "gpu"),
    }
    missing: dict[str, list[str]] = {}
    for each in CAUSES:
        try:
            each.rule(evidence)
        except NotMeasured as lacking:
            if could_have.get(str(lacking)):
                missing.setdefault(str(lacking), []).extend(each.names)
    return missing
