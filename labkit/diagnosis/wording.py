"""What to do about a finding: its remedies as they are for a run, in words and as code to paste."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Remedy, gain_without
from labkit.diagnosis.hot_lines import MAKING, Line
from labkit.prediction.prediction import WORTH, predict
from labkit.results.run_data import RunData
from labkit.results.script import changed_lines
from labkit.results.templates import DATA

NOTHING_TO_SET = f"No setting is expected to gain as much as {WORTH:.0%}."
NOTHING_KNOWN = Evidence(kind="cpu")
# Losses beside which their remedies also shorten what else the device does
UNBOUNDED = ("launch", "memory_bandwidth", "precision", "communication")


def with_advice(
    finding: Finding, evidence: Evidence = NOTHING_KNOWN, run: RunData | None = None
) -> Finding:
    """Return a finding with the remedies that are for its run, the advice and the code to paste.

    What a remedy brings is known of a bench's own pipeline alone, by simulation: one that
    would gain no more than noise is left out. Of a user's loop the most is known that batches which
    are ready would bring.
    """
    most = finding.at_most or _most(finding, evidence)
    # Else the loader does not hold this loop back
    is_worth = most is None or most > 1 + WORTH
    found = [(remedy, _gain(remedy, run)) for remedy in finding.remedies if is_worth]
    kept = [(remedy, gain) for remedy, gain in found if gain is None or gain[0] > 1 + WORTH]
    remedies = tuple(remedy for remedy, _ in kept)
    finding = replace(
        finding, remedies=remedies, expected=kept[0][1] if kept else None, at_most=most
    )
    finding = known_call_first(finding)
    code = _code(finding.remedies[0], evidence) if finding.remedies else ""
    return replace(finding, advice=_advice(finding), code=code)


def _gain(remedy: Remedy, run: RunData | None) -> tuple[float, float, float] | None:
    """Return the gain of a remedy's settings and its range; None where nothing simulates it."""
    if not remedy.changes or run is None or run.watched:
        return None
    found = predict(run, **remedy.changes)
    if not run.throughput or not found.throughput or found.throughput_range is None:
        return None
    low, high = found.throughput_range
    return found.throughput / run.throughput, low / run.throughput, high / run.throughput


def _most(finding: Finding, evidence: Evidence) -> float | None:
    """Return the most that a finding's remedies may bring; None: nothing bounds it.

    Replay leaves out the start of a pass, for which workers that start anew make a loop wait.
    Workers that have a CPU's cores make its steps longer, too.
    """
    if not finding.lost_share or finding.name in UNBOUNDED:
        return None
    if finding.name == "input" and finding.cause != "workers_restart":
        replayed = evidence.known("headroom")
        if replayed is not None or (evidence.kind == "cpu" and evidence.num_workers):
            return replayed and max(1.0, replayed)
    return gain_without(finding.lost_share)


def _advice(finding: Finding) -> str:
    """Return what to change first, what to expect of it, and where that is explained."""
    first = finding.remedies[0].text if finding.remedies else finding.advice
    expected = ""
    if finding.lost_share:
        expected = _expectation(finding) if finding.remedies else NOTHING_TO_SET
    return " ".join(filter(None, [first, expected, f"See {finding.page}."]))


def _expectation(finding: Finding) -> str:
    """Return what the first remedy should bring a bench's pipeline, or a user's loop at most."""
    if finding.expected:
        value, low, high = finding.expected
        return f"Expect {value:.1f}x the throughput ({low:.1f}x to {high:.1f}x)."
    if finding.at_most:
        return f"At most {finding.at_most:.1f} times as many steps."
    return "What it brings is unknown: measure it with a run before and after."


def _code(remedy: Remedy, evidence: Evidence) -> str:
    """Return what to type for a remedy, in plain PyTorch; "" for one of words alone."""
    if not evidence.of_bench:
        return remedy.code + evidence.code.lines(remedy.changes)
    knobs = dict(evidence.knobs)
    return remedy.code + changed_lines(knobs, knobs | dict(remedy.changes))


# -- calls that are known to be slow where they stand ----------------------------------------------

FILE = DATA / "known_calls.csv"
MOST = 0.3  # part of what a finding costs, from which a known call is the first thing to change


@functools.cache
def known_calls() -> list[Any]:
    """Return all rows, with the columns as attributes."""
    import pandas

    return [*pandas.read_csv(FILE, keep_default_na=False).itertuples(index=False)]


def known_call(line: Line) -> Any:
    """Return the row of what is known of a line; None of most."""
    where = "", "loading" if line.phase in MAKING else "body"
    text = f"{line.call} ({line.kind})"  # of a manager's proxy the call alone does not tell it
    rows = (row for row in known_calls() if row.where in where and re.search(row.call, text))
    return next(rows, None) if line.call else None


def known_call_first(finding: Finding) -> Finding:
    """Put in front what helps the line that takes most of a finding's time, if that is known."""
    line = finding.lines[0] if finding.lines else None
    row = known_call(line) if line and line.share >= MOST * finding.lost_share else None
    if line is None or row is None:
        return finding
    text = f"{line.what}: {row.slow}. {row.do}"
    remedy = Remedy("known_call", text)
    return replace(finding, remedies=(remedy, *finding.remedies), expected=None)
