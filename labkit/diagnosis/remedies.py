"""What a remedy is: a row of a table; `fits` says when it applies.

A row has its words, the settings that it changes (knobs of a `Pipeline`, so that a program can try
it) or the code to paste, what it costs, and how to see that it helped. The rows, by what they
change:

- `loader_remedies.py`: how many workers, how deep a queue, cheaper items;
- `worker_remedies.py`: what the workers do: starts, threads, order, shards, memory, hangs;
- `copy_remedies.py`: copies to the device;
- `device_remedies.py`: launches, number formats, collectives of a trace;
- `body_remedies.py`: what a loop's body does besides training;
- `doubts.py`: what to do where there is no verdict.

What only one verdict advises stands beside it: in `efficiency.py` and `rank_verdict.py`.

A rule lists those against its cause; those that fit the run are kept, and filled in for it, with
one that is sure to gain in front (`gains.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import Template

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.pasted import ready_to_paste
from labkit.knobs import Setting

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
    "fusion": (KERNELS, "1. Count the bytes"),
    "formats": ("05_mixed_precision.ipynb", "3. A training step in each format"),
    "processes": (RANKS, "1. One step, two ranks"),
    "exchange": (RANKS, "3. `no_sync`: do not exchange what nobody uses"),
    "ranks": (RANKS, "4. One rank is short of data"),
    "batch": (BATCHES, "1. What a larger batch buys"),
    "padding": (BATCHES, "4. Text: the padding in a batch"),
}
SAME_LOSSES = "the same losses, in less time a step"
ROUNDED = "losses within rounding of before, in less time a step"
ANOTHER_TRAINING = "the metric: the training is a different one"
LESS_WAITING = "the loop waits for a smaller share of the time"


@dataclass(frozen=True)
class Fit:
    """What a remedy has for one run: settings, and words for the $names in what it says."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    words: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Remedy:
    """A change that helps against some cause.

    In its text, its code and its arguments a $name stands for a word or a setting of its `Fit`, for
    one of `sets`, for $rank (the one to blame) or $cores.
    """

    key: str  # what it does, in a word or few, for programs
    text: str  # what to change
    lesson: str = ""  # a key of `LESSONS`
    fits: Callable[[Evidence], Fit | bool | None] = lambda evidence: True  # whether it is for a run
    # For runs that have none of these settings yet
    sets: Mapping[str, Setting] = field(default_factory=dict)
    on: str = ""  # "cpu" or "gpu": for that device alone
    arguments: Mapping[str, str] = field(default_factory=dict)  # of the user's DataLoader, as code
    code: str = ""  # PyTorch to paste, before the lines that make those changes
    cost: str = "nothing"
    check: str = SAME_LOSSES  # what tells that it helped
    at_most: float | None = None  # times as many steps, where a line bounds what it brings
    price: int = 1  # 1 (cheap) to 3 (dear), for choosing among remedies
    changes: Mapping[str, Setting] = field(default_factory=dict)  # filled in by `for_run`

    def for_run(self, evidence: Evidence, rank: int | None = None) -> Remedy | None:
        """Return the remedy filled in for a run, or None where it is not for it."""
        if self.on not in ("", evidence.kind) or any(
            evidence.knobs.get(name) for name in self.sets
        ):
            return None
        fit = self.fits(evidence)
        if not fit:
            return None
        fit = fit if isinstance(fit, Fit) else Fit()
        words = {"rank": rank, "cores": evidence.use.cores, **fit.words}
        return self.filled(Fit({**self.sets, **fit.settings}, words))

    def filled(self, fit: Fit) -> Remedy:
        """Return the remedy with the settings of a fit, which fills in what it says."""
        named = {**fit.settings, **fit.words}
        return replace(
            self,
            text=Template(self.text).substitute(named),
            code=Template(self.code).substitute(named),
            arguments={name: Template(a).substitute(named) for name, a in self.arguments.items()},
            changes=fit.settings,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the remedy as JSON types; what it should bring is its finding's `expected`."""
        return {
            "key": self.key,
            "text": self.text,
            "changes": dict(self.changes),
            "code": ready_to_paste(self.code, ()),
            "cost": self.cost,
            "check": self.check,
            "price": self.price,
        }
