"""The settings of a Pipeline under the names of Hugging Face's `TrainingArguments`."""

from __future__ import annotations

import os
import shutil
from typing import Any

from labkit.results.machine import Machine, machine
from labkit.results.result import Result
from labkit.results.table import Table
from labkit.spec import Pipeline

KNOBS = {  # of the Pipeline, by the setting of TrainingArguments that stands for each
    "dataloader_num_workers": "num_workers",
    "dataloader_pin_memory": "pin_memory",
    "dataloader_prefetch_factor": "prefetch_factor",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation_steps",
    "bf16": "precision",
    "tf32": "precision",
    "torch_compile": "compile",
    "fp16": "precision",
}


class TrainingSettings(Result, dict):
    """Settings for `TrainingArguments(output_dir=..., **settings)`, and what became of each knob.

    Attributes:
        pipeline: Where they come from.
        notes: {setting: why this machine cannot honour it, or what else it needs here}.
    """

    def __init__(self, values: dict[str, Any], pipeline: Pipeline, notes: dict[str, str]):
        super().__init__(values)
        self.pipeline, self.notes = pipeline, notes

    def to_dict(self) -> dict[str, Any]:
        """Return the settings alone."""
        return dict(self)

    def table(self) -> Table:
        """Return each setting, the knob it stands for, and what this machine makes of it."""
        rows = []
        for name, value in self.items():
            knob = KNOBS.get(name)
            asked = f"{knob}={getattr(self.pipeline, knob)!r}" if knob else ""
            rows.append((name, repr(value), asked, self.notes.get(name, "")))
        head = ("TrainingArguments", "value", "knob of the Pipeline", "on this machine")
        return Table(rows, head=head, left=range(4))


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
    gpu = here.kind == "gpu" and here.device.startswith("cuda")
    major = int((here.compute_capability or "0").partition(".")[0])
    ampere = gpu and major >= 8
    # Why this machine cannot honour a setting; one that it can is not in here
    cannot = {}
    if not gpu:
        cannot["dataloader_pin_memory"] = (
            "there is no CUDA device to copy to: it would gain nothing"
        )
        cannot["fp16"] = "no use on a CPU: it is slower"
        if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
            cannot["torch_compile"] = "needs a C++ compiler on a CPU and found none"
    if gpu and not ampere:
        cannot["bf16"] = "needs an Ampere card or later"
    if not ampere:
        cannot["tf32"] = (
            "a format of NVIDIA's Tensor Cores, from Ampere on: TrainingArguments refuses it "
            "elsewhere"
        )
    asked = {name: getattr(pipeline, knob) for name, knob in KNOBS.items()}
    asked |= {name: pipeline.precision == name for name in ("bf16", "tf32", "fp16")}
    asked["torch_compile"] = pipeline.compile is not None
    notes = {name: why for name, why in cannot.items() if asked[name]}
    values = asked | dict.fromkeys(notes, False)
    if not ampere:
        values["tf32"] = None  # even False is refused there
    if pipeline.precision != "fp16":
        del values["fp16"]
    if here.kind == "cpu":
        values["use_cpu"] = True
        notes["use_cpu"] = "said outright: without a GPU, bf16=True is refused unless it is"
    return TrainingSettings(values, pipeline, notes)
