"""A diagnosis in a notebook: three lines, buttons that copy, and all findings folded below."""

from __future__ import annotations

import html
from dataclasses import replace

from labkit.diagnosis.verdict import Diagnosis
from labkit.results.result import copy_buttons


def html_of(verdict: Diagnosis) -> str:
    """Return a diagnosis as HTML."""
    what, why, do = (html.escape(line) for line in verdict.three_lines)
    for words, address in verdict.findings[0].places.items():
        place = html.escape(words)
        do = do.replace(place, f"<a href='{html.escape(address)}'>{place}</a>", 1)
    text = f"<b>{what}</b><div>{why}</div><div style='white-space:pre-wrap'>{do}</div>"
    details = verdict.details
    more = replace(details, copies={})._repr_html_()
    folded = f"<details><summary>all findings</summary>{more}</details>"
    return f"{text}{copy_buttons(details.copies)}{folded}"
