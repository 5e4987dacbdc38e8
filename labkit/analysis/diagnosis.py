"""Why is the device idle, and what do I change: `diagnose(run)` gives one answer with evidence."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.analysis.facts import Evidence, Facts, of_trace
from labkit.analysis.finding import WORDS, Finding
from labkit.analysis.ranking import lead, rank
from labkit.analysis.withheld import contradiction, shared, tied, too_short, upper_bound
from labkit.analysis.witnesses import deciding
from labkit.results.event_log import of_one_moment
from labkit.results.ranks import Ranks
from labkit.results.watched import BODY_NOTE

RECORDS = (".jsonl", ".jsonl.gz")
LOOK_INSIDE = "Look inside a few steps: run it with xray=True and 20 steps or more."
PROFILE = "Record a few steps with torch.profiler, and give the trace to lk.diagnose."


@dataclass(frozen=True)
class Diagnosis:
    """What holds a run back.

    Attributes:
        bottleneck: "input", "transfer", "launch", "memory_bandwidth", "precision", "compute"
            (healthy: the device is the limit) or "unsure".
        findings: What costs device time, ranked by how much.
        confidence: 0 to 1: in what share of resampled runs (the steps drawn again with replacement)
            the verdict is the same. Of a trace, whose steps cannot be drawn again: how far the
            first loss is ahead of the second or of its threshold, as a share of itself. It knows
            the noise of the run, not the errors of a rule; for those see the confusion matrix of
            the fault set.
        source: What it was told from; says RECORDED, and on what, where that was not here.
        notes: What limits the verdict.
    """

    bottleneck: str
    findings: tuple[Finding, ...]
    confidence: float
    source: str
    notes: tuple[str, ...] = ()

    @property
    def evidence(self) -> str:
        """The evidence of the first finding."""
        return self.findings[0].evidence

    @property
    def advice(self) -> str:
        """What to change first."""
        return self.findings[0].advice

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON types."""
        return {
            "bottleneck": self.bottleneck,
            "confidence": round(self.confidence, 3),
            "findings": [finding.to_dict() for finding in self.findings],
            "source": self.source,
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return f"{self.bottleneck} ({WORDS[self.bottleneck]})"

    def __str__(self) -> str:
        mark = f"{self.source}: " if self.source.startswith("RECORDED") else ""
        evidence = self.evidence.rstrip(".")
        return f"{mark}Bottleneck {self.headline}: {evidence}. {self.advice}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        say = html.escape
        rows = "".join(
            "<tr style='vertical-align:top'><td style='text-align:left'>"
            f"<b>{say(f.name)}</b><br>{say(f.cause)}</td>"
            f"<td>{f.lost_share:.0%}</td>"
            f"<td style='text-align:left'>{say(f.evidence)}<br><i>{say(f.advice)}</i></td></tr>"
            for f in self.findings[:4]
        )
        notes = "".join(f"<div>{say(note)}</div>" for note in self.notes)
        return (
            "<div style='max-width:860px;border-left:4px solid #0072B2;padding-left:12px'>"
            f"<div style='font-size:115%'>Bottleneck: <b>{say(self.headline)}</b></div>"
            f"<small>{say(self.source)}; confidence {self.confidence:.0%}</small>"
            "<table><tr><th>finding</th><th>time lost</th><th style='text-align:left'>evidence, "
            f"and what to change</th></tr>{rows}</table><small>{notes}</small></div>"
        )


def diagnose(what: Any) -> Diagnosis:
    """Name the bottleneck of a run, a record or a profiler trace.

    Args:
        what: A Run or Ranks; the path of a saved record (.jsonl, .jsonl.gz or a run's folder); or
            the path of a torch.profiler trace (.json, .json.gz).

    Raises:
        RecordError: A record that cannot be used (a ValueError).
        TraceError: A trace that cannot be used (a ValueError).
    """
    if isinstance(what, (str, os.PathLike)):
        path = Path(what)
        if not path.is_dir() and not path.name.endswith(RECORDS):
            from labkit.analysis.trace import trace

            return _of_facts(of_trace(trace(path)), str(path.name))
        from labkit.results.load import load

        what = load(path)
    if isinstance(what, Ranks):
        return what.diagnose()
    found = _of_run(what)
    return replace(found, notes=(BODY_NOTE, *found.notes)) if what.watched else found


@of_one_moment
def _of_run(run: Any) -> Diagnosis:
    source = (
        f"RECORDED on {run.machine.name}" if run.recorded else f"measured on {run.machine.name}"
    )
    evidence = Evidence(run)
    doubt = too_short(evidence)
    if doubt:
        return Diagnosis("unsure", (doubt,), 0.0, source)
    facts = evidence.facts()
    doubt = shared(run, facts) or contradiction(facts)
    if doubt:
        others = [finding for finding in rank(facts) if finding.name != "compute"]
        return Diagnosis("unsure", (doubt, *others), 0.0, source, _notes(facts))
    return _of_facts(facts, source, evidence)


def _of_facts(facts: Facts, source: str, evidence: Evidence | None = None) -> Diagnosis:
    findings = rank(facts)
    bottleneck = findings[0].name
    confidence = lead(facts) if evidence is None else _confidence(evidence, bottleneck)
    if evidence is not None and confidence < limits.MIN_CONFIDENCE:
        findings = (tied(confidence, findings), *findings)
        bottleneck = "unsure"
    if bottleneck == "compute" and _gaps_may_hide(facts):
        remedy = LOOK_INSIDE if _looked_for(facts) else PROFILE
        doubt = upper_bound(facts.shares["compute"], facts.witnesses, remedy)
        return Diagnosis("unsure", (doubt, *findings), 0.0, source, _notes(facts))
    if bottleneck == "compute" and not facts.xray and facts.trace is None:
        confidence = min(confidence, limits.UNSEEN)
    return Diagnosis(bottleneck, findings, confidence, source, _notes(facts))


def _gaps_may_hide(facts: Facts) -> bool:
    """Whether nothing can tell how much of a GPU's busy time it works."""
    return facts.kind == "gpu" and facts.trace is None and deciding(facts.witnesses) is None


def _looked_for(facts: Facts) -> bool:
    """Whether the run could have had an x-ray: a watched loop could not."""
    return facts.knobs.get("xray") is not None


def _confidence(evidence: Evidence, bottleneck: str) -> float:
    """Return the share of resampled runs with the same verdict."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(evidence), (limits.RESAMPLES, len(evidence)))
    same = [rank(evidence.facts(row))[0].name == bottleneck for row in rows]
    return float(np.mean(same))


def _notes(facts: Facts) -> tuple[str, ...]:
    notes = []
    if _looked_for(facts) and not facts.xray and facts.trace is None:
        notes.append("No x-ray: what happens inside the compute was not looked at (xray=True).")
    elif facts.xray and facts.kind == "gpu" and facts.trace is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if _gaps_may_hide(facts):
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if facts.taken_by_others > limits.FOREIGN_LOAD / 2:
        notes.append(
            f"Other programs had the model's core for {facts.taken_by_others:.0%} of the time."
        )
    return tuple(notes)
