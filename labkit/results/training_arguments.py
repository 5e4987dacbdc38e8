"""The settings of a Pipeline under the names of Hugging Face's `TrainingArguments`."""

from __future__ import annotations

from typing import Any

from labkit.results.machine import Machine, machine
from labkit.results.result import Result, Table
from labkit.spec import Pipeline, compiler

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
        knobs = {name: f"{k}={getattr(self.pipeline, k)!r}" for name, k in KNOBS.items()}
        rows = [
            (name, repr(value), knobs.get(name, ""), self.notes.get(name, ""))
            for name, value in self.items()
        ]
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
    ampere = gpu and int((here.compute_capability or "0").partition(".")[0]) >= 8
    cannot = {  # {setting: (whether this machine cannot honour it, why)}
        "dataloader_pin_memory": (
            not gpu, "there is no CUDA device to copy to: it would gain nothing"),
        "fp16": (not gpu, "no use on a CPU: it is slower"),
        "torch_compile": (
            not gpu and compiler() is None, "needs a C++ compiler on a CPU and found none"),
        "bf16": (gpu and not ampere, "needs an Ampere card or later"),
        "tf32": (
            not ampere,
            "a format of NVIDIA's Tensor Cores, from Ampere on: TrainingArguments refuses it "
            "elsewhere"),
    }  # fmt: skip
    values = {name: getattr(pipeline, knob) for name, knob in KNOBS.items()}
    values |= {name: pipeline.precision == name for name in ("bf16", "tf32", "fp16")}
    values["torch_compile"] = pipeline.compile is not None
    notes = {name: why for name, (here_not, why) in cannot.items() if here_not and values[name]}
    values |= dict.fromkeys(notes, False)
    if not ampere:
        values["tf32"] = None  # even False is refused there
    if pipeline.precision != "fp16":
        del values["fp16"]
    if here.kind == "cpu":
        values["use_cpu"] = True
        notes["use_cpu"] = "said outright: without a GPU, bf16=True is refused unless it is"
    return TrainingSettings(values, pipeline, notes)
