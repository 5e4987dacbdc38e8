"""The machine, asked of a process of its own, and Hugging Face's `TrainingArguments` on it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.process import launcher
from labkit.results.result import Result, Table
from labkit.spec import Pipeline, compiler

LEAST_SHM_GIB = 0.25  # Docker's default is 64 MiB
SMALL_SHM = ": small for loader workers; start the container with --shm-size=2g"
PROBE_SECONDS = 90  # a cold import of torch from a slow disk takes tens of seconds


@dataclass(frozen=True, repr=False)
class Machine(Result):
    """The hardware and versions of a run. What could not be read is None."""

    device: str = "unknown"
    kind: str = "unknown"  # "cpu" or "gpu"
    name: str = "unknown"  # of the device
    memory_gib: float | None = None  # of the device
    cpu_name: str | None = None
    cpu_cores: int | None = None  # that this process may use
    host_cores: int | None = None  # that the machine has
    cores_limit: str | None = None  # what leaves fewer of them: "quota" or "affinity"
    ram_gib: float | None = None
    shm_gib: float | None = None  # /dev/shm, through which workers hand over batches
    threads: int | None = None  # that the model runs on, where the device is the CPU
    os: str | None = None
    uuid: str | None = None
    sm_count: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    pcie: str | None = None  # the card's link, as it was when asked
    unused_gpu: str | None = None  # a card that is here and that torch cannot use: why, the remedy
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Machine:
        """Build from a `machine` event; keys of other versions are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def cores_text(self) -> str:
        """The cores that this process may use: "2", or "2 of 64 (quota)" where it has a limit."""
        if self.cores_limit is None:
            return str(self.cpu_cores)
        return f"{self.cpu_cores} of {self.host_cores} ({self.cores_limit})"

    @property
    def line(self) -> str:
        """The machine in one line: the stamp under every number."""
        threads = ""
        if self.kind == "cpu":
            threads = f", model on {self.threads} thread{'' if self.threads == 1 else 's'}"
        return (
            f"{self.name} ({self.kind.upper()}{threads}), {self.cores_text} CPU cores, "
            f"torch {self.versions.get('torch', 'unknown')}{self._unused_text()}"
        )

    def _unused_text(self) -> str:
        """Say in short that a card is here and not used; "" where none is."""
        if not self.unused_gpu:
            return ""
        text = f"; {self.unused_gpu.split(':')[0]}"
        wheel = re.search(r"whl/(\w+)", self.unused_gpu)
        if wheel:
            text += f": install torch's wheel {wheel[1]} (lk.machine() has the command)"
        return text

    def table(self) -> Table:
        """Return what is known of it, a line each."""
        lines = {"device": f"{self.name} ({self.device})", "GPU not used": self.unused_gpu}
        if self.kind == "cpu":
            why = "GPU not used" if self.unused_gpu else "no GPU here"
            lines["device"] += f": {why}, the CPU is the device"
        lines["device memory"] = _gib(self.memory_gib, 1)
        lines["SMs"] = self.sm_count
        lines["compute capability"] = self.compute_capability
        lines["driver"] = self.driver
        lines["PCIe link"] = self.pcie
        if self.kind != "cpu":
            lines["CPU"] = self.cpu_name
        lines["CPU cores"] = self.cores_text
        if self.kind == "cpu":
            lines["model threads"] = self.threads
        else:
            lines["RAM"] = _gib(self.ram_gib, 1)
        lines["/dev/shm"] = _gib(self.shm_gib, 2)
        if self.shm_gib is not None and self.shm_gib < LEAST_SHM_GIB:
            lines["/dev/shm"] += SMALL_SHM
        lines["system"] = self.os
        known = [f"{name} {version}" for name, version in self.versions.items() if version]
        lines["versions"] = ", ".join(known)
        return Table([(name, text) for name, text in lines.items() if text], left=(0, 1))


def _gib(amount: float | None, digits: int) -> str | None:
    return None if amount is None else f"{amount:.{digits}f} GiB"


@functools.cache
def machine() -> Machine:
    """Describe this machine (2 s the first time); RuntimeError says why torch does not start."""
    launcher.stand_by()  # a notebook asks this before its first run, and waits for torch once
    return Machine.from_dict(asked_of("labkit.bench.machine"))


def asked_of(module: str, *arguments: str) -> dict[str, Any]:
    """Return what `python -m module` prints as JSON; RuntimeError where torch does not start."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"The machine did not answer in {PROBE_SECONDS} s: does `nvidia-smi` hang too?"
        ) from None
    if probe.returncode != 0:
        why = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"torch does not start here: {why}")
    return json.loads(probe.stdout.splitlines()[-1])


SETTINGS = {  # of TrainingArguments: the knob of the Pipeline that each stands for
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
FORMATS = ("bf16", "tf32", "fp16")  # each a setting of its own


class TrainingSettings(Result, dict):
    """Settings for `TrainingArguments(output_dir=..., **settings)`; prints what became of each."""

    pipeline: Pipeline  # where they come from
    notes: dict[str, str]  # {setting: why this machine cannot honour it, or what it needs here}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings alone."""
        return dict(self)

    def table(self) -> Table:
        """Return each setting, the knob it stands for, and what this machine makes of it."""
        rows = []
        for name, value in self.items():
            knob = SETTINGS.get(name)
            origin = "" if knob is None else f"{knob}={getattr(self.pipeline, knob)!r}"
            rows.append((name, repr(value), origin, self.notes.get(name, "")))
        head = ("TrainingArguments", "value", "knob of the Pipeline", "on this machine")
        return Table(rows, head=head, left=range(4))


def training_arguments(pipeline: Pipeline, here: Machine | None = None) -> TrainingSettings:
    """Return a pipeline's settings as keywords for Hugging Face's `TrainingArguments`.

    Needs no transformers. What `here` (this machine) cannot honour is left at what it can, with the
    reason in `.notes`. Knobs such as `channels_last` have no counterpart.
    """
    here = here or machine()
    settings = TrainingSettings({name: getattr(pipeline, knob) for name, knob in SETTINGS.items()})
    settings.pipeline = pipeline
    settings.notes = {}
    for name in FORMATS:
        settings[name] = pipeline.precision == name
    settings["torch_compile"] = pipeline.compile is not None
    for name, why in _not_honoured(here).items():
        if settings[name]:
            settings[name] = False
            settings.notes[name] = why
    if not _is_ampere(here):
        settings["tf32"] = None  # even False is refused there
    if pipeline.precision != "fp16":
        del settings["fp16"]
    if here.kind == "cpu":
        settings["use_cpu"] = True
        settings.notes["use_cpu"] = "stated, because without a GPU bf16=True is refused otherwise"
    return settings


def _not_honoured(here: Machine) -> dict[str, str]:
    """Return {setting: why} of the settings that a machine cannot honour."""
    why = {}
    if not _is_cuda(here):
        why["dataloader_pin_memory"] = "there is no CUDA device to copy to: it would gain nothing"
        why["fp16"] = "no use on a CPU: it is slower"
        if compiler() is None:
            why["torch_compile"] = "needs a C++ compiler on a CPU and found none"
    elif 0 < _generation(here) < 8:
        why["bf16"] = "needs an Ampere card or later"
    if not _is_ampere(here):
        why["tf32"] = "needs NVIDIA's Tensor Cores, Ampere or later, else it is refused"
    return why


def _is_cuda(here: Machine) -> bool:
    return here.kind == "gpu" and here.device.startswith("cuda")


def _generation(here: Machine) -> int:
    """Return the major compute capability; 0 where it is not known, as of AMD's cards."""
    return int((here.compute_capability or "0").partition(".")[0])


def _is_ampere(here: Machine) -> bool:
    """Return whether it has an NVIDIA card of the Ampere generation or later."""
    return _is_cuda(here) and _generation(here) >= 8
