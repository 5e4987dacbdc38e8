"""A change to a user's own loop as lines to paste: every argument that does not change is kept."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from labkit.knobs import Setting
from labkit.results.script import call_lines
from labkit.spec import GRAPH_MODES, PYTORCH_PREFETCH, WITHOUT_WORKERS

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
# What the sampler of whole batches takes the place of, and what does not go with one
OF_BATCHES = ("batch_size", "shuffle", "sampler", "drop_last")
NOT_OF_BATCHES = {"batch_sampler", "collate_fn"}
UNSAID = {"None", "False"}
SWITCHED_OFF = (None, False)  # of a knob of the step, which then needs no line
DTYPES = {"bf16": "torch.bfloat16"}  # FP16 needs a GradScaler around backward: no line to paste


# What else than a name may stand in a call: a number, how workers start, a seeded generator
LITERAL = re.compile(
    r"True|False|None|-?[0-9]{1,18}(\.[0-9]{1,18})?|'(fork|spawn|forkserver|cuda(:[0-9]{1,3})?)'"
    r"|torch\.Generator\(\)\.manual_seed\([0-9]{1,20}\)"
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

    `arguments` are those of the loader's `call`, {name: code}, PyTorch's defaults left out.
    `training` is the variable with Hugging Face's TrainingArguments, for `trainer_code`.
    """

    loader: str | None = None
    model: str | None = None
    optimizer: str | None = None
    call: str | None = None
    arguments: Mapping[str, str | None] | None = None
    training: str | None = None
    dataset_type: str | None = None
    epoch_setter: str | None = None  # the class of its dataset or sampler with a `set_epoch`
    streams: bool = False  # whether its dataset is an IterableDataset
    is_compiled: bool = False  # whether torch.compile has its model
    cards: int = 1  # that one process trains on, each with its part of the batch
    compiles_in_place: bool = True  # whether its model's own compile() would compile it
    may_fuse: bool | None = None  # whether its optimizer has a fused version that is not in use
    # What is made anew for each pass: the "loader", or its "dataset" as well
    remade: str | None = None

    @classmethod
    def of(cls, recorded: object, remade: Mapping[str, object] | None = None) -> LoopCode:
        """Return what a record tells: a record is anybody's, so of code the names alone.

        `remade` is the event that tells of a loader which is made anew.
        """
        said = recorded if isinstance(recorded, Mapping) else {}
        names = ("loader", "model", "optimizer", "training", "dataset_type", "epoch_setter")
        known = {name: said[name] for name in names if _is_name(said.get(name))}
        listed = said.get("arguments")
        arguments = None
        if isinstance(listed, Mapping) and set(listed) <= set(ARGUMENTS):
            arguments = {name: code if _is_code(code) else None for name, code in listed.items()}
        cards = said.get("cards")
        may_fuse = said.get("may_fuse")
        return cls(
            **known,
            call=said["call"] if _is_loader_class(said.get("call")) else None,
            arguments=arguments,
            streams=said.get("streams") is True,
            is_compiled=said.get("is_compiled") is True,
            cards=cards if isinstance(cards, int) and cards > 1 else 1,
            compiles_in_place=said.get("compiles_in_place") is not False,
            may_fuse=may_fuse if isinstance(may_fuse, bool) else None,
            remade=None if remade is None else "dataset" if remade["dataset"] else "loader",
        )

    @property
    def names(self) -> set[str]:
        """The names that the script is known to have."""
        told = (self.loader, self.model, self.optimizer, self.training, self.call)
        codes = filter(None, (*told, *(self.arguments or {}).values()))
        return {re.split(r"\W", code)[0] for code in codes}

    def with_names(self) -> LoopCode:
        """Return a copy in which everything has a name: "loader", "model", and the arguments'."""
        known = self.arguments or {"dataset": None}
        arguments = {name: code or name for name, code in known.items()}
        names = ("loader", "model", "optimizer")
        named = {name: getattr(self, name) or name for name in names}
        return replace(self, **named, call=self.call or "", arguments=arguments)

    def lines(self, changes: Mapping[str, Setting]) -> str:
        """Return the lines that make `changes`, {knob: value}.

        "" where a part of the script has no name that is known, or where no line can be pasted.
        """
        of_loader = {name: value for name, value in changes.items() if name in ARGUMENTS}
        if self.remade and of_loader.get("persistent_workers"):
            return ""  # it belongs above the loop over the epochs, where other names are known
        found = [self.loader_line(of_loader)] if of_loader else []
        for name, value in changes.items():
            if name not in of_loader and value not in SWITCHED_OFF:
                found.append(self._step_line(name, value))
        return "".join(f"{line}\n" for line in found) if all(found) else ""

    def loader_line(
        self, changes: Mapping[str, Setting], code: Mapping[str, str] | None = None
    ) -> str:
        """Return the statement that makes the loader with `changes`; "" where it is not known.

        `code` are other arguments that change, as they are to be written.
        """
        arguments = self._known_arguments()
        if self.call is None or "dataset" not in arguments:
            return ""
        if "batch_sampler" in arguments and "batch_size" in changes:
            return ""
        arguments |= {name: repr(value) for name, value in changes.items()}
        unsaid = {n for n in changes if arguments[n] in UNSAID and n != "batch_size"}
        arguments |= code or {}
        if arguments.get("num_workers", "0") == "0":
            unsaid |= OF_WORKERS
        if arguments.get("prefetch_factor") == str(PYTORCH_PREFETCH):
            unsaid.add("prefetch_factor")
        written = [arguments["dataset"]]
        for name in ARGUMENTS[1:]:
            if name in arguments and name not in unsaid:
                written.append(f"{name}={arguments[name]}")
        name = self.loader or "loader"
        call = call_lines(self.call or "DataLoader", written, len(name))
        line = f"{name} = {call}"
        if any(argument.startswith(f"{name}.") for argument in arguments.values()):
            line = f"# below the line that makes {name} now\n{line}"
        return line

    def _known_arguments(self) -> dict[str, str]:
        """Return the arguments of the loader's call; {} where the code of one is not known."""
        known: dict[str, str] = {}
        for name, code in (self.arguments or {}).items():
            if not isinstance(code, str) or not code:
                return {}
            known[name] = code
        return known

    def batches_at_once(self) -> str:
        """Return the statement that makes a loader which indexes its dataset a batch at a time.

        It does so in the loop: to send such a batch from a worker takes longer than to make it. ""
        where the dataset is not known to take a list of indices, or an argument of the loader
        stands against it.
        """
        arguments = self._known_arguments()
        size = arguments.get("batch_size", "1")
        if self.dataset_type != "TensorDataset" or "dataset" not in arguments:
            return ""
        if size in ("1", "None") or NOT_OF_BATCHES & arguments.keys():
            return ""
        parts = {name: arguments.pop(name, None) for name in OF_BATCHES}
        order = parts["sampler"]
        if order is None:
            kind = "RandomSampler" if parts["shuffle"] == "True" else "SequentialSampler"
            seeded = kind == "RandomSampler" and "generator" in arguments
            more = f", generator={arguments['generator']}" if seeded else ""
            order = f"{kind}({arguments['dataset']}{more})"
        drop_last = parts["drop_last"] or "False"
        arguments["sampler"] = f"BatchSampler({order}, batch_size={size}, drop_last={drop_last})"
        line = replace(self, arguments=arguments).loader_line(
            {"batch_size": None, "num_workers": 0}
        )
        return f"{line}\n"

    def _step_line(self, name: str, value: Setting) -> str:
        """Return what switches a knob of the step on; "" where no line is known for it."""
        model = self.model
        if name == "non_blocking":
            return "# and in the loop: .to(device, non_blocking=True)"
        if name == "fused_optimizer" and self.optimizer:
            group = "for group in {0}.param_groups:\n    group.update(fused=True, foreach=False)"
            return group.format(self.optimizer)
        if name == "channels_last" and model:
            return f"{model} = {model}.to(memory_format=torch.channels_last)"
        if name == "compile" and model:
            mode = [] if value == "default" else [f"mode={value!r}"]
            if self.compiles_in_place:
                line = f"{model}.compile({''.join(mode)})"
                notes = []
            else:
                line = f"{model} = torch.compile({', '.join([model, *mode])})"
                notes = [f"save {model}._orig_mod.state_dict()"]  # its keys are as before
            if value in GRAPH_MODES:  # the next replay overwrites what the last one gave
                notes.append("clone() outputs that you keep")
            return f"{line}  # {'; '.join(notes)}" if notes else line
        if name == "precision" and value in DTYPES and model:
            device = f"next({model}.parameters()).device.type"
            autocast = f"autocast = torch.autocast({device}, dtype={DTYPES[value]})"
            return f"{autocast}\n{model}.forward = autocast({model}.forward)"
        if name == "precision" and value == "tf32":
            return 'torch.set_float32_matmul_precision("high")'
        return ""
