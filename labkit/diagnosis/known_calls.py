"""Calls that are known to be slow where they stand: the rows of `labkit/data/known_calls.csv`.

A row has a pattern of a line's text, or of its call, which older records have, where it counts
("loading": where items are prepared; "body"; "" anywhere), an example, what makes it slow, what to
do, and a source. Of several rows that match, the first counts.
"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import replace
from typing import NamedTuple

from labkit.diagnosis.findings import Finding, Remedy
from labkit.diagnosis.hot_lines import MAKING, Line
from labkit.results.templates import DATA

FILE = DATA / "known_calls.csv"
MOST = 0.3  # part of what a finding costs, from which a known call is the first thing to change


class KnownCall(NamedTuple):
    """A row of the table."""

    call: str
    where: str
    example: str
    slow: str
    do: str
    source: str


@functools.cache
def known_calls() -> tuple[KnownCall, ...]:
    """Return all rows."""
    with open(FILE, newline="", encoding="utf-8") as file:
        return tuple(KnownCall(**row) for row in csv.DictReader(file))


def known_call(line: Line) -> KnownCall | None:
    """Return what is known of a line; None of most."""
    where = "loading" if line.phase in MAKING else "body"
    text = f"{line.call} ({line.kind})"  # of a manager's proxy the call alone does not tell it
    for row in known_calls():
        if row.where in ("", where) and line.call and re.search(row.call, text):
            return row
    return None


def known_first(finding: Finding) -> Finding:
    """Put in front what helps the line that takes most of a finding's time, if that is known."""
    line = finding.lines[0] if finding.lines else None
    if line is None or line.share < MOST * finding.lost_share:
        return finding
    row = known_call(line)
    if row is None:
        return finding
    lesson = "items" if line.phase in MAKING else "lines"
    text = f"`{line.call}` ({line.place}): {row.slow}. {row.do}"
    remedy = Remedy("known_call", text, lesson)
    return replace(finding, remedies=(remedy, *finding.remedies), expected=None)
