"""Which of the losses that the rules find are worth a name, and which comes first."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import rules
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.device_remedies import NOTHING_LEFT, PROFILE_FIRST, USE_THE_CARD
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import DEVICE_LIMIT, NEIGHBOUR, Finding, Measured
from labkit.diagnosis.script_rules import of_the_whole


def losses(evidence: Evidence) -> tuple[list[Finding], dict[str, float]]:
    """Return what every rule finds, however small, and each bottleneck's loss: causes add up."""
    every = [rule(evidence) for rule in rules.RULES]
    found = _each_once([finding for finding in every if finding])
    found = of_the_whole(found, evidence)
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return found, total


def _each_once(found: list[Finding]) -> list[Finding]:
    """Take what a neighbour makes of the launches' time out of what else tells of launches."""
    launches = [finding for finding in found if finding.name == "launch"]
    lost = sum(f.lost_share for f in launches if f.cause == NEIGHBOUR)
    total = sum(f.lost_share for f in launches) - lost
    if not lost or total <= 0:
        return found
    left = max(total - lost, 0.0) / total
    return [
        replace(finding, lost_share=finding.lost_share * left)
        if finding.name == "launch" and finding.cause != NEIGHBOUR
        else finding
        for finding in found
    ]


def by_cost(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    found, total = losses(evidence)
    limit = limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    shown = {name: sum(f.lost_share for f in named if f.name == name) for name in total}
    named.sort(key=lambda finding: (-shown[finding.name], -finding.lost_share))
    causes = {finding.cause for finding in named}
    warned = [rule(evidence) for rule in rules.WARNINGS]
    named += [finding for finding in warned if finding and finding.cause not in causes]
    named[:0] = [finding for rule in rules.FIRST if (finding := rule(evidence))]
    verdict = tuple(named) or (_healthy(evidence, total),)
    past = [rule(evidence) for rule in rules.PAST]
    return (*verdict, *filter(None, past))


def helpful_first(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put a loss that no remedy is expected to make smaller after one that a remedy does."""
    first, *rest = findings
    if first.remedies or not first.lost_share:
        return findings
    helped = next((each for each in rest if each.remedies and each.lost_share), None)
    return findings if helped is None else (helped, *(f for f in findings if f is not helped))


def _healthy(evidence: Evidence, total: dict[str, float]) -> Finding:
    """Return the verdict that no loss is worth a name."""
    limit = limits.WORTH_NAMING
    name = max(total, key=lambda each: total[each] / limit[each])
    near = f"of the time is {name}, the nearest loss, with a threshold of {limit[name]:.0%}"
    computes = "the host is in the loop's body" if evidence.launches_only else "the device computes"
    measured = [
        Measured(
            f"of the time {computes}, and no loss reaches its threshold",
            evidence.compute_share,
            by=evidence.source,
        ),
        Measured(near, total[name]),
    ]
    remedies = (USE_THE_CARD, PROFILE_FIRST) if evidence.loop else (NOTHING_LEFT,)
    return Finding("compute", DEVICE_LIMIT, 0.0, tuple(measured), remedies)


def lead(evidence: Evidence) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    _, total = losses(evidence)
    nearest = max(loss / limits.WORTH_NAMING[name] for name, loss in total.items())
    if nearest < 1:
        return 1 - nearest
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / nearest, *(loss / first for loss in rest[:1])])
