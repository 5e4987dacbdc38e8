"""Why is the device idle, and what do I change: `diagnose(run)` gives one answer with evidence."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.analysis.doubts import (
    contradiction,
    device_shared,
    gaps_hidden,
    too_close,
    too_short,
)
from labkit.analysis.facts import Evidence, Facts, of_trace
from labkit.analysis.finding import BOTTLENECKS, Finding
from labkit.analysis.rules import lead, rank
from labkit.analysis.trace import trace
from labkit.analysis.witnesses import deciding
from labkit.results.event_log import of_one_moment
from labkit.results.library import load
from labkit.results.ranks import Ranks
from labkit.results.record import BODY_NOTE
from labkit.results.result import Result
from labkit.results.table import Table

RECORDS = (".jsonl", ".jsonl.gz")
LOOK_INSIDE = "Look inside a few steps: run it with xray=True and 20 steps or more."
PROFILE = "Record a few steps with torch.profiler, and give the trace to lk.diagnose."


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What holds a run back.

    Attributes:
        bottleneck: "input", "transfer", "launch", "memory_bandwidth", "precision", "compute"
            (healthy: the device is the limit) or "unsure"; of ranks also "communication" and
            "straggler" (a rank that is late for another reason than its data).
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

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return f"{self.bottleneck} ({BOTTLENECKS[self.bottleneck]})"

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON types."""
        return {
            "bottleneck": self.bottleneck,
            "confidence": round(self.confidence, 3),
            "findings": [finding.to_dict() for finding in self.findings],
            "source": self.source,
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """Return the findings, the costliest first."""
        rows = [
            (f"{f.name}: {f.cause}", f"{f.lost_share:.0%}", f.evidence, f.advice)
            for f in self.findings[:4]
        ]
        return Table(
            rows,
            head=("finding", "time lost", "evidence", "what to change"),
            title=f"Bottleneck: {self.headline}",
            foot=(f"{self.source}; confidence {self.confidence:.0%}", *self.notes),
            left=(0, 2, 3),
        )

    def __repr__(self) -> str:
        mark = f"{self.source}: " if self.source.startswith("RECORDED") else ""
        return f"{mark}Bottleneck {self.headline}: {self.evidence.rstrip('.')}. {self.advice}"


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
            facts = of_trace(trace(path))
            return _verdict(facts, rank(facts), lead(facts), path.name)
        what = load(path)
    if isinstance(what, Ranks):
        return what.diagnose()
    found = _of_run(what)
    return replace(found, notes=(BODY_NOTE, *found.notes)) if what.watched else found


@of_one_moment
def _of_run(run: Any) -> Diagnosis:
    source, evidence = source_of(run), Evidence(run)
    if doubt := too_short(len(evidence)):
        return Diagnosis("unsure", (doubt,), 0.0, source)
    facts = evidence.facts()
    findings = rank(facts)
    if doubt := device_shared(run, facts) or contradiction(facts):
        others = [finding for finding in findings if finding.name != "compute"]
        return Diagnosis("unsure", (doubt, *others), 0.0, source, _notes(facts))
    confidence = stability(
        findings[0].name, len(evidence), lambda rows: rank(evidence.facts(rows))[0].name
    )
    if confidence < limits.MIN_CONFIDENCE:
        doubt = too_close(confidence, findings)
        return Diagnosis("unsure", (doubt, *findings), confidence, source, _notes(facts))
    return _verdict(facts, findings, confidence, source)


def source_of(run: Any) -> str:
    """Say where a run or ranks were measured."""
    return f"{'RECORDED' if run.recorded else 'measured'} on {run.machine.name}"


def stability(verdict: Any, steps: int, judge: Any) -> float:
    """Return the share of resampled runs, each given to `judge` as its rows, with this verdict."""
    rows = np.random.default_rng(0).integers(0, steps, (limits.RESAMPLES, steps))
    return float(np.mean([judge(row) == verdict for row in rows]))


def _verdict(
    facts: Facts, findings: tuple[Finding, ...], confidence: float, source: str
) -> Diagnosis:
    if findings[0].name == "compute" and _gaps_may_hide(facts):
        remedy = LOOK_INSIDE if _could_look(facts) else PROFILE
        doubt = gaps_hidden(facts.shares["compute"], facts.witnesses, remedy)
        return Diagnosis("unsure", (doubt, *findings), 0.0, source, _notes(facts))
    if findings[0].name == "compute" and not facts.xray and facts.trace is None:
        confidence = min(confidence, limits.UNSEEN)
    return Diagnosis(findings[0].name, findings, confidence, source, _notes(facts))


def _gaps_may_hide(facts: Facts) -> bool:
    """Return whether nothing can tell how much of its busy time a GPU works."""
    return facts.kind == "gpu" and facts.trace is None and deciding(facts.witnesses) is None


def _could_look(facts: Facts) -> bool:
    """Return whether the run could have had an x-ray: a watched loop could not."""
    return facts.knobs.get("xray") is not None


def _notes(facts: Facts) -> tuple[str, ...]:
    notes = []
    if _could_look(facts) and not facts.xray and facts.trace is None:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    elif facts.xray and facts.kind == "gpu" and facts.trace is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if _gaps_may_hide(facts):
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if facts.taken_by_others > limits.FOREIGN_LOAD / 2:
        notes.append(
            f"Other programs had the model's core for {facts.taken_by_others:.0%} of the time."
        )
    return tuple(notes)
