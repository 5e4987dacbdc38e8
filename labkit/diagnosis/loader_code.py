"""A change to a user's own loop as lines to paste: every argument that does not change is kept."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from labkit.knobs import Setting
from labkit.results.script import call_lines
from labkit.spec import PYTORCH_PREFETCH, WITHOUT_WORKERS

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
SWITCHED_OFF = (None, False)  # of a knob of the step, which then needs no line
# What switches a knob of the step on, by the knob, or the knob and its value
STEP_LINES = {
    "non_blocking": "# and in the loop: .to(device, non_blocking=True)",
    "fused_optimizer": "for group in {optimizer}.param_groups:\n"
    "    group.update(fused=True, foreach=False)",
    "channels_last": "{model} = {model}.to(memory_format=torch.channels_last)",
    "compile": "{model} = torch.compile({model}, mode={value!r})"
    "  # save {model}._orig_mod.state_dict(); clone() outputs that you keep",
    # FP16 needs a GradScaler around backward: no line to paste
    "precision=bf16": "autocast = torch.autocast(next({model}.parameters()).device.type, "
    "dtype=torch.bfloat16)\n{model}.forward = autocast({model}.forward)",
    "precision=tf32": 'torch.set_float32_matmul_precision("high")',
}

# What else than a name may stand in a call: a number, how workers start
LITERAL = re.compile(
    r"True|False|None|-?[0-9]{1,18}(\.[0-9]{1,18})?|'(fork|spawn|forkserver|cuda(:[0-9]{1,3})?)'"
)
LONGEST_NAME = 100  # characters


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
    """What a user's script calls its loader, its model and its optimizer; None where unknown.

    `arguments` are those of the loader's `call`, {name: code}, PyTorch's defaults left out, and the
    code None where it is not known. `training` is the variable with Hugging Face's
    TrainingArguments, for `trainer_code`.
    """

    loader: str | None = None
    model: str | None = None
    optimizer: str | None = None
    call: str | None = None
    arguments: Mapping[str, str | None] | None = None
    training: str | None = None
    dataset_type: str | None = None
    streams: bool = False  # whether its dataset is an IterableDataset
    is_compiled: bool = False  # whether torch.compile has compiled anything in its process
    cards: int = 1  # that one process trains on, each with its part of the batch
    may_fuse: bool | None = None  # whether its optimizer has a fused version that is not in use

    @classmethod
    def of(cls, recorded: object, job: Mapping[str, object] | None = None) -> LoopCode:
        """Return what a record tells: a record is anybody's, so of code the names alone.

        `job` is the event that is written after the first step.
        """
        said = {**recorded} if isinstance(recorded, Mapping) else {}
        said |= {name: value for name, value in (job or {}).items() if value is not None}
        names = ("loader", "model", "optimizer", "training", "dataset_type")
        known = {name: said[name] for name in names if _is_name(said.get(name))}
        listed = said.get("arguments")
        arguments = None
        if isinstance(listed, Mapping) and set(listed) <= set(ARGUMENTS):
            arguments = {name: code if _is_code(code) else None for name, code in listed.items()}
        flags = ("streams", "is_compiled", "may_fuse")
        known |= {name: said[name] for name in flags if isinstance(said.get(name), bool)}
        cards = said.get("cards")
        return cls(
            **known,
            call=said["call"] if _is_loader_class(said.get("call")) else None,
            arguments=arguments,
            cards=cards if isinstance(cards, int) and cards > 1 else 1,
        )

    @property
    def names(self) -> set[str]:
        """The names that the script is known to have."""
        told = (self.loader, self.model, self.optimizer, self.training, self.call)
        codes = filter(None, (*told, *(self.arguments or {}).values()))
        return {re.split(r"\W", code)[0] for code in codes}

    def lines(self, changes: Mapping[str, Setting]) -> str:
        """Return the lines that make `changes`, {knob: value}; "" where one cannot be pasted.

        What has no name that is known is written by what it is, "model" or "dataset": such lines
        are an example (`ready_to_paste`).
        """
        of_loader = {name: value for name, value in changes.items() if name in ARGUMENTS}
        found = [self.loader_line(of_loader)] if of_loader else []
        names = {"model": self.model or "model", "optimizer": self.optimizer or "optimizer"}
        for name, value in changes.items():
            if name not in of_loader and value not in SWITCHED_OFF:
                line = STEP_LINES.get(name) or STEP_LINES.get(f"{name}={value}", "")
                found.append(line.format(value=value, **names))
        return "".join(f"{line}\n" for line in found) if all(found) else ""

    def loader_line(
        self, changes: Mapping[str, Setting], code: Mapping[str, str] | None = None
    ) -> str:
        """Return the statement that makes the loader with `changes`; "" where it is no call.

        `code` are other arguments that change, as they are to be written.
        """
        known = {"dataset": None, **(self.arguments or {})}
        if self.call is None or ("batch_sampler" in known and "batch_size" in changes):
            return ""
        written = {name: known_code or name for name, known_code in known.items()}
        written |= {name: repr(value) for name, value in changes.items()} | {**(code or {})}
        unsaid = {name for name in changes if written[name] in UNSAID and name != "batch_size"}
        if written.get("num_workers", "0") == "0":
            unsaid |= OF_WORKERS
        if written.get("prefetch_factor") == str(PYTORCH_PREFETCH):
            unsaid.add("prefetch_factor")
        named = [
            f"{name}={written[name]}" for name in ARGUMENTS[1:] if name in written.keys() - unsaid
        ]
        name = self.loader or "loader"
        call = call_lines(self.call or "DataLoader", [written["dataset"], *named], len(name))
        line = f"{name} = {call}"
        if any(argument.startswith(f"{name}.") for argument in written.values()):
            line = f"# below the line that makes {name} now\n{line}"
        return line
