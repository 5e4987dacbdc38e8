"""What to do about a finding: its remedies as they are for a run, in words and as code to paste."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Estimate, Finding, Remedy, gain_without
from labkit.diagnosis.known_calls import known_first
from labkit.diagnosis.pasted import ready_to_paste
from labkit.diagnosis.trainer_code import OF_LOADER, trainer_lines
from labkit.knobs import as_typed
from labkit.prediction.prediction import WORTH, predict
from labkit.results.run_data import RunData
from labkit.results.script import changed_lines, script_for_any_device
from labkit.spec import knobs_with

NOTHING_TO_SET = f"No setting is expected to gain as much as {WORTH:.0%}."
NAMED = re.compile(rf"\b({'|'.join(OF_LOADER)})\b")  # arguments that a Trainer has other names for


def worded(
    finding: Finding, evidence: Evidence | None = None, run: RunData | None = None
) -> Finding:
    """Return a finding with the remedies that are for its run, the advice and the code to paste.

    Without evidence there are no settings to fill in, and no code.
    """
    if evidence is not None:
        finding = with_gains(finding, evidence, run)
        finding = known_first(finding) if evidence.loop is not None else finding
    advice = _advice(finding, evidence)
    if evidence is not None and evidence.trainer:
        advice = NAMED.sub(lambda named: OF_LOADER[named[0]], advice)
    code = "" if evidence is None else _code(finding, evidence)
    return replace(finding, advice=advice, code=code)


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
    most = _most(finding, evidence)
    if most is not None and most <= 1 + WORTH:
        kept = []  # the loader does not hold this loop back
    return replace(
        finding,
        remedies=tuple(remedy for remedy, _ in kept),
        expected=kept[0][1] if kept else None,
        at_most=finding.at_most if most is None else min(finding.at_most or most, most),
    )


def _most(finding: Finding, evidence: Evidence) -> float | None:
    """Return the gain of batches that are ready, for a user's loop; None where nothing bounds it.

    Replay leaves out the start of a pass, for which workers that start anew make a loop wait.
    Workers that have a CPU's cores make its steps longer, too.
    """
    if finding.name != "input" or evidence.code is None or not finding.lost_share:
        return None
    if evidence.headroom is not None and finding.cause != "workers_restart":
        return evidence.headroom
    beside = evidence.kind == "cpu" and evidence.has_workers
    return None if beside else gain_without(finding.lost_share)


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
    fewer = count is not None and int(count) < (evidence.num_workers or 0)
    most = math.inf
    if finding.name == "input" and not fewer:  # these give a CPU's model its cores back
        most = 1 / max(evidence.compute_share, 0.01)  # of a loader for which no device ever waits
    rates = (found.throughput, *found.throughput_range)
    return Estimate(*(min(rate / run.throughput, most) for rate in rates))


# -- in words --------------------------------------------------------------------------------------


def _advice(finding: Finding, evidence: Evidence | None) -> str:
    """Return what to change first, what to expect of it, and where that is explained."""
    if not finding.remedies:
        return NOTHING_TO_SET if finding.lost_share else ""
    parts = [
        finding.remedies[0].text,
        _expectation(finding, evidence),
        "" if evidence is not None and evidence.of_bench else _beside(finding),
        f"See {', and '.join(finding.places)}." if finding.places else "",
    ]
    return " ".join(filter(None, parts))


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


def _expectation(finding: Finding, evidence: Evidence | None) -> str:
    """Return what the first remedy should bring a bench's pipeline, or a user's loop at most."""
    if not finding.lost_share:
        return ""
    if finding.expected:
        value, low, high = finding.expected
        return f"Expect {value:.1f}x the throughput ({low:.1f}x to {high:.1f}x)."
    if finding.at_most and evidence is not None and evidence.of_bench:
        return f"Expect {finding.at_most:.1f}x the throughput at most."
    bound = finding.remedies[0].at_most or finding.at_most
    if bound and evidence is not None and bound == evidence.headroom:
        return f"With ready batches this loop would do {bound:.1f} times as many steps."
    if bound:
        return _at_most(bound)
    can_be_tuned = finding.name == "input" and any(each.changes for each in finding.remedies)
    how = "`labkit tune`" if can_be_tuned else "a run before and after"
    return f"What it brings is unknown: measure it with {how}."


# -- as code ---------------------------------------------------------------------------------------


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
