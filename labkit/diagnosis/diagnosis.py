"""Why is the device idle, and what do I change: `diagnose(run)` gives one answer with evidence."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labkit.diagnosis import doubts, ranking
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.efficiency import with_low_mfu
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import BOTTLENECKS, Finding, Measured
from labkit.diagnosis.gains import with_gains
from labkit.diagnosis.gather import StepTable, of_trace, of_traces
from labkit.diagnosis.public_traces import PublicTrace
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.trace import Breakdown, RankTraces, trace
from labkit.diagnosis.wording import worded
from labkit.process.events import FILE_NAME
from labkit.results.event_log import of_one_moment
from labkit.results.library import Loaded, load
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.record import BODY_NOTE, RecordError
from labkit.results.result import Result, Table, but, copy_buttons, listed
from labkit.results.run import Run

SHOWN = 4  # findings of the details
# Causes that follow from a busy device: how well its operators work is not measured
CONCLUDED = ("the device is the limit", "float64")


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What holds a run back."""

    findings: tuple[Finding, ...]  # what costs device time, ranked by how much
    # 0 to 1: the share of resampled runs (steps drawn anew with replacement) with the same verdict;
    # of a trace, how far the first loss is ahead of the second or of its threshold
    confidence: float
    source: str  # where it was measured; says RECORDED, and on what, where that was not here
    notes: tuple[str, ...] = ()  # what limits the verdict,
    caveats: tuple[str, ...] = ()  # and what limits it so much that it is said with it
    of_pipeline: bool = False  # rather than of somebody's loop or trace

    @property
    def bottleneck(self) -> str:
        """The first finding's, one of `BOTTLENECKS`; "compute" is healthy."""
        return self.findings[0].name

    @property
    def rank(self) -> int | None:
        """Of several ranks, the one that holds the others back; None if none does."""
        return self.findings[0].rank

    @property
    def evidence(self) -> str:
        """The numbers behind the first finding."""
        return self.findings[0].evidence

    @property
    def advice(self) -> str:
        """What to change first."""
        return self.findings[0].advice

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        blamed = self.rank is not None and self.bottleneck != "communication"
        where = f" on rank {self.rank}" if blamed else ""
        return f"{self.bottleneck}{where} ({BOTTLENECKS[self.bottleneck]})"

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as JSON types."""
        return {
            "bottleneck": self.bottleneck,
            "confidence": round(self.confidence, 3),
            "findings": [finding.to_dict() for finding in self.findings],
            "source": self.source,
            "notes": [*self.notes, *self.caveats],
            "rank": self.rank,
        }

    @property
    def three_lines(self) -> tuple[str, str, str]:
        """What holds the run back, why (the numbers of this run), and what to do about it."""
        first = self.findings[0]
        mark = f"{self.source}: " if self.source.startswith("RECORDED") else ""
        what = f"{mark}Bottleneck {self.headline}"
        if first.lost_share:
            what += f": {first.lost_share:.0%} of the time"
        what += f"; confidence {self.confidence:.0%}" if self.confidence else ""
        what += "".join(f". {caveat}" for caveat in self.caveats)
        code = first.code.strip()
        if "\n" in code:
            code = "".join(f"\n    {line}" for line in code.splitlines())
        do = f"Do: {first.advice}" + (f" In PyTorch: {code}" if code else "")
        return what.rstrip("."), f"Why: {first.evidence}", do

    @property
    def details(self) -> Table:
        """The full report: every finding with its time, evidence and advice, and the notes."""
        return self.table()

    def table(self) -> Table:
        """Return the findings, the costliest first, and what can be copied of the first remedy."""
        shown = self.findings[:SHOWN]
        rows = [
            (f"{f.name}: {f.cause}", f"{f.lost_share:.0%}", f.evidence, f.advice) for f in shown
        ]
        sure = f"{self.source}; confidence {self.confidence:.0%}"
        foot = [sure, *self.notes, *self.caveats]
        copies: dict[str, str] = {}
        for finding in shown:
            foot += [f"{finding.cause}, also: {other.text}" for other in finding.remedies[1:]]
            if not finding.code:
                continue
            foot.append(f"{finding.cause}, in PyTorch:")
            foot += [f"    {line}" for line in finding.code.splitlines()]
            changes = finding.remedies[0].changes
            if not copies:
                copies["PyTorch"] = finding.code
                copies["labkit"] = but(dict(changes)) if self.of_pipeline and changes else ""
        return Table(
            rows,
            head=("finding", "time lost", "evidence", "what to change"),
            title=f"Bottleneck: {self.headline}",
            foot=foot,
            left=(0, 2, 3),
            copies=copies,
        )

    def __repr__(self) -> str:
        return "\n".join(self.three_lines)

    def _repr_html_(self) -> str:
        what, why, do = (html.escape(line) for line in self.three_lines)
        first = self.findings[0]
        section = f"notebook {first.link[:2]}, section"
        for link, words in ((first.link, section), (first.page, first.page)):
            if link:
                do = do.replace(words, f"<a href='{html.escape(link)}'>{words}</a>", 1)
        text = f"<b>{what}</b><div>{why}</div><div style='white-space:pre-wrap'>{do}</div>"
        details = self.details
        more = replace(details, copies={})._repr_html_()
        folded = f"<details><summary>all findings</summary>{more}</details>"
        return f"{text}{copy_buttons(details.copies)}{folded}"


def diagnose(
    what: Loaded | Breakdown | RankTraces | PublicTrace | str | os.PathLike[str],
) -> Diagnosis:
    """Name the bottleneck of a Run, Ranks, a record's path (.jsonl, .jsonl.gz or a run's folder).

    Or of a torch.profiler trace (.json, .json.gz), a folder or archive of one for each rank, or
    what `lk.trace` or `lk.public_trace` made of them. Raises RecordError or TraceError (both are a
    ValueError) on one that cannot be used.
    """
    if isinstance(what, (str, os.PathLike)):
        path = Path(what)
        is_record = path.name.endswith((".jsonl", ".jsonl.gz")) or (path / FILE_NAME).exists()
        return diagnose(load(path) if is_record else trace(path))
    if isinstance(what, (Breakdown, RankTraces)):
        evidence = of_trace(what) if isinstance(what, Breakdown) else of_traces(what)
        findings, most = _trusted(ranking.rank(evidence), evidence)
        told = tuple(_told(each, evidence) for each in findings)
        confidence = min(ranking.lead(evidence), most)
        return Diagnosis(told, confidence, what.source, tuple(_not_seen(evidence)))
    if isinstance(what, PublicTrace):
        missing = (Remedy("published", what.missing),)
        seen = (Measured(what.why.rstrip(".")),)
        found = Finding(what.bottleneck, "published", measured=seen, remedies=missing)
        return Diagnosis((worded(found),), 0.0, what.mark)
    if isinstance(what, Ranks):
        return what.diagnose()
    if isinstance(what, Measurements):
        raise RecordError(
            f"{what.path}: a measured function has rows and no training steps, so there "
            "is nothing to diagnose: lk.load(path) shows its numbers; diagnose a training run."
        )
    return of_run(what)


@of_one_moment
def of_run(run: Run, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run, beside which other ranks of the same job used so many cores."""
    source = source_of(run)
    unseen = (BODY_NOTE,) if run.watched and not run.lines.body else ()
    table = StepTable(run, ranks_cores)
    short = doubts.too_short(table.steps)
    if short:
        return Diagnosis((worded(short),), 0.0, source, unseen)
    evidence = table.evidence()
    findings = ranking.rank(evidence)
    confidence = 0.0
    withheld = doubts.device_shared(evidence, bool(run.watched), findings[0])
    withheld = withheld or doubts.contradiction(evidence)
    if withheld:
        findings = (withheld, *(f for f in findings if f.name != "compute" or f.lost_share))
    else:
        findings, confidence = resampled(
            table.rows, lambda rows: ranking.rank(table.evidence(rows)), findings
        )
    findings, most = _trusted(with_low_mfu(run, evidence, findings), evidence)
    caveats, sure = _caveats(evidence, run, table.seconds)
    return Diagnosis(
        tuple(_told(each, evidence, run) for each in findings),
        min(confidence * sure, most),
        source,
        (*unseen, *_not_seen(evidence)),
        caveats,
        of_pipeline=evidence.loop is None,
    )


def source_of(run: Run | Ranks) -> str:
    """Say where a run or ranks were measured."""
    return f"{'RECORDED' if run.recorded else 'measured'} on {run.machine.name}"


def resampled(
    rows: int, judge: Callable[[np.ndarray], tuple[Finding, ...]], found: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], float]:
    """Return the findings, behind a doubt if too close to call, and the confidence in them."""
    draws = np.random.default_rng(0).integers(0, rows, (limits.RESAMPLES, rows))
    again = Counter((first.name, first.rank) for first in (judge(drawn)[0] for drawn in draws))
    confidence = again[found[0].name, found[0].rank] / limits.RESAMPLES
    if confidence >= limits.MIN_CONFIDENCE:
        return found, confidence
    names = list(dict.fromkeys(name for (name, _rank), _count in again.most_common()))
    return (doubts.too_close(confidence, names), *found), confidence


def _caveats(evidence: Evidence, run: Run, seconds: float) -> tuple[tuple[str, ...], float]:
    """Return what else had a part in a run's times, and how much of the confidence that leaves."""
    caveats = []
    sure = 1.0
    if evidence.is_disturbed:
        sure = 1 - min(evidence.crowded_by, 1.0)
        taken = f"had the model's core for {evidence.stolen_by_others:.0%} of the time"
        use = evidence.use
        if use.others_share > limits.FOREIGN_LOAD / 2:
            named = f": {listed(run.beside)}" if run.beside else ""
            taken = f"used {use.others:.1f} of {use.cores} cores meanwhile{named}"
        caveats.append(f"Other programs {taken}.")
    if evidence.kind == "gpu" and run.on_the_card:
        caveats.append(f"Other programs were on the same GPU: {listed(run.on_the_card)}.")
        share = evidence.others_on_gpu
        sure = min(sure, limits.UNSEEN if share is None else 1 - share)
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        caveats.append(f"A short look: {longer}")
        sure *= seconds / limits.LONG_ENOUGH_S
    return tuple(caveats), sure


def _not_seen(evidence: Evidence) -> list[str]:
    """Return notes on what no instrument saw of the device."""
    notes = []
    if evidence.could_look and not evidence.looked_inside:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    elif evidence.xray and evidence.kind == "gpu" and evidence.kernels is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if evidence.gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if evidence.launches_only:
        notes.append("The device was not timed: it may work while the loop waits for data.")
    return notes


def _trusted(
    findings: tuple[Finding, ...], evidence: Evidence
) -> tuple[tuple[Finding, ...], float]:
    """Return findings that trust a busy device no further than something looked inside.

    With them comes the most confidence that is left.
    """
    first = findings[0]
    concluded = first.cause in CONCLUDED
    if first.name != "compute" and not concluded:
        return findings, limits.UNSEEN if evidence.launches_only else 1.0
    doubt = doubts.of_a_busy_device(evidence)
    if doubt is not None and first.name == "compute":
        return (doubt, *findings), 0.0
    if evidence.looked_inside:
        return findings, 1.0
    if doubt is not None or not evidence.body:
        return findings, limits.UNSEEN
    return findings, limits.LINES_SEEN if concluded else 1.0


def _told(finding: Finding, evidence: Evidence, run: Run | None = None) -> Finding:
    """Return a finding with what its remedies should bring, in words."""
    return worded(with_gains(finding, evidence, run), evidence)
