"""What the diagnosis finds, as data: a number, a remedy, a finding; `wording` adds the advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.loader_code import as_comment
from labkit.knobs import Setting

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
    "between_epochs": "what runs between epochs",
}
NEIGHBOUR = "neighbour"  # the cause where others use the cores
AT_MOST = 2.0  # a larger gain that only the lost share bounds is not stated: it seldom comes
DEVICE_LIMIT = "the_device_is_the_limit"  # the cause where no loss is worth a name
DOUBLE = "float64"
LOW_MFU = "low_MFU"
CONCLUDED = (DEVICE_LIMIT, DOUBLE, LOW_MFU)  # causes that follow from a busy device

TUNING = "03_dataloader_tuning.ipynb"
BATCHES = "04_batch_sizing.ipynb"
KERNELS = "07_compile_and_kernels.ipynb"
RANKS = "09_beyond_one_gpu.ipynb"
LESSONS = {  # the section that teaches a remedy: notebook, heading
    "workers": (TUNING, "1. Workers, on real work"),
    "queue": (TUNING, "4. A queue that rides over a stall"),
    "epochs": (TUNING, "5. The start of every epoch"),
    "items": (TUNING, "6. A lean `__getitem__`"),
    "copies": (TUNING, "7. Pinned memory, and what it costs"),
    "launches": (KERNELS, "2. A chain: launches at one end, bytes at the other"),
    "lines": ("02_sawtooth_diagnosis.ipynb", "7. Which line costs the time?"),
    "formats": ("05_mixed_precision.ipynb", "3. A training step in each format"),
    "exchange": (RANKS, "3. `no_sync`: do not exchange what nobody uses"),
    "ranks": (RANKS, "4. One rank is short of data"),
    "batch": (BATCHES, "1. What a larger batch buys"),
    "padding": (BATCHES, "4. Text: the padding in a batch"),
}
SAME_LOSSES = "the same losses, in less time a step"
ROUNDED = "losses within rounding of before, in less time a step"
ANOTHER_TRAINING = "the metric: the training is a different one"
LESS_WAITING = "the loop waits for a smaller share of the time"

FOLDER = "symptoms"  # of the pages that explain causes, in the folder of the notebooks
PAGE_OF: dict[str, str] = {}  # {cause: page}: `explains` fills it in where a cause is defined
# `--json` spells these with underscores, as the code does, and all others as a person reads them
UNDERSCORED_IN_JSON = (
    "too_few_workers",
    "storage_latency",
    "uneven_shards",
    "hand_over",
    "slow_line",
    "workers_restart",
    "cold_start",
    "memory_growth",
    "between_epochs",
)
SAID = {"hand_over": "sending batches"}  # of a cause whose key says it less plainly

FORMATS = {
    "share": "{:.0%}",
    "ms": "{:.1f} ms",
    "s": "{:.0f} s",
    "times": "{:.1f}x",
    "cores": "{:.1f} cores",
    "GiB": "{:.1f} GiB",
    "count": "{:.0f}",
}


def explains(page: str, *causes: str) -> None:
    """Say which page explains these causes."""
    PAGE_OF.update(dict.fromkeys(causes, page))


explains(
    "ranks",
    "one_rank_is_short_of_data",
    "one_rank_is_slower",
    "the_exchange_is_not_hidden",
)
explains("no-verdict", "published")


def page_of(cause: str) -> str:
    """Return the page of a cause as a path in the folder of the notebooks; "" without one."""
    page = PAGE_OF.get(cause)
    return f"{FOLDER}/{page}.md" if page else ""


def link_of(lesson: str) -> str:
    """Return where a section is, in the folder of the notebooks; "" of no lesson."""
    return "#".join(LESSONS[lesson]).replace(" ", "-") if lesson else ""


def in_words(cause: str) -> str:
    """Return a cause as a person reads it."""
    return SAID.get(cause, cause.replace("_", " "))


def in_json(cause: str) -> str:
    """Return a cause as a program reads it."""
    return cause if cause in UNDERSCORED_IN_JSON else in_words(cause)


@dataclass(frozen=True)
class Measured:
    """One number of a run, and what it is: "50%" "of the tokens are padding"."""

    what: str  # the words after the number
    value: float | None = None  # None: words alone, such as where in the code it was
    unit: str = "share"  # `FORMATS` prints it
    by: str = ""  # which instrument measured it
    before: str = ""  # the words in front of it

    def __str__(self) -> str:
        if self.value is None:
            return self.what
        return f"{self.before} {FORMATS[self.unit].format(self.value)} {self.what}".strip()


@dataclass(frozen=True)
class Remedy:
    """A change that helps against some cause: settings that a program can try, or code to paste."""

    key: str  # what it does, in a word or few, for programs
    text: str  # what to change
    lesson: str = ""  # a key of `LESSONS`
    changes: Mapping[str, Setting] = field(default_factory=dict)  # {knob: value}
    code: str = ""  # PyTorch as an example, before the lines that make those changes
    cost: str = "nothing"
    check: str = SAME_LOSSES  # what tells that it helped
    at_most: float | None = None  # times as many steps, where a line bounds what it brings
    price: int = 1  # 1 (cheap) to 3 (dear), for choosing among remedies

    def to_dict(self) -> dict[str, object]:
        """Return the remedy as JSON types; what it should bring is its finding's `expected`."""
        return {**asdict(self), "code": as_comment(self.code)}


class Estimate(NamedTuple):
    """A gain in times the throughput, with its range."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """One thing that costs device time, or a reason to give no verdict."""

    name: str  # the bottleneck, one of `BOTTLENECKS`
    cause: str  # "storage_latency"
    lost_share: float = 0.0  # of wall time (0 to 1), that would be saved if it were gone
    measured: tuple[Measured, ...] = ()
    remedies: tuple[Remedy, ...] = ()  # the one to try first in front
    lines: tuple[Line, ...] = ()  # of the user's code, the costliest first
    rank: int | None = None  # of several ranks, the one to blame
    at_most: float | None = None  # times the throughput, whatever is done against it
    is_bound: bool = False  # whether `lost_share` is the most that it may cost
    # Of a diagnosis alone, which `wording.worded` fills in
    expected: Estimate | None = None  # times the throughput with the first remedy; None: not known
    advice: str = ""  # what to change first, and what to expect of it
    code: str = ""  # what to type for the first remedy

    @property
    def evidence(self) -> str:
        """The numbers, with the instruments, as a sentence."""
        text = "; ".join(map(str, self.measured))
        behind = dict.fromkeys(each.by for each in self.measured if each.by)
        text += f" ({'; '.join(behind)})" if behind else ""
        return f"{text}." if text else ""

    @property
    def title(self) -> str:
        """The bottleneck and the cause in words: "input: slow line"."""
        return f"{self.name}: {in_words(self.cause)}"

    @property
    def lost(self) -> str:
        """The lost share in words: "21%", "at most 21%"; "not known" of a trace not read here."""
        if self.cause == "published":
            return "not known"
        return f"{'at most ' if self.is_bound else ''}{self.lost_share:.0%}"

    @property
    def lesson(self) -> str:
        """The key of the section that teaches the first remedy; "" without one."""
        return self.remedies[0].lesson if self.remedies and self.lost_share else ""

    @property
    def places(self) -> dict[str, str]:
        """Where to read on, in words, each with its address in the folder of the notebooks."""
        page = page_of(self.cause)
        named = {page: page} if page else {}
        if not self.lesson:
            return named
        file, heading = LESSONS[self.lesson]
        section, title = heading.rstrip("?").split(". ", 1)
        words = f"notebook {file[:2]}, section {section} ({title})"
        return {words: link_of(self.lesson), **named}

    def to_dict(self) -> dict[str, object]:
        """Return the finding as JSON types."""
        plain = ("name", "evidence", "advice", "rank", "expected", "at_most", "code")
        return {
            **{name: getattr(self, name) for name in plain},
            "cause": in_json(self.cause),
            "lost_share": round(self.lost_share, 4),
            "measured": [asdict(each) for each in self.measured],
            "lines": [line.to_dict() for line in self.lines],
            "remedies": [each.to_dict() for each in self.remedies],
            "lesson": link_of(self.lesson),
            "page": page_of(self.cause),
        }


def loss(
    name: str, cause: str, share: float, seen: str, *remedies: Remedy, by: str, **more: Any
) -> Finding:
    """Return a finding with one number, what it costs: `by` measured it, and `seen` says what."""
    return Finding(name, cause, share, (Measured(seen, share, by=by),), remedies, **more)


def bound(lost_share: float) -> float | None:
    """Return the gain where all of a loss goes and no more; None where that says too little."""
    most = gain_without(lost_share)
    return most if most <= AT_MOST else None


def gain_without(lost_share: float) -> float:
    """Return the throughput over the present one, were this share of the time not lost."""
    return 1 / (1 - min(lost_share, HIGHEST_LOSS))
