"""What to do about a finding: its remedies as they are for a run, in words and as code to paste."""

from __future__ import annotations

import math
from dataclasses import replace

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Estimate, Finding, Remedy, gain_without
from labkit.diagnosis.known_calls import known_first
from labkit.diagnosis.loader_code import as_comment
from labkit.prediction.prediction import WORTH, predict
from labkit.results.run_data import RunData
from labkit.results.script import changed_lines

NOTHING_TO_SET = f"No setting is expected to gain as much as {WORTH:.0%}."


def worded(
    finding: Finding, evidence: Evidence | None = None, run: RunData | None = None
) -> Finding:
    """Return a finding with the remedies that are for its run, the advice and the code to paste.

    Without evidence there are no settings to fill in, and no code.
    """
    code = ""
    if evidence is not None:
        finding = with_gains(finding, evidence, run)
        finding = known_first(finding) if evidence.loop is not None else finding
        code = _code(finding.remedies[0], evidence) if finding.remedies else ""
    return replace(finding, advice=_advice(finding), code=code)


def with_gains(finding: Finding, evidence: Evidence, run: RunData | None) -> Finding:
    """Return a finding with its remedies filled in for a run, and what the first should bring.

    That is known of a bench's own pipeline alone, by simulation: a remedy that is sure to gain goes
    before the others, and one that would gain no more than noise is left out. Of a user's loop the
    most is known that batches which are ready would bring.
    """
    filled = filter(None, (remedy.for_run(evidence) for remedy in finding.remedies))
    found = [(remedy, _gain(remedy, finding, evidence, run)) for remedy in filled]
    kept = [(remedy, gain) for remedy, gain in found if gain is None or gain.value > 1 + WORTH]
    kept.sort(key=lambda each: each[1] is None or each[1].low <= 1)  # the sure ones in front
    bounds = [finding.at_most or math.inf]
    if finding.name == "input" and finding.lost_share and not evidence.of_bench:
        bounds.append(_with_ready_batches(finding, evidence))
    if min(bounds) <= 1 + WORTH:
        kept = []  # the loader does not hold this loop back
    return replace(
        finding,
        remedies=tuple(remedy for remedy, _ in kept),
        expected=kept[0][1] if kept else None,
        at_most=min(bounds) if min(bounds) < math.inf else None,
    )


def _with_ready_batches(finding: Finding, evidence: Evidence) -> float:
    """Return the gain of batches that are ready, for a user's loop; infinite: nothing bounds it.

    Replay leaves out the start of a pass, for which workers that start anew make a loop wait.
    Workers that have a CPU's cores make its steps longer, too.
    """
    if evidence.headroom is not None and finding.cause != "workers_restart":
        return evidence.headroom
    beside = evidence.kind == "cpu" and evidence.has_workers
    return math.inf if beside else gain_without(finding.lost_share)


def _gain(
    remedy: Remedy, finding: Finding, evidence: Evidence, run: RunData | None
) -> Estimate | None:
    """Return the gain of a remedy's settings; None where nothing simulates it."""
    changes = remedy.changes
    if not changes or run is None or run.watched or not run.throughput:
        return None
    found = predict(run, **changes)
    if not found.throughput or found.throughput_range is None:
        return None
    count = changes.get("num_workers")
    fewer = count is not None and int(count) < evidence.worker_count
    most = math.inf
    if finding.name == "input" and not fewer:  # these give a CPU's model its cores back
        most = 1 / max(evidence.compute_share, 0.01)  # of a loader for which no device ever waits
    rates = (found.throughput, *found.throughput_range)
    return Estimate(*(min(rate / run.throughput, most) for rate in rates))


def _advice(finding: Finding) -> str:
    """Return what to change first, what to expect of it, and where that is explained."""
    if not finding.remedies:
        return NOTHING_TO_SET if finding.lost_share else ""
    expected = _expectation(finding) if finding.lost_share else ""
    read_on = f"See {', and '.join(finding.places)}." if finding.places else ""
    return " ".join(filter(None, [finding.remedies[0].text, expected, read_on]))


def _expectation(finding: Finding) -> str:
    """Return what the first remedy should bring a bench's pipeline, or a user's loop at most."""
    if finding.expected:
        value, low, high = finding.expected
        return f"Expect {value:.1f}x the throughput ({low:.1f}x to {high:.1f}x)."
    most = finding.remedies[0].at_most or finding.at_most
    if most:
        return f"At most {most:.1f} times as many steps."
    can_be_tuned = finding.name == "input" and any(each.changes for each in finding.remedies)
    how = "`labkit tune`" if can_be_tuned else "a run before and after"
    return f"What it brings is unknown: measure it with {how}."


def _code(remedy: Remedy, evidence: Evidence) -> str:
    """Return what to type for a remedy, in plain PyTorch; "" for one of words alone."""
    lines = as_comment(remedy.code)
    if not remedy.changes:
        return lines
    if not evidence.of_bench:
        return lines + evidence.code.lines(remedy.changes)
    return lines + changed_lines(dict(evidence.knobs), {**evidence.knobs, **remedy.changes})
