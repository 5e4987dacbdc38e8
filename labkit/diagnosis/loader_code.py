"""A change to a user's own loop: the call of its loader to paste, and comments for the rest."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.instruments.loader_knobs import OF_WORKERS
from labkit.knobs import Setting
from labkit.results.script import call_lines
from labkit.spec import LOADER_KNOBS
from labkit.stamps.record import Event

# What of a record may stand in code, as a record is anybody's: a name, a class, a literal
NAME = re.compile(r"[^\W\d]\w{0,50}(\.[^\W\d]\w{0,50}){0,3}")
CLASS = re.compile(r"(|([^\W\d]\w{0,50}\.){0,3}[A-Z]\w{0,50})")  # what else is called may do harm
LITERAL = re.compile(r"-?\d{1,18}(\.\d{1,18})?|'(fork|spawn|forkserver)'")


def code_in(text: object, *patterns: re.Pattern[str]) -> str | None:
    """Return a record's text if it is what one of the patterns allows."""
    if not isinstance(text, str) or text in keyword.kwlist[3:]:  # all but False, None and True
        return None
    return text if any(each.fullmatch(text) for each in patterns) else None


@dataclass(frozen=True)
class LoopCode:
    """How a user's script makes its loader and what it trains; None where unknown.

    `arguments` are those of the loader's `call` (a class; "" where its name is not known), {name:
    code}, PyTorch's defaults left out, and the code None where it is not known.
    """

    loader: str | None = None
    call: str | None = None
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    streams: bool = False  # whether its dataset is an IterableDataset
    trainer: bool = False  # whether the loop is that of Hugging Face's Trainer

    @classmethod
    def of(cls, recorded: Event | None, trainer: bool = False) -> LoopCode:
        """Return what a record tells: a record is anybody's, so of code the names alone."""
        said = recorded or {}
        arguments = (said.get("arguments") or {}).items()
        return cls(
            code_in(said.get("loader"), NAME),
            code_in(said.get("call"), CLASS),
            {name: code_in(code, NAME, LITERAL) for name, code in arguments if code_in(name, NAME)},
            streams=bool(said.get("streams")),
            trainer=trainer,
        )

    def lines(self, changes: Mapping[str, Setting]) -> str:
        """Return the lines that make `changes` to a loader, {knob: value}; "" where none do.

        The loader's call is ready to paste. In comments is what has a name that is not known, and
        what a Trainer is told.
        """
        changed = {name: repr(value) for name, value in changes.items() if name in LOADER_KNOBS}
        if changed and self.trainer:
            told = ", ".join(f"dataloader_{name}={code}" for name, code in changed.items())
            return f"# TrainingArguments(..., {told})\n"
        known = {"dataset": None, **self.arguments}
        is_fixed = "batch_sampler" in known and "batch_size" in changes
        if not changed or self.call is None or is_fixed:
            return ""
        known |= changed
        left_out = OF_WORKERS if known.get("num_workers", "0") == "0" else ()
        dataset = known.pop("dataset")
        named = [f"{name}={code or name}" for name, code in known.items() if name not in left_out]
        loader = self.loader or "loader"
        call = call_lines(self.call or "DataLoader", [dataset or "dataset", *named], len(loader))
        line = f"{loader} = {call}\n"
        if None in (dataset, *known.values()):
            return re.sub("(?m)^(?!#|$)", "# ", line)
        return line if self.call else f"from torch.utils.data import DataLoader\n\n{line}"
