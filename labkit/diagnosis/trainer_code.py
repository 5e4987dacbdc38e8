"""A change to the TrainingArguments of Hugging Face's Trainer as lines to paste."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.knobs import Setting
from labkit.results.script import call_lines
from labkit.spec import LOADER_KNOBS

# {knob: argument}; elsewhere these knobs are the user's DataLoader
OF_LOADER = {name: f"dataloader_{name}" for name in LOADER_KNOBS if name != "batch_size"}
SWITCHES: Mapping[str, dict[str, Setting]] = {
    "compile": {"torch_compile": True},
    "fused_optimizer": {"optim": "adamw_torch_fused"},
}


def trainer_lines(training: str | None, changes: Mapping[str, Setting], cards: int = 1) -> str:
    """Return the lines that make `changes`, {knob: value}; they go before the Trainer.

    The loader's batch is that of all the `cards` of a process; the argument is that of one.
    "" where nothing changes, where a knob has no argument, or where no variable (`training`) is
    known to have the arguments.
    """
    if training is None or not changes:
        return ""
    arguments: dict[str, Setting] = {}
    for knob, value in changes.items():
        if knob == "precision":
            arguments[str(value)] = True
        elif knob in SWITCHES:
            arguments |= SWITCHES[knob]
        elif knob == "batch_size" and value is not None:
            arguments["per_device_train_batch_size"] = max(1, int(value) // cards)
        elif knob in OF_LOADER:
            arguments[OF_LOADER[knob]] = value
        else:
            return ""
    written = [f"{name}={value!r}" for name, value in arguments.items()]
    call = call_lines("replace", [training, *written], len(training))
    return f"from dataclasses import replace\n\n{training} = {call}\n"
