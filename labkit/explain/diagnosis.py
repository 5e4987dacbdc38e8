"""Why is the device idle, and what do I change: `diagnose(run)` gives one answer with evidence."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.explain import thresholds as limits
from labkit.explain.facts import Evidence, Facts, of_trace
from labkit.explain.finding import WORDS, Finding
from labkit.explain.rules import RULES
from labkit.lab.ranks import Ranks
from labkit.lab.watched import BODY_NOTE

SHARED = "shared device"  # the cause of a verdict withheld: others used it
RECORDS = (".jsonl", ".jsonl.gz")


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
            from labkit.explain.trace import trace

            return _of_facts(of_trace(trace(path)), str(path.name))
        from labkit.lab.load import load

        what = load(path)
    if isinstance(what, Ranks):
        return what.diagnose()
    found = _of_run(what)
    return replace(found, notes=(BODY_NOTE, *found.notes)) if what.watched else found


def _of_run(run: Any) -> Diagnosis:
    source = (
        f"RECORDED on {run.machine.name}" if run.recorded else f"measured on {run.machine.name}"
    )
    evidence = Evidence(run)
    doubt = _too_short(evidence)
    if doubt:
        return Diagnosis("unsure", (doubt,), 0.0, source)
    facts = evidence.facts()
    doubt = _shared(run, facts) or _contradiction(facts)
    if doubt:
        losses = [finding for finding in _rank(facts) if finding.name != "compute"]
        return Diagnosis("unsure", (doubt, *losses), 0.0, source, _notes(facts))
    return _of_facts(facts, source, evidence)


def _of_facts(facts: Facts, source: str, evidence: Evidence | None = None) -> Diagnosis:
    findings = _rank(facts)
    bottleneck = findings[0].name
    confidence = _lead(facts) if evidence is None else _confidence(evidence, bottleneck)
    if evidence is not None and confidence < limits.MIN_CONFIDENCE:
        findings = (_tied(confidence, findings), *findings)
        bottleneck = "unsure"
    if bottleneck == "compute" and not facts.xray and facts.trace is None:
        confidence = min(confidence, limits.UNSEEN)
    return Diagnosis(bottleneck, findings, confidence, source, _notes(facts))


def _losses(facts: Facts) -> list[Finding]:
    """Return what every rule finds, however small."""
    return [finding for rule in RULES if (finding := rule(facts)) is not None]


def _totals(found: list[Finding]) -> dict[str, float]:
    """Return the loss of each bottleneck: causes of the same one add up."""
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return total


def _rank(facts: Facts) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    found = _losses(facts)
    total, limit = _totals(found), limits.WORTH_NAMING
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


def _lead(facts: Facts) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    total, limit = _totals(_losses(facts)), limits.WORTH_NAMING
    above = {name: loss / limit[name] for name, loss in total.items()}
    if max(above.values()) < 1:
        return 1 - max(above.values())
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / max(above.values()), *(loss / first for loss in rest[:1])])


def _confidence(evidence: Evidence, bottleneck: str) -> float:
    """Return the share of resampled runs with the same verdict."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(evidence), (limits.RESAMPLES, len(evidence)))
    same = [_rank(evidence.facts(row))[0].name == bottleneck for row in rows]
    return float(np.mean(same))


def _too_short(evidence: Evidence) -> Finding | None:
    missing = limits.MIN_STEPS - len(evidence)
    if missing <= 0:
        return None
    return Finding(
        "unsure",
        "too short",
        f"only {len(evidence)} steps behind the warm-up, {limits.MIN_STEPS} are needed.",
        f"Run {missing} more steps.",
        0.0,
    )


def _shared(run: Any, facts: Facts) -> Finding | None:
    """Others worked on the device: a GPU's other processes, or what took the CPU's core."""
    others = max((sample.get("others") or 0 for sample in run.telemetry), default=0)
    if others:
        what = f"{others} other processes computed on the same GPU (NVML)"
    elif _spoilt(facts):
        what = (
            f"for {facts.taken_by_others:.0%} of the time the model's thread had work but another "
            f"program had its core (thread CPU time; threshold {limits.FOREIGN_LOAD:.0%})"
        )
        if facts.foreign_cores is not None:
            what += f"; other programs used {facts.foreign_cores:.1f} cores"
    elif run.watched and _neighbours_pause(facts):
        what = (
            f"single steps took far longer than the others while other programs used "
            f"{facts.foreign_cores:.1f} of {facts.cores} cores (psutil; threshold "
            f"{limits.FOREIGN_LOAD:.0%}): a watched loop cannot tell which of the two it was"
        )
    else:
        return None
    return Finding("unsure", SHARED, f"{what}.", "Stop the other work and run again.", 0.0)


def _neighbours_pause(facts: Facts) -> bool:
    """Whether long steps of a watched loop, whose thread is not timed, may be due to others."""
    taken = (facts.foreign_cores or 0.0) > limits.FOREIGN_LOAD * (facts.cores or 1)
    return facts.kind == "cpu" and taken and _rank(facts)[0].cause == "pauses inside steps"


def _spoilt(facts: Facts) -> bool:
    """Whether programs that took the CPU's core spoil the verdict.

    They make all that the host does longer in proportion, so its shares stand. But they starve
    loader workers, which is then no fault of the pipeline, and a device that others use is not
    the limit.
    """
    if facts.taken_by_others <= limits.FOREIGN_LOAD:
        return False
    first = _rank(facts)[0]
    starved = first.name == "input" and bool(facts.knobs.get("num_workers"))
    lost = _totals(_losses(facts))["input"]
    return first.name == "compute" or (starved and lost <= facts.taken_by_others)


def _contradiction(facts: Facts) -> Finding | None:
    """The x-ray's kernels and the run's own events cannot both be right (a GPU)."""
    if facts.kind != "gpu" or facts.trace is None or not facts.compute_us:
        return None
    ratio = facts.trace.kernel_us / facts.compute_us
    if limits.DISAGREE_UNDER <= ratio <= limits.DISAGREE_OVER:
        return None
    return Finding(
        "unsure",
        "instruments disagree",
        f"the x-ray saw kernels for {facts.trace.kernel_us / 1e3:.1f} ms a step, the run's own "
        f"events a busy device for {facts.compute_us / 1e3:.1f} ms.",
        "CUDA graphs hide kernels from some profilers: run without compile='reduce-overhead', or "
        "look with Nsight Systems.",
        0.0,
    )


def _tied(confidence: float, findings: tuple[Finding, ...]) -> Finding:
    names = list(dict.fromkeys(finding.name for finding in findings))
    return Finding(
        "unsure",
        "too close to call",
        f"resampling the steps gives the same verdict in {confidence:.0%} of the cases only; the "
        f"candidates are {' and '.join(names[:2])} ({limits.MIN_CONFIDENCE:.0%} are asked for).",
        "Run longer (more steps), on a quiet machine.",
        0.0,
    )


def _notes(facts: Facts) -> tuple[str, ...]:
    notes = []
    looked_for = facts.knobs.get("xray") is not None  # not in a watched loop
    if looked_for and not facts.xray and facts.trace is None:
        notes.append("No x-ray: what happens inside the compute was not looked at (xray=True).")
    if facts.taken_by_others > limits.FOREIGN_LOAD / 2:
        notes.append(
            f"Other programs had the model's core for {facts.taken_by_others:.0%} of the time."
        )
    return tuple(notes)
