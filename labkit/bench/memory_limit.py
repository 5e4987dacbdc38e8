"""A limit on the memory that this process may train with, and how much of it was used.

So that "does it fit?" can be asked on any machine, and the answer costs nobody but this process:

- CUDA: the caching allocator refuses what goes beyond (`set_per_process_memory_fraction`);
- Linux, CPU: the kernel refuses (RLIMIT_DATA, counted from what the process has when training
  begins: PyTorch's own libraries and threads are not charged). RLIMIT_AS would count reserved
  address space too, of which PyTorch takes gigabytes that it never touches;
- elsewhere: nothing refuses; resident memory is looked at after every step.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import torch

from labkit.bench.machine import peak_bytes

STATUS = Path("/proc/self/status")
# What PyTorch and its libraries say when an allocation is refused
REFUSED = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|could not create a"
    r"|cannot allocate memory|STATUS_ALLOC_FAILED|unable to find an engine|over the limit",
    re.IGNORECASE,
)


def refused(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, as against any other failure."""
    return isinstance(error, MemoryError) or bool(REFUSED.search(str(error)))


def in_words(error: BaseException) -> str:
    """Return the error's first line, without where in PyTorch's sources it was raised."""
    first = str(error).partition("\n")[0].removesuffix("Error code 12 (Cannot allocate memory)")
    said = re.sub(r"^\[enforce fail at [^\]]*\] err == 0\. ", "", first).strip()
    return said[:200] or type(error).__name__


def impose(device: torch.device, limit_bytes: int) -> Limit:
    """Limit what this process may take from now on to `limit_bytes`; return the limit."""
    if device.type == "cuda":
        return AllocatorLimit(device, limit_bytes)
    _warm_up()
    return DataLimit(limit_bytes) if _status_bytes("VmData") else Watch(device, limit_bytes)


class Limit:
    """A limit, in words (`how`), and what was used of it beyond what the process had before."""

    how = ""

    def check(self) -> None:
        """Raise MemoryError where the limit was passed and nothing refused it."""

    def lift(self) -> None:
        """Let the process allocate again, to write what came out."""


class AllocatorLimit(Limit):
    """The CUDA caching allocator's own limit; the CUDA context is not in it."""

    how = "memory of PyTorch's caching allocator on the card"

    def __init__(self, device: torch.device, limit_bytes: int):
        self.device = device
        torch.cuda.empty_cache()  # what the process used before is not its training's
        torch.cuda.reset_peak_memory_stats(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)

    def used(self) -> int:
        """The most that was reserved: what the limit is on."""
        return torch.cuda.max_memory_reserved(self.device)

    def lift(self) -> None:
        """Allow the whole card again."""
        torch.cuda.set_per_process_memory_fraction(1.0, self.device)


class DataLimit(Limit):
    """Linux: private writable memory (RLIMIT_DATA) beyond what the process has now."""

    how = "private memory of the training process beyond PyTorch's own (RLIMIT_DATA)"

    def __init__(self, limit_bytes: int):
        import resource

        self.resource = resource
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts over
        self.resident = _status_bytes("VmRSS") or 0
        self.old = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = (_status_bytes("VmData") or 0) + limit_bytes
        hard = self.old[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def used(self) -> int | None:
        """The most that was resident beyond the baseline."""
        peak = _status_bytes("VmHWM")
        return None if peak is None else max(0, peak - self.resident)

    def lift(self) -> None:
        """Restore the limit that was there before."""
        self.resource.setrlimit(self.resource.RLIMIT_DATA, self.old)


class Watch(Limit):
    """Where nothing refuses: the peak is compared after every step."""

    how = "resident memory of the training process beyond PyTorch's own, looked at after each step"

    def __init__(self, device: torch.device, limit_bytes: int):
        self.device, self.limit_bytes = device, limit_bytes
        self.baseline = peak_bytes(device) or 0

    def used(self) -> int:
        """The most beyond the baseline."""
        return max(0, (peak_bytes(self.device) or 0) - self.baseline)

    def check(self) -> None:
        """Raise MemoryError where the peak has passed the limit."""
        if self.used() > self.limit_bytes:
            raise MemoryError(f"{self.used():,} bytes used: over the limit of {self.limit_bytes:,}")


def default_limit_bytes(device: torch.device) -> int:
    """What is free on the card; on a CPU a stated 0.5 GiB, since filling its RAM harms others."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 2**29


def _warm_up() -> None:
    """Start the threads and pools that PyTorch makes on first use, so the baseline has them."""
    torch.randn(1 << 20).exp_()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 3, 5, 5)).sum().backward()
    optimizer.step()


def _status_bytes(name: str) -> int | None:
    """Read a line of /proc/self/status, bytes; None where there is none (not Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    with contextlib.suppress(OSError, ValueError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
