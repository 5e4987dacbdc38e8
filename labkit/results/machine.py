"""The machine as the kernel sees it: asked of a process of its own, so no torch and no driver."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.results.result import Result, Table

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
        names = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in names})

    @property
    def line(self) -> str:
        """The machine in one line: the stamp under every number."""
        plural = "" if self.threads == 1 else "s"
        threads = f", model on {self.threads} thread{plural}" if self.kind == "cpu" else ""
        unused = f"; {self.unused_gpu.split(':')[0]}" if self.unused_gpu else ""
        return (
            f"{self.name} ({self.kind.upper()}{threads}), {self.cpu_cores} CPU cores, "
            f"torch {self.versions.get('torch', 'unknown')}{unused}"
        )

    def table(self) -> Table:
        """Return what is known of it, a line each."""
        on_cpu = self.kind == "cpu"
        why = "GPU not used" if self.unused_gpu else "no GPU here"
        found = {
            "device": f"{self.name} ({self.device})"
            + (f": {why}, the CPU is the device" if on_cpu else ""),
            "GPU not used": self.unused_gpu,
            "device memory": self.memory_gib and f"{self.memory_gib:.1f} GiB",
            "SMs": self.sm_count,
            "compute capability": self.compute_capability,
            "driver": self.driver,
            "PCIe link": self.pcie,
            "CPU": not on_cpu and self.cpu_name,
            "CPU cores": self.cpu_cores,
            "model threads": on_cpu and self.threads,
            "RAM": not on_cpu and self.ram_gib and f"{self.ram_gib:.1f} GiB",
            "/dev/shm": self.shm_gib and f"{self.shm_gib:.2f} GiB",
            "system": self.os,
            "versions": ", ".join(f"{k} {v}" for k, v in self.versions.items() if v),
        }
        return Table([row for row in found.items() if row[1]], left=(0, 1))


@functools.cache
def machine() -> Machine:
    """Describe this machine: device, cores, memory, versions (about 2 s the first time).

    Raises RuntimeError where torch cannot be imported or the driver does not answer, saying why.
    """
    command = [sys.executable, "-m", "labkit.bench.machine"]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"The machine did not answer in {PROBE_SECONDS} s: does `nvidia-smi` hang too?"
        ) from None
    if probe.returncode != 0:
        why = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"torch does not start here: {why}")
    return Machine.from_dict(json.loads(probe.stdout.splitlines()[-1]))
