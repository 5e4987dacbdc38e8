"""A change to a user's own loop: the call of its loader to paste, and comments for the rest."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.knobs import Setting
from labkit.results.script import call_lines
from labkit.spec import LOADER_KNOBS, WITHOUT_WORKERS
from labkit.stamps.record import Event

OF_WORKERS = {*WITHOUT_WORKERS, "multiprocessing_context", "timeout"}
# What makes a change to the step, by the knob
OF_STEP = {
    "non_blocking": "in the loop: .to(device, non_blocking=True)",
    "fused_optimizer": "where the optimizer is made: fused=True",
    "compile": "model = torch.compile(model, mode={!r})"
    "; save model._orig_mod.state_dict(), and clone() outputs that you keep",
    "precision": "around the forward pass: torch.autocast in {}",
}
NAME = re.compile(r"[^\W\d]\w{0,50}(\.[^\W\d]\w{0,50}){0,3}")
# What else than a name may stand in a call: a number, how workers start
LITERAL = re.compile(r"True|False|None|-?\d{1,18}(\.\d{1,18})?|'(fork|spawn|forkserver)'")


def as_comment(code: str) -> str:
    """Return code as an example, in comments: it has names that a script may not have."""
    return re.sub("(?m)^(?!#|$)", "# ", code)


def name_in(text: object) -> str | None:
    """Return a record's text if it is a name that code may have: "model", "self.dataset"."""
    if not isinstance(text, str) or not NAME.fullmatch(text):
        return None
    return None if any(map(keyword.iskeyword, text.split("."))) else text


def code_in(text: object) -> str | None:
    """Return a record's text if it is a name or a literal."""
    return text if isinstance(text, str) and LITERAL.fullmatch(text) else name_in(text)


@dataclass(frozen=True)
class LoopCode:
    """How a user's script makes its loader and what it trains; None where unknown.

    `arguments` are those of the loader's `call` (a class; "" where its name is not known), {name:
    code}, PyTorch's defaults left out, and the code None where it is not known.
    """

    loader: str | None = None
    call: str | None = None
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    dataset_type: str | None = None
    streams: bool = False  # whether its dataset is an IterableDataset
    is_compiled: bool = False  # whether torch.compile has compiled anything in its process
    may_fuse: bool | None = None  # whether its optimizer has a fused version that is not in use
    trainer: bool = False  # whether the loop is that of Hugging Face's Trainer

    @classmethod
    def of(
        cls, recorded: Event | None, job: Event | None = None, trainer: bool = False
    ) -> LoopCode:
        """Return what a record tells: a record is anybody's, so of code the names alone.

        `job` is the event that is written after the first step.
        """
        said = {**(recorded or {})}
        said |= {name: value for name, value in (job or {}).items() if value is not None}
        call = said.get("call")
        is_class = (name_in(call) or "").rpartition(".")[2][:1].isupper()  # others may do harm
        arguments = said.get("arguments") or {}
        facts = ("dataset_type", "streams", "is_compiled", "may_fuse")
        return cls(
            **{name: said[name] for name in facts if said.get(name) is not None},
            loader=name_in(said.get("loader")),
            call=call if call == "" or is_class else None,
            arguments={name: code_in(code) for name, code in arguments.items() if name_in(name)},
            trainer=trainer,
        )

    def lines(self, changes: Mapping[str, Setting]) -> str:
        """Return the lines that make `changes`, {knob: value}; "" where nothing can be written.

        The loader's call is ready to paste. In comments is what has a name that is not known, what
        goes elsewhere than into that call, and all that a Trainer is told.
        """
        of_loader = {name: value for name, value in changes.items() if name in LOADER_KNOBS}
        if self.trainer:
            of_loader.pop("batch_size", None)  # its argument is of one card
            told = ", ".join(f"dataloader_{name}={value!r}" for name, value in of_loader.items())
            return f"# TrainingArguments(..., {told})\n" if told else ""
        lines = self.loader_line(of_loader) if of_loader else ""
        for name, comment in OF_STEP.items():
            if changes.get(name):
                lines += f"# {comment.format(changes[name])}\n"
        return lines

    def loader_line(self, changes: Mapping[str, Setting]) -> str:
        """Return the statement that makes the loader with `changes`; "" where it is no call."""
        known = {"dataset": None, **self.arguments}
        if self.call is None or ("batch_sampler" in known and "batch_size" in changes):
            return ""
        written = {name: code or name for name, code in known.items()}
        written |= {name: repr(value) for name, value in changes.items()}
        left_out = OF_WORKERS if written.get("num_workers", "0") == "0" else ()
        dataset = written.pop("dataset")
        named = [f"{name}={code}" for name, code in written.items() if name not in left_out]
        loader = self.loader or "loader"
        call = call_lines(self.call or "DataLoader", [dataset, *named], len(loader))
        line = f"{loader} = {call}\n"
        if not all(known[name] or name in changes for name in known):
            return as_comment(line)
        if any(code.startswith(f"{loader}.") for code in written.values()):
            line = f"# below the line that makes {loader} now\n{line}"
        return line if self.call else f"from torch.utils.data import DataLoader\n\n{line}"
