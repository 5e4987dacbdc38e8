"""What a diagnosis says: the findings in order, how sure that is, and what limits it."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from labkit.diagnosis.findings import BESIDE_TRAINING, BOTTLENECKS, Finding, in_words
from labkit.knobs import as_typed
from labkit.results.result import Result, Table, copy_buttons

SHOWN = 4  # findings of the details
WITHOUT = {  # what is said where evidence of this name is missing
    "xray": "no x-ray looked inside the steps (xray=True)",
    "workers": "the loader's workers were not timed",
    "kernels": "no profiler saw the GPU's kernels",
    "heat": "the driver did not tell why the GPU's clock was held down",
    "launches": "nothing timed the threads that launch kernels",
}


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What holds a run back."""

    findings: tuple[Finding, ...]  # what costs device time, ranked by how much
    # 0 to 1: the share of resampled runs (steps drawn anew with replacement) with the same verdict;
    # of a trace, how far the first loss is ahead of the second or of its threshold
    confidence: float
    source: str  # where it was measured
    notes: tuple[str, ...] = ()  # what limits the verdict
    caveats: tuple[str, ...] = ()  # what limits it so severely that the first line says it
    # What was not measured, as the evidence names it, and the causes that this left unjudged
    not_judged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    of_pipeline: bool = False  # rather than of somebody's loop or trace
    mark: str | None = None  # says RECORDED, and on what, where it was not measured here

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
        first = self.findings[0]
        about = BESIDE_TRAINING.get(first.cause)
        if about and first.lines:
            about += f", {first.lines[0].place}"
        return f"{self.bottleneck}{where} ({about or BOTTLENECKS[self.bottleneck]})"

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as JSON types."""
        return {
            "bottleneck": self.bottleneck,
            "confidence": round(self.confidence, 3),
            "findings": [finding.to_dict() for finding in self.findings],
            "source": self.source,
            "notes": [*self.notes, *self.caveats],
            "rank": self.rank,
            "not_judged": {name: list(causes) for name, causes in self.not_judged.items()},
        }

    @property
    def three_lines(self) -> tuple[str, str, str]:
        """What holds the run back, why (the numbers of this run), and what to do about it."""
        first = self.findings[0]
        told = [f"Bottleneck {self.headline}", *self.caveats]
        if first.lost_share:
            told[0] += f": {first.lost} of the time"
        what = ". ".join(each.rstrip(".") for each in told)
        mark = f"{self.mark}: " if self.mark else ""
        code = first.code.strip()
        if "\n" in code:
            code = textwrap.indent(f"\n{code}", "    ")
        do = f"{first.advice} In PyTorch: {code}" if code else first.advice
        return f"{mark}{what}", f"Why: {first.evidence}", f"Do: {do}"

    @property
    def details(self) -> Table:
        """The full report: every finding with its time, evidence and advice, and the notes."""
        return self.table()

    def table(self) -> Table:
        """Return the findings, the costliest first, and what can be copied of the first remedy."""
        shown = self.findings[:SHOWN]
        foot = [self.source, *self.notes, *self.caveats]
        for name, causes in self.not_judged.items():
            foot.append(f"Not judged, as {WITHOUT[name]}: {', '.join(map(in_words, causes))}.")
        for finding in shown:
            cause = in_words(finding.cause)
            foot += [f"{cause}, also: {other.text}" for other in finding.remedies[1:]]
            if finding.code:
                foot += [f"{cause}, in PyTorch:", textwrap.indent(finding.code.rstrip(), "    ")]
        first = shown[0]
        copies = {"PyTorch": first.code} if first.code else {}
        if self.of_pipeline and first.remedies and first.remedies[0].changes:
            copies["labkit"] = f"pipeline.but({as_typed(first.remedies[0].changes)})"
        return Table(
            [(each.title, each.lost, each.evidence, each.advice) for each in shown],
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
        for words, address in self.findings[0].places.items():
            place = html.escape(words)
            do = do.replace(place, f"<a href='{html.escape(address)}'>{place}</a>", 1)
        text = f"<b>{what}</b><div>{why}</div><div style='white-space:pre-wrap'>{do}</div>"
        details = self.details
        more = replace(details, copies={})._repr_html_()
        folded = f"<details><summary>all findings</summary>{more}</details>"
        return f"{text}{copy_buttons(details.copies)}{folded}"
