"""A rule, which looks at the evidence, and what it finds: a finding with its remedies.

A rule is a function in `labkit/diagnosis/causes`. It takes the `Evidence` and returns a `Finding`,
however little it costs, or None; where it asks for what was not measured it is not judged. Its
decorator has the names of the causes that it finds. Its docstring has the condition, and the
thresholds in it by their names in `thresholds.py`.
"""

from __future__ import annotations

import html
import itertools
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labkit.diagnosis.evidence import Evidence, NotMeasured
from labkit.diagnosis.hot_lines import Line
from labkit.knobs import Setting
from labkit.results.result import Result, Table
from labkit.results.templates import template

LOOK_INSIDE = (
    "Look inside a few steps: run a pipeline with xray=True and 20 steps or more; of a loop of "
    "yours record them with torch.profiler, and give the trace to lk.diagnose."
)
HIGHEST_LOSS = 0.98  # of the time; more would promise an absurd gain
BOTTLENECKS = {  # every name that a diagnosis can give
    "input": "waiting for data",
    "transfer": "copies to the device",
    "launch": "the host: the device waits for its next piece of work",
    "host": "the script's own work: Python, files, validation or waiting",
    "memory_bandwidth": "memory traffic",
    "precision": "number format",
    "communication": "exchanging gradients",
    "straggler": "one rank is slower than the others",
    "compute": "the device itself",
    "unsure": "no verdict",
}


def in_words(cause: str) -> str:
    """Return a cause as a person reads it."""
    return cause.replace("_", " ")


@dataclass(frozen=True)
class Remedy:
    """A change that helps against some cause: settings that a program can try, or code to paste."""

    key: str  # what it does, in a word or few, for programs
    text: str  # what to change
    changes: Mapping[str, Setting] = field(default_factory=dict)  # {knob: value}
    code: str = ""  # PyTorch as an example, in comments: it has names that a script may not have


@dataclass(frozen=True)
class Finding:
    """One thing that costs device time, or a reason to give no verdict."""

    name: str  # the bottleneck, one of `BOTTLENECKS`
    page: str  # that explains it, in the folder of the notebooks: "symptoms/slow-storage.md"
    cause: str = ""  # "storage_latency"; by default the one of its rule
    lost_share: float = 0.0  # of wall time (0 to 1), that would be saved if it were gone
    evidence: str = ""  # the numbers that show it, and in brackets what measured them
    remedies: tuple[Remedy, ...] = ()  # the one to try first in front
    lines: tuple[Line, ...] = ()  # of the user's code, the costliest first
    rank: int | None = None  # of several ranks, the one to blame
    at_most: float | None = None  # times the throughput, whatever is done against it
    # What `wording.with_advice` makes of a finding with remedies
    # Times the throughput with the first remedy, and from where to where; None: not known
    expected: tuple[float, float, float] | None = None
    advice: str = ""  # what to change first, and what to expect of it
    code: str = ""  # what to type for the first remedy

    @property
    def is_reducible(self) -> bool:
        """Whether it costs time, and something may reduce that."""
        return bool(self.lost_share and self.remedies)


# -- a cause --

Rule = Callable[[Evidence], Finding | None]
LOSS = "loss"  # what costs device time: the losses of each bottleneck add up
LATE = "late"  # why the loop waits for data: the first that is found counts
WARNING = "warning"  # said whatever it costs
RULES: dict[str, list[tuple[Rule, tuple[str, ...]]]] = defaultdict(list)  # each with its causes


def cause(when: str, *names: str) -> Callable[[Rule], Rule]:
    """Register a rule as one of LOSS, LATE and WARNING, which is judged after those before it.

    `names` are those of all causes that it finds. Of several, each finding says which.
    """

    def register(rule: Rule) -> Rule:
        RULES[when].append((rule, names))
        return rule

    return register


def evaluate(rule: Rule, evidence: Evidence) -> Finding | None:
    """Return what a rule finds; None also where it asks for what was not measured."""
    try:
        return rule(evidence)
    except NotMeasured:
        return None


def findings_of(when: str, evidence: Evidence) -> Iterator[Finding]:
    """Yield what the rules of a kind find that can be judged from this evidence."""
    for rule, names in RULES[when]:
        if finding := evaluate(rule, evidence):
            yield replace(finding, cause=finding.cause or names[0])


def not_judged(evidence: Evidence) -> dict[str, list[str]]:
    """Return each instrument that a run lacks and could have had: the causes that asked for it."""
    could_have = {
        "xray": evidence.of_bench,
        "workers": evidence.num_workers,
        "kernels": evidence.kind == "gpu",
    }
    missing: dict[str, list[str]] = {}
    for rule, names in itertools.chain(*RULES.values()):
        try:
            rule(evidence)
        except NotMeasured as lacking:
            if could_have.get(str(lacking)):
                missing.setdefault(str(lacking), []).extend(names)
    return missing


def loss(
    name: str, page: str, share: float, seen: str, by: str, *remedies: Remedy, **more: Any
) -> Finding:
    """Return a finding with what it costs: `by` measured that share of the time, `seen` says of it.

    `more` are fields of the `Finding`.
    """
    seen = f"{share:.0%} {seen} ({by})."
    return Finding(name, page, lost_share=share, evidence=seen, remedies=remedies, **more)


def gain_without(lost_share: float) -> float:
    """Return the throughput over the present one, were this share of the time not lost."""
    return 1 / (1 - min(lost_share, HIGHEST_LOSS))


# -- what a diagnosis says: the findings in order, how sure that is, and what limits it --

WITHOUT = {  # what is said where an instrument of this name was missing
    "xray": "no x-ray looked inside the steps (xray=True)",
    "workers": "the loader's workers were not timed",
    "kernels": "no profiler saw the GPU's kernels",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Result):
    """What holds a run back."""

    findings: tuple[Finding, ...]  # what costs device time, ranked by how much
    # Of the first finding, 0 to 1: the share of resampled runs (steps drawn anew with replacement)
    # in which it comes first, too; of a trace and between ranks, how far it is ahead of the second
    # or of its threshold
    confidence: float = 0.0
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
        late = "" if first.rank is None else f", rank {first.rank} late"
        return f"{first.name}{late} ({BOTTLENECKS[first.name]})"

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as JSON types."""
        return {
            "bottleneck": self.bottleneck,
            "confidence": self.confidence,
            "findings": [*map(asdict, self.findings)],
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
        page = self.findings[0].page
        do = do.replace(page, f"<a href='{page}'>{page}</a>", 1)
        text = f"<b>{what}</b><div>{why}</div><div style='white-space:pre-wrap'>{do}</div>"
        copied = template("buttons.html").render(
            code=self.findings[0].code
        )  # none for an empty text
        more = self.table()._repr_html_()
        return f"{text}{copied}<details><summary>all findings</summary>{more}</details>"
