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
        finding = _filled(finding, evidence, run)
        code = _code(finding.remedies[0], evidence) if finding.remedies else ""
    return replace(finding, advice=_advice(finding), code=code)


def _filled(finding: Finding, evidence: Evidence, run: RunData | None) -> Finding:
    """Return a finding with its remedies as they are for a run, and what the first should bring.

    That is known of a bench's own pipeline alone, by simulation: a remedy that is sure to gain goes
    before the others, and one that would gain no more than noise is left out. Of a user's loop the
    most is known that batches which are ready would bring.
    """
    made = filter(None, (remedy.for_run(evidence) for remedy in finding.remedies))
    found = [(remedy, _gain(remedy, run)) for remedy in made]
    most = _most(finding, evidence)
    if most <= 1 + WORTH:
        found = []  # the loader does not hold this loop back
    kept = [(remedy, gain) for remedy, gain in found if gain is None or gain.value > 1 + WORTH]
    kept.sort(key=lambda each: each[1] is None or each[1].low <= 1)  # the sure ones in front
    finding = replace(
        finding,
        remedies=tuple(remedy for remedy, _ in kept),
        expected=kept[0][1] if kept else None,
        at_most=most if most < math.inf else None,
    )
    return known_first(finding) if evidence.known("loop") else finding


def _gain(remedy: Remedy, run: RunData | None) -> Estimate | None:
    """Return the gain of a remedy's settings; None where nothing simulates it."""
    if not remedy.changes or run is None or run.watched or not run.throughput:
        return None
    found = predict(run, **remedy.changes)
    if not found.throughput or found.throughput_range is None:
        return None
    return Estimate(*(r / run.throughput for r in (found.throughput, *found.throughput_range)))


def _most(finding: Finding, evidence: Evidence) -> float:
    """Return the most that a finding's remedies may bring; infinite: nothing bounds it.

    Replay leaves out the start of a pass, for which workers that start anew make a loop wait.
    Workers that have a CPU's cores make its steps longer, too.
    """
    most = finding.at_most or math.inf
    if finding.name != "input" or not finding.lost_share or evidence.of_bench:
        return most
    replayed = evidence.known("headroom")
    if replayed is not None and finding.cause != "workers_restart":
        return min(most, replayed)
    beside = evidence.kind == "cpu" and evidence.has_workers
    return most if beside else min(most, gain_without(finding.lost_share))


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
    knobs, changes = dict(evidence.knobs), dict(remedy.changes)
    if not changes:
        return as_comment(remedy.code)
    of_bench = evidence.of_bench
    lines = changed_lines(knobs, knobs | changes) if of_bench else evidence.code.lines(changes)
    return as_comment(remedy.code) + lines
