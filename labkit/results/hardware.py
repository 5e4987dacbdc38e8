"""The machine, asked of a process of its own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from labkit.process import launcher
from labkit.results.result import Result, Table
from labkit.stamps.event_shapes import fields_in
from labkit.text import counted

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
    threads: int | None = None  # that the model runs on, where the device is the CPU
    uuid: str | None = None
    sm_count: int | None = None
    compute_capability: str | None = None
    unused_gpu: str | None = None  # a card that is here and that torch cannot use: why, the remedy
    compile_lacks: str | None = None  # why torch.compile cannot act on the device
    devices: list[str] = field(default_factory=list)  # that a run can use
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Machine:
        """Build from a `machine` event; keys of other versions are left out."""
        return cls(**fields_in(cls, values))

    def why_not(self, device: str, ranks: int) -> str | None:
        """Return why a run on `device` cannot be, or ranks with a card each; None where it can."""
        use = f"use one of {', '.join(map(repr, ('auto', *self.devices)))}."
        cards = sum(name.startswith("cuda") for name in self.devices)
        if 0 < cards < ranks:
            return f"{ranks} ranks need a card each and {cards} can be used: {use}"
        if ("cuda:0" if device == "cuda" else device) in self.devices:
            return None
        return self.unused_gpu or f"it is not here: {use}"

    @property
    def line(self) -> str:
        """The machine in one line: the stamp under every number."""
        kind = self.kind.upper()
        if self.kind == "cpu" and self.threads is not None:
            kind += f", model on {counted(self.threads, 'thread')}"
        cores = str(self.cpu_cores)
        if self.cores_limit:
            cores += f" of {self.host_cores} ({self.cores_limit})"
        line = f"{self.name} ({kind}), {cores} CPU cores, torch {self.versions.get('torch')}"
        unused = self.unused_gpu and self.unused_gpu.partition(":")[0]
        return f"{line}; {unused} (lk.machine() says why)" if unused else line

    def table(self) -> Table:
        """Return what is known of it, a line each."""
        versions = ", ".join(f"{name} {each}" for name, each in self.versions.items())
        known = {**vars(self), "versions": versions, "devices": ", ".join(self.devices)}
        rows = [(name.replace("_", " "), value) for name, value in known.items() if value]
        return Table(rows, left=(0, 1))


@functools.cache
def machine() -> Machine:
    """Describe this machine (2 s the first time); RuntimeError says why torch does not start."""
    launcher.stand_by()  # a notebook asks this before its first run, and waits for torch once
    return Machine.from_dict(facts_of_this())


def check_device(device: str, ranks: int = 0) -> None:
    """Raise ValueError where `device` is a named one that cannot be used, by each of the ranks.

    Torch is asked once more before it is refused: a card may no longer be hidden.
    """
    if device in ("auto", "cpu") or not machine().why_not(device, ranks):
        return
    machine.cache_clear()
    if why := machine().why_not(device, ranks):
        raise ValueError(f"device={device!r}: {why}")


def facts_of_this() -> dict[str, Any]:
    """Return what a process of its own says of this machine."""
    command = [sys.executable, "-m", "labkit.instruments.machine"]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"The machine did not answer in {PROBE_SECONDS} s: does `nvidia-smi` hang too?"
        ) from None
    if probe.returncode != 0:
        why = probe.stderr.strip().rpartition("\n")[2] or "no message"
        raise RuntimeError(f"torch does not start here: {why}")
    return json.loads(probe.stdout.splitlines()[-1])
