"""A change to a user's own loop: the call of its loader to paste, and comments for the rest."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from labkit.knobs import Setting
from labkit.results.script import call_lines
from labkit.spec import LOADER_KNOBS, PYTORCH_PREFETCH, WITHOUT_WORKERS

# The arguments of a DataLoader, in the order of its signature
ARGUMENTS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
OF_WORKERS = {*WITHOUT_WORKERS, "multiprocessing_context", "timeout"}
UNSAID = {"None", "False"}
# What makes a change to the step, by the knob
OF_STEP = {
    "non_blocking": "in the loop: .to(device, non_blocking=True)",
    "fused_optimizer": "where the optimizer is made: fused=True",
    "compile": "model = torch.compile(model, mode={!r})"
    "; save model._orig_mod.state_dict(), and clone() outputs that you keep",
    "precision": "around the forward pass: torch.autocast in {}",
}
# The same of Hugging Face's Trainer: the arguments of its TrainingArguments
OF_TRAINER = {
    **{name: f"dataloader_{name}={{!r}}" for name in LOADER_KNOBS},
    "batch_size": "per_device_train_batch_size={}",
    "fused_optimizer": "optim='adamw_torch_fused'",
    "compile": "torch_compile=True",
    "precision": "{}=True",
}

# What else than a name may stand in a call: a number, how workers start
LITERAL = re.compile(
    r"True|False|None|-?[0-9]{1,18}(\.[0-9]{1,18})?|'(fork|spawn|forkserver|cuda(:[0-9]{1,3})?)'"
)
LONGEST_NAME = 100  # characters


def as_comment(code: str) -> str:
    """Return code as an example, in comments: it has names that a script may not have."""
    return re.sub("(?m)^(?!#|$)", "# ", code)


def _is_name(text: object) -> TypeGuard[str]:
    """Return whether a record's text is a name that code may have: "model", "self.dataset"."""
    if not isinstance(text, str) or len(text) > LONGEST_NAME:
        return False
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def _is_code(text: object) -> bool:
    return _is_name(text) or (isinstance(text, str) and LITERAL.fullmatch(text) is not None)


def _is_loader_class(text: object) -> bool:
    """Return whether it names a class, or is "": what else a record has called may do harm."""
    return text == "" or (_is_name(text) and text.rpartition(".")[2][0].isupper())


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
    cards: int = 1  # that one process trains on, each with its part of the batch
    may_fuse: bool | None = None  # whether its optimizer has a fused version that is not in use
    trainer: bool = False  # whether the loop is that of Hugging Face's Trainer

    @classmethod
    def of(
        cls, recorded: object, job: Mapping[str, object] | None = None, trainer: bool = False
    ) -> LoopCode:
        """Return what a record tells: a record is anybody's, so of code the names alone.

        `job` is the event that is written after the first step.
        """
        said = {**recorded} if isinstance(recorded, Mapping) else {}
        said |= {name: value for name, value in (job or {}).items() if value is not None}
        known = {
            name: said[name] for name in ("loader", "dataset_type") if _is_name(said.get(name))
        }
        flags = ("streams", "is_compiled", "may_fuse")
        known |= {name: said[name] for name in flags if isinstance(said.get(name), bool)}
        cards = said.get("cards")
        listed = said.get("arguments")
        if not isinstance(listed, Mapping) or not set(listed) <= set(ARGUMENTS):
            listed = {}
        return cls(
            **known,
            call=said["call"] if _is_loader_class(said.get("call")) else None,
            arguments={name: code if _is_code(code) else None for name, code in listed.items()},
            cards=cards if isinstance(cards, int) and cards > 1 else 1,
            trainer=trainer,
        )

    def lines(self, changes: Mapping[str, Setting]) -> str:
        """Return the lines that make `changes`, {knob: value}; "" where nothing can be written.

        The loader's call is ready to paste. In comments is what has a name that is not known, what
        goes elsewhere than into that call, and all that a Trainer is told.
        """
        if self.trainer:
            return self._trainer_line(changes)
        of_loader = {name: value for name, value in changes.items() if name in ARGUMENTS}
        lines = self.loader_line(of_loader) if of_loader else ""
        for name, value in changes.items():
            if name in OF_STEP and value:
                lines += f"# {OF_STEP[name].format(value)}\n"
        return lines

    def _trainer_line(self, changes: Mapping[str, Setting]) -> str:
        """Return the arguments for `changes`: a batch is that of all cards, its argument of one."""
        told = {name: value for name, value in changes.items() if name in OF_TRAINER}
        if "batch_size" in told:
            told["batch_size"] = max(1, int(told["batch_size"] or 1) // self.cards)
        written = ", ".join(OF_TRAINER[name].format(value) for name, value in told.items())
        return f"# TrainingArguments(..., {written})\n" if written else ""

    def loader_line(self, changes: Mapping[str, Setting]) -> str:
        """Return the statement that makes the loader with `changes`; "" where it is no call."""
        known = {"dataset": None, **self.arguments}
        if self.call is None or ("batch_sampler" in known and "batch_size" in changes):
            return ""
        written = {name: code or name for name, code in known.items()}
        written |= {name: repr(value) for name, value in changes.items()}
        unsaid = {name for name in changes if written[name] in UNSAID and name != "batch_size"}
        if written.get("num_workers", "0") == "0":
            unsaid |= OF_WORKERS
        if written.get("prefetch_factor") == str(PYTORCH_PREFETCH):
            unsaid.add("prefetch_factor")
        named = [
            f"{name}={written[name]}" for name in ARGUMENTS[1:] if name in written.keys() - unsaid
        ]
        loader = self.loader or "loader"
        call = call_lines(self.call or "DataLoader", [written["dataset"], *named], len(loader))
        line = f"{loader} = {call}\n"
        if not all(known[name] or name in changes for name in known):
            return as_comment(line)
        if any(argument.startswith(f"{loader}.") for argument in written.values()):
            line = f"# below the line that makes {loader} now\n{line}"
        return line if self.call else f"from torch.utils.data import DataLoader\n\n{line}"
