"""From what every rule finds to an order of the bottlenecks: the costliest loss first."""

from __future__ import annotations

from labkit.analysis import thresholds as limits
from labkit.analysis.facts import Facts
from labkit.analysis.finding import Finding
from labkit.analysis.rules import RULES


def losses(facts: Facts) -> list[Finding]:
    """Return what every rule finds, however small."""
    return [finding for rule in RULES if (finding := rule(facts)) is not None]


def totals(found: list[Finding]) -> dict[str, float]:
    """Return the loss of each bottleneck: causes of the same one add up."""
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return total


def rank(facts: Facts) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    found = losses(facts)
    total, limit = totals(found), limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    named.sort(key=lambda f: (-total[f.name], -f.lost_share))
    return tuple(named) or (_healthy(facts, total),)


def _healthy(facts: Facts, total: dict[str, float]) -> Finding:
    name = max(total, key=lambda n: total[n] / limits.WORTH_NAMING[n])
    return Finding(
        "compute",
        "the device is the limit",
        f"the device computes for {facts.shares['compute']:.0%} of the time and no loss reaches "
        f"its threshold; the nearest is {name}, {total[name]:.0%} of the time with a threshold of "
        f"{limits.WORTH_NAMING[name]:.0%} ({facts.source}).",
        "Nothing in the pipeline holds the device back: a larger batch (notebook 04 Batch sizing), "
        "a smaller model or a faster device is what is left.",
        0.0,
    )


def lead(facts: Facts) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    total, limit = totals(losses(facts)), limits.WORTH_NAMING
    above = {name: loss / limit[name] for name, loss in total.items()}
    if max(above.values()) < 1:
        return 1 - max(above.values())
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / max(above.values()), *(loss / first for loss in rest[:1])])
