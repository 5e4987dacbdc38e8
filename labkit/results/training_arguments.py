"""The settings of a Pipeline under the names of Hugging Face's `TrainingArguments`."""

from __future__ import annotations

import html
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from labkit.results.machine import Machine, machine
from labkit.spec import Pipeline


class TrainingSettings(Mapping):
    """Settings for `TrainingArguments(output_dir=..., **settings)`, and what became of each knob.

    Attributes:
        knobs: {setting: the knob of the Pipeline that it stands for, with its value}.
        notes: {setting: why this machine cannot honour it, or what else it needs here}.
    """

    def __init__(self, values: dict[str, Any], knobs: dict[str, str], notes: dict[str, str]):
        self._values, self.knobs, self.notes = values, knobs, notes

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The table: (setting, value, knob it stands for, note)."""
        return [
            (name, repr(value), self.knobs.get(name, ""), self.notes.get(name, ""))
            for name, value in self.items()
        ]

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def row(cells: tuple, tag: str) -> str:
            style = "text-align:left;padding:2px 12px 2px 0;max-width:360px"
            body = "".join(f"<{tag} style='{style}'>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{body}</tr>"

        head = row(("TrainingArguments", "value", "knob of the Pipeline", "on this machine"), "th")
        return f"<table>{head}{''.join(row(cells, 'td') for cells in self.rows())}</table>"


def training_arguments(pipeline: Pipeline, here: Machine | None = None) -> TrainingSettings:
    """Return a pipeline's settings as keywords for Hugging Face's `TrainingArguments`.

    Needs no transformers. What this machine cannot honour is left at what it can, with the reason
    in `.notes`; printing the result shows both.

    Args:
        pipeline: Where the settings come from. `pipeline.channels_last`, `non_blocking` and the
            like have no counterpart in TrainingArguments.
        here: The machine to run on; this one where it is left out.
    """
    here = here or machine()
    notes: dict[str, str] = {}
    gpu = here.kind == "gpu" and here.device.startswith("cuda")
    ampere = gpu and _capability(here) >= (8, 0)

    def unless(name: str, wanted: bool, why: str | None) -> bool:
        """Return `wanted`, or False with the reason noted where it cannot be."""
        if wanted and why:
            notes[name] = why
        return bool(wanted and not why)

    values = {
        "dataloader_num_workers": pipeline.num_workers,
        "dataloader_pin_memory": unless(
            "dataloader_pin_memory", pipeline.pin_memory,
            None if gpu else "there is no CUDA device to copy to: it would gain nothing",
        ),
        "dataloader_prefetch_factor": pipeline.prefetch_factor,
        "per_device_train_batch_size": pipeline.batch_size,
        "gradient_accumulation_steps": pipeline.accumulation_steps,
        "bf16": unless(
            "bf16", pipeline.precision == "bf16",
            "needs an Ampere card or later" if gpu and not ampere else None,
        ),
        "tf32": unless(
            "tf32", pipeline.precision == "tf32",
            None if ampere else "a format of NVIDIA's Tensor Cores, from Ampere on: "
            "TrainingArguments refuses it elsewhere",
        ) or (False if ampere else None),
        "torch_compile": unless(
            "torch_compile", pipeline.compile is not None,
            None if gpu or _compiler() else "needs a C++ compiler on a CPU and found none",
        ),
    }  # fmt: skip
    if pipeline.precision == "fp16":
        values["fp16"] = unless("fp16", True, None if gpu else "no use on a CPU: it is slower")
    if here.kind == "cpu":
        values["use_cpu"] = True
        notes["use_cpu"] = "said outright: without a GPU, bf16=True is refused unless it is"
    return TrainingSettings(values, _knobs(pipeline), notes)


def _knobs(pipeline: Pipeline) -> dict[str, str]:
    names = {
        "dataloader_num_workers": "num_workers",
        "dataloader_pin_memory": "pin_memory",
        "dataloader_prefetch_factor": "prefetch_factor",
        "per_device_train_batch_size": "batch_size",
        "gradient_accumulation_steps": "accumulation_steps",
        "bf16": "precision",
        "tf32": "precision",
        "fp16": "precision",
        "torch_compile": "compile",
    }
    return {name: f"{knob}={getattr(pipeline, knob)!r}" for name, knob in names.items()}


def _capability(here: Machine) -> tuple[int, ...]:
    return tuple(int(part) for part in (here.compute_capability or "0.0").split("."))


def _compiler() -> str | None:
    return next(
        filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))), None
    )
