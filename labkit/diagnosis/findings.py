"""What the diagnosis finds, as data: `wording` puts it into words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.remedies import LESSONS, Remedy
from labkit.diagnosis.symptoms import in_json, in_words, page_of

HIGHEST_LOSS = 0.98  # of the time; more would promise an absurd gain
BOTTLENECKS = {  # every name that a diagnosis can give
    "input": "waiting for data",
    "transfer": "copies to the device",
    "launch": "the host: the device waits for its next piece of work",
    "host": "the loop body: Python, files or waiting",
    "memory_bandwidth": "memory traffic",
    "precision": "number format",
    "communication": "exchanging gradients",
    "straggler": "one rank is slower than the others",
    "compute": "the device itself",
    "unsure": "no verdict",
}
BESIDE_TRAINING = {  # causes of "host" that are outside the training loop, in words
    "validation": "validation",
    "checkpoints": "saving checkpoints",
    "between_epochs": "what runs between epochs",
}
NEIGHBOUR = "neighbour"  # the cause where others use the cores, of a rule and of a doubt
AT_MOST = 2.0  # a larger gain that only the lost share bounds is not stated: it seldom comes
ISSUING = "issuing_work"  # the cause where the host issues work while the device waits
DEVICE_LIMIT = "the_device_is_the_limit"  # the cause where no loss is worth a name
Unit = Literal["share", "ms", "s", "times", "cores", "GiB", "number", "count"]


@dataclass(frozen=True)
class Measured:
    """One number of a run, and what it is: "50%" "of the tokens are padding"."""

    what: str  # the words after the number
    value: float | None = None  # None: words alone, such as where in the code it was
    unit: Unit = "share"  # `wording.FORMATS` prints it
    by: str = ""  # which instrument measured it
    before: str = ""  # the words in front of it


@dataclass(frozen=True)
class Finding:
    """What a rule finds: one thing that costs device time, or a reason to give no verdict."""

    name: str  # the bottleneck, one of `BOTTLENECKS`
    cause: str  # what the rule that found it is about: "slow_items"
    lost_share: float = 0.0  # of wall time (0 to 1), that would be saved if it were gone
    measured: tuple[Measured, ...] = ()
    remedies: tuple[Remedy, ...] = ()  # the one to try first in front
    lines: tuple[Line, ...] = ()  # of the user's code, the costliest first
    rank: int | None = None  # of several ranks, the one to blame
    at_most: float | None = None  # times the throughput, whatever is done against it
    is_bound: bool = False  # whether `lost_share` is the most that it may cost
    expected: Estimate | None = None  # times the throughput with the first remedy; None: not known

    @property
    def title(self) -> str:
        """The bottleneck and the cause in words: "input: slow items"."""
        return f"{self.name}: {in_words(self.cause)}"

    @property
    def lost(self) -> str:
        """The lost share in words: "21%", "at most 21%"; "not known" of a trace not read here."""
        if self.cause == "published":
            return "not known"
        return f"{'at most ' if self.is_bound else ''}{self.lost_share:.0%}"

    @property
    def lesson(self) -> tuple[str, str] | None:
        """The notebook's file and the heading of the section that teaches the first remedy."""
        if not self.remedies or not self.lost_share or not self.remedies[0].lesson:
            return None
        return LESSONS[self.remedies[0].lesson]

    @property
    def link(self) -> str:
        """The section as an address in the folder of the notebooks; "" without one."""
        return f"{self.lesson[0]}#{self.lesson[1].replace(' ', '-')}" if self.lesson else ""

    @property
    def page(self) -> str:
        """The page that explains the cause, in the folder of the notebooks; "" without one."""
        return page_of(self.cause)

    @property
    def places(self) -> dict[str, str]:
        """Where to read on, in words, each with its address in the folder of the notebooks."""
        named = {}
        if self.lesson:
            file, heading = self.lesson
            section, title = heading.rstrip("?").split(". ", 1)
            named[f"notebook {file[:2]}, section {section} ({title})"] = self.link
        if self.page:
            named[self.page] = self.page
        return named


@dataclass(frozen=True, kw_only=True)
class WordedFinding(Finding):
    """A finding as a diagnosis has it: `wording.worded` makes it from one without words."""

    evidence: str  # the numbers, as a sentence
    advice: str  # what to change first, and what to expect of it
    code: str  # what to type for the first remedy

    def to_dict(self) -> dict[str, object]:
        """Return the finding as JSON types."""
        return {
            "name": self.name,
            "cause": in_json(self.cause),
            "lost_share": round(self.lost_share, 4),
            "evidence": self.evidence,
            "advice": self.advice,
            "measured": [asdict(each) for each in self.measured],
            "rank": self.rank,
            "lines": [line.to_dict() for line in self.lines],
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "expected": self.expected,
            "at_most": self.at_most,
            "code": self.code,
            "lesson": self.link,
            "page": self.page,
        }


def costs(
    name: str, cause: str, lost_share: float, seen: str, by: str, *remedies: Remedy
) -> Finding:
    """Return a finding of which one number is known, what it costs: `seen` says of what that is."""
    return Finding(name, cause, lost_share, (Measured(seen, lost_share, by=by),), remedies)


def late_batches(
    cause: str,
    *measured: Measured | None,
    remedies: tuple[Remedy, ...],
    lines: tuple[Line, ...] = (),
) -> Finding:
    """Return a cause of the waiting for data with its numbers, as far as they were measured."""
    known = tuple(each for each in measured if each is not None)
    return Finding("input", cause, measured=known, remedies=remedies, lines=lines)


def bound(lost_share: float) -> float | None:
    """Return the gain where all of a loss goes and no more; None where that says too little."""
    most = gain_without(lost_share)
    return most if most <= AT_MOST else None


def gain_without(lost_share: float) -> float:
    """Return the throughput over the present one, were this share of the time not lost."""
    return 1 / (1 - min(lost_share, HIGHEST_LOSS))
