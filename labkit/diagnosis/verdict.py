"""What a diagnosis says: the findings in order, how sure that is, and what limits it."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.diagnosis.findings import BESIDE_TRAINING, BOTTLENECKS, Finding, in_words
from labkit.results.result import Result, Table
from labkit.results.templates import template

WITHOUT = {  # what is said where an instrument of this name was missing
    "xray": "no x-ray looked inside the steps (xray=True)",
    "workers": "the loader's workers were not timed",
    "kernels": "no profiler saw the GPU's kernels",
    "heat": "the driver did not tell why the GPU's clock was held down",
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
    mark: str | None = None  # says RECORDED, and on what, where it was not measured here
    # {instrument that was missing: the causes that could not be judged without it}
    not_judged: Mapping[str, list[str]] = field(default_factory=dict)

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
        first = self.findings[0]
        is_beside = first.cause in BESIDE_TRAINING
        about = in_words(first.cause) if is_beside else BOTTLENECKS[first.name]
        is_blamed = first.rank is not None and first.name != "communication"
        return f"{first.name}{f' on rank {first.rank}' if is_blamed else ''} ({about})"

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as JSON types."""
        return {
            "bottleneck": self.bottleneck,
            "confidence": round(self.confidence, 3),
            "findings": [finding.to_dict() for finding in self.findings],
            "source": self.source,
            "notes": [*self.notes, *self.caveats],
            "rank": self.rank,
            "not_judged": self.not_judged,
        }

    @property
    def three_lines(self) -> tuple[str, str, str]:
        """What holds the run back, why (the numbers of this run), and what to do about it."""
        first = self.findings[0]
        told = [f"Bottleneck {self.headline}", *self.caveats]
        if first.lost_share:
            told[0] += f": {first.lost_share:.0%} of the time"
        what = ". ".join(each.rstrip(".") for each in told)
        what = f"{self.mark}: {what}" if self.mark else what
        code = first.code.strip()
        if "\n" in code:
            code = textwrap.indent(f"\n{code}", "    ")
        do = f"{first.advice} In PyTorch: {code}" if code else first.advice
        return what, f"Why: {first.evidence}", f"Do: {do}"

    def table(self) -> Table:
        """Return the full report: every finding with its time, evidence and advice, and notes."""
        rows = []
        foot = [self.source, *self.notes, *self.caveats]
        for name, causes in self.not_judged.items():
            foot.append(f"Not judged, as {WITHOUT[name]}: {', '.join(map(in_words, causes))}.")
        for each in self.findings:
            cause = in_words(each.cause)
            lost = f"{each.lost_share:.0%}" if each.lost_share else None
            rows.append((f"{each.name}: {cause}", lost, each.evidence, each.advice))
            if each.code:
                foot += [f"{cause}, in PyTorch:", textwrap.indent(each.code.rstrip(), "    ")]
        head = ("finding", "time lost", "evidence", "what to change")
        return Table(rows, head, f"Bottleneck: {self.headline}", foot, left=(0, 2, 3))

    def __repr__(self) -> str:
        return "\n".join(self.three_lines)

    def _repr_html_(self) -> str:
        what, why, do = (html.escape(line) for line in self.three_lines)
        if page := self.findings[0].page:
            do = do.replace(page, f"<a href='{page}'>{page}</a>", 1)
        text = f"<b>{what}</b><div>{why}</div><div style='white-space:pre-wrap'>{do}</div>"
        copied = template("buttons.html").render(code=self.findings[0].code)
        more = self.table()._repr_html_()
        return f"{text}{copied}<details><summary>all findings</summary>{more}</details>"
