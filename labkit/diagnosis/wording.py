"""Findings as sentences: what holds a run back, why, and what to do.

A rule states each number and what it is a number of; here these become lines of text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, Unit, WordedFinding
from labkit.diagnosis.pasted import ready_to_paste
from labkit.diagnosis.prediction import WORTH
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.trainer_code import OF_LOADER, trainer_lines
from labkit.knobs import as_typed
from labkit.results.script import changed_lines, script_for_any_device
from labkit.spec import knobs_with

FORMATS: Mapping[Unit, str] = {
    "share": "{:.0%}",
    "ms": "{:.1f} ms",
    "s": "{:.0f} s",
    "times": "{:.1f}x",
    "cores": "{:.1f} cores",
    "GiB": "{:.1f} GiB",
    "number": "{:.2g}",
    "count": "{:.0f}",
}
NOTHING_TO_SET = f"No setting is expected to gain as much as {WORTH:.0%}."
NAMED = re.compile(rf"\b({'|'.join(OF_LOADER)})\b")  # arguments that a Trainer has other names for


def worded(finding: Finding, evidence: Evidence | None = None) -> WordedFinding:
    """Return a finding with its evidence, its advice and the code to paste, in words.

    Without evidence there are no settings to fill in, and no code.
    """
    advice = _advice(finding, evidence)
    if evidence is not None and evidence.trainer:
        advice = NAMED.sub(lambda named: OF_LOADER[named[0]], advice)
    code = "" if evidence is None else _code(finding, evidence)
    return WordedFinding(**vars(finding), evidence=why(finding), advice=advice, code=code)


def measured_text(measured: Measured) -> str:
    """Return one number and what it is."""
    if measured.value is None:
        return measured.what
    number = FORMATS[measured.unit].format(measured.value)
    return f"{measured.before} {number} {measured.what}".strip()


def why(finding: Finding) -> str:
    """Return the numbers of a finding, with the instruments."""
    text = "; ".join(measured_text(each) for each in finding.measured)
    behind = dict.fromkeys(each.by for each in finding.measured if each.by)
    text += f" ({'; '.join(behind)})" if behind else ""
    return f"{text}." if text else ""


def _advice(finding: Finding, evidence: Evidence | None) -> str:
    """Return what to change first, what to expect of it, and where that is explained."""
    if not finding.remedies:
        return NOTHING_TO_SET if finding.lost_share else ""
    parts = [
        finding.remedies[0].text,
        _expectation(finding, evidence),
        "" if _of_bench(evidence) else _beside(finding),
        _where_to_read(finding),
    ]
    return " ".join(filter(None, parts))


def _of_bench(evidence: Evidence | None) -> bool:
    """Return whether evidence is of a pipeline of the bench, and of no user's loop."""
    return evidence is not None and evidence.code is None


def _beside(finding: Finding) -> str:
    """Return what else to try against a loader: a setting, or the line to make cheaper."""
    first, *others = finding.remedies
    if finding.name != "input":
        return ""
    if first.changes:
        line = next((each for each in others if each.at_most), None)
        if line is None or not line.at_most:
            return ""
        return f"Or {line.text[0].lower()}{line.text[1:]} {_at_most(line.at_most)}"
    tried = next((each.changes for each in others if each.changes), None)
    if tried is None:
        return ""
    named = {name: value for name, value in tried.items() if value or name == "num_workers"}
    return f"Or try {as_typed(named)}."


def _at_most(gain: float) -> str:
    return f"At most {gain:.1f} times as many steps."


def _where_to_read(finding: Finding) -> str:
    """Return the section that teaches the first remedy, and the page of the cause."""
    return f"See {', and '.join(finding.places)}." if finding.places else ""


def _expectation(finding: Finding, evidence: Evidence | None) -> str:
    """Return what the first remedy should bring a bench's pipeline, or a user's loop at most."""
    if not finding.lost_share:
        return ""
    if finding.expected:
        value, low, high = finding.expected
        return f"Expect {value:.1f}x the throughput ({low:.1f}x to {high:.1f}x)."
    if finding.at_most and _of_bench(evidence):
        return f"Expect {finding.at_most:.1f}x the throughput at most."
    bound = finding.remedies[0].at_most or finding.at_most
    if bound and evidence is not None and bound == evidence.headroom:
        return f"With ready batches this loop would do {bound:.1f} times as many steps."
    if bound:
        return _at_most(bound)
    can_be_tuned = finding.name == "input" and any(each.changes for each in finding.remedies)
    how = "`labkit tune`" if can_be_tuned else "a run before and after"
    return f"What it brings is unknown: measure it with {how}."


def _code(finding: Finding, evidence: Evidence) -> str:
    """Return what to type for the first remedy, in plain PyTorch or for a Trainer.

    "" for a remedy of words alone, and on a CPU for one that may as well make it slower, which
    nothing has measured.
    """
    if not finding.remedies:
        return ""
    remedy = finding.remedies[0]
    is_doubtful = not remedy.changes.keys().isdisjoint(knobs_with("doubtful"))
    if evidence.kind == "cpu" and is_doubtful and not finding.expected:
        return ""
    lines = _changed(remedy, evidence)
    if remedy.changes and not lines:
        return ""
    if evidence.code is not None:
        names = evidence.code.names
    else:
        names = set(re.findall(r"\w+", script_for_any_device(dict(evidence.knobs))))
    return ready_to_paste(remedy.code + lines, names)


def _changed(remedy: Remedy, evidence: Evidence) -> str:
    """Return the lines that make the settings of a remedy, with the user's own arguments kept."""
    code = evidence.code
    if code is None:
        if not remedy.changes:
            return ""
        return changed_lines(dict(evidence.knobs), {**evidence.knobs, **remedy.changes})
    if evidence.trainer:
        return trainer_lines(code.training, remedy.changes, code.cards)
    if remedy.arguments:
        line = code.loader_line({}, remedy.arguments)
        return f"{line}\n" if line else ""
    return code.lines(remedy.changes)
