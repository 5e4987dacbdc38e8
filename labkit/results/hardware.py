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
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})

    @property
    def cores_text(self) -> str:
        """The cores that this process may use: "2", or "2 of 64 (quota)" where it has a limit."""
        if self.cores_limit is None:
            return str(self.cpu_cores)
        return f"{self.cpu_cores} of {self.host_cores} ({self.cores_limit})"

    @property
    def line(self) -> str:
        """The machine in one line: the stamp under every number."""
        plural = "" if self.threads == 1 else "s"
        threads = f", model on {self.threads} thread{plural}" if self.kind == "cpu" else ""
        unused = ""
        if self.unused_gpu:
            unused = f"; {self.unused_gpu.split(':')[0]}"
            if wheel := re.search(r"whl/(\w+)", self.unused_gpu):
                unused += f": install torch's wheel {wheel[1]} (lk.machine() has the command)"
        return (
            f"{self.name} ({self.kind.upper()}{threads}), {self.cores_text} CPU cores, "
            f"torch {self.versions.get('torch', 'unknown')}{unused}"
        )

    def table(self) -> Table:
        """Return what is known of it, a line each."""
        cpu = self.kind == "cpu"
        small = SMALL_SHM if (self.shm_gib or 0.0) < LEAST_SHM_GIB else ""
        why = f": {'GPU not used' if self.unused_gpu else 'no GPU here'}, the CPU is the device"
        found = {
            "device": f"{self.name} ({self.device}){why if cpu else ''}",
            "GPU not used": self.unused_gpu,
            "device memory": self.memory_gib and f"{self.memory_gib:.1f} GiB",
            "SMs": self.sm_count,
            "compute capability": self.compute_capability,
            "driver": self.driver,
            "PCIe link": self.pcie,
            "CPU": not cpu and self.cpu_name,
            "CPU cores": self.cores_text,
            "model threads": cpu and self.threads,
            "RAM": not cpu and self.ram_gib and f"{self.ram_gib:.1f} GiB",
            "/dev/shm": self.shm_gib is not None and f"{self.shm_gib:.2f} GiB{small}",
            "system": self.os,
            "versions": ", ".join(f"{k} {v}" for k, v in self.versions.items() if v),
        }
        return Table([row for row in found.items() if row[1]], left=(0, 1))


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
    **dict.fromkeys(("bf16", "tf32"), "precision"),
    "torch_compile": "compile",
    "fp16": "precision",
}


class TrainingSettings(Result, dict):
    """Settings for `TrainingArguments(output_dir=..., **settings)`; prints what became of each."""

    pipeline: Pipeline  # where they come from
    notes: dict[str, str]  # {setting: why this machine cannot honour it, or what it needs here}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings alone."""
        return dict(self)

    def table(self) -> Table:
        """Return each setting, the knob it stands for, and what this machine makes of it."""
        knobs = {name: f"{k}={getattr(self.pipeline, k)!r}" for name, k in SETTINGS.items()}
        rows = [(n, repr(v), knobs.get(n, ""), self.notes.get(n, "")) for n, v in self.items()]
        head = ("TrainingArguments", "value", "knob of the Pipeline", "on this machine")
        return Table(rows, head=head, left=range(4))


def training_arguments(pipeline: Pipeline, here: Machine | None = None) -> TrainingSettings:
    """Return a pipeline's settings as keywords for Hugging Face's `TrainingArguments`.

    Needs no transformers. What `here` (this machine) cannot honour is left at what it can, with the
    reason in `.notes`. Knobs such as `channels_last` have no counterpart.
    """
    here = here or machine()
    gpu = here.kind == "gpu" and here.device.startswith("cuda")
    generation = int((here.compute_capability or "0").partition(".")[0])  # 0: not told, as of AMD's
    ampere = gpu and generation >= 8
    cannot = {  # {setting: (whether this machine cannot honour it, why)}
        "dataloader_pin_memory": (
            not gpu, "there is no CUDA device to copy to: it would gain nothing"),
        "fp16": (not gpu, "no use on a CPU: it is slower"),
        "torch_compile": (
            not gpu and compiler() is None, "needs a C++ compiler on a CPU and found none"),
        "bf16": (gpu and 0 < generation < 8, "needs an Ampere card or later"),
        "tf32": (not ampere, "needs NVIDIA's Tensor Cores, Ampere or later, else it is refused"),
    }  # fmt: skip
    settings = TrainingSettings({name: getattr(pipeline, knob) for name, knob in SETTINGS.items()})
    settings |= {name: pipeline.precision == name for name in ("bf16", "tf32", "fp16")}
    settings["torch_compile"] = pipeline.compile is not None
    notes = {name: why for name, (here_not, why) in cannot.items() if here_not and settings[name]}
    settings |= dict.fromkeys(notes, False)
    if not ampere:
        settings["tf32"] = None  # even False is refused there
    if pipeline.precision != "fp16":
        del settings["fp16"]
    if here.kind == "cpu":
        settings["use_cpu"] = True
        notes["use_cpu"] = "said outright: without a GPU, bf16=True is refused unless it is"
    settings.pipeline, settings.notes = pipeline, notes
    return settings
