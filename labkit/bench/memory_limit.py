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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.bench.machine import peak_bytes

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


@dataclass
class Limit:
    """A limit in words (`how`); `used` returns the most bytes taken since, `lift` ends it."""

    how: str
    used: Callable[[], int]
    lift: Callable[[], None]
    watched: int | None = None  # bytes, where nothing refuses what goes beyond

    def check(self) -> None:
        """Raise MemoryError where the limit was passed and nothing refused it."""
        if self.watched is not None and (used := self.used()) > self.watched:
            raise MemoryError(f"{used:,} bytes used: over the limit of {self.watched:,}")


def impose(device: torch.device, limit_bytes: int) -> Limit:
    """Limit what this process may take from now on to `limit_bytes`; return the limit."""
    if device.type == "cuda":
        return _in_the_allocator(device, limit_bytes)
    _warm_up()
    if sys.platform == "linux":
        return _in_the_kernel(limit_bytes)
    how = "resident memory of the training process beyond PyTorch's own, looked at after each step"
    before = peak_bytes(device)
    return Limit(how, lambda: peak_bytes(device) - before, lambda: None, limit_bytes)


def _in_the_allocator(device: torch.device, limit_bytes: int) -> Limit:
    """CUDA: the caching allocator's own limit; the CUDA context is not in it."""
    torch.cuda.empty_cache()  # what the process used before is not its training's
    torch.cuda.reset_peak_memory_stats(device)
    allow, total = (
        torch.cuda.set_per_process_memory_fraction,
        torch.cuda.get_device_properties(device).total_memory,
    )
    allow(min(1.0, limit_bytes / total), device)
    return Limit(
        "memory of PyTorch's caching allocator on the card",
        lambda: torch.cuda.max_memory_reserved(device),  # what the limit is on
        lambda: allow(1.0, device),
    )


def _in_the_kernel(limit_bytes: int) -> Limit:
    """Linux: private writable memory (RLIMIT_DATA) beyond what the process has now."""
    import resource

    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts over
    resident, old = _status_bytes("VmRSS"), resource.getrlimit(resource.RLIMIT_DATA)
    wanted, hard = _status_bytes("VmData") + limit_bytes, old[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return Limit(
        "private memory of the training process beyond PyTorch's own (RLIMIT_DATA)",
        lambda: max(0, _status_bytes("VmHWM") - resident),
        lambda: resource.setrlimit(resource.RLIMIT_DATA, old),
    )


def default_limit_bytes(device: torch.device) -> int:
    """What is free on the card; on a CPU a stated 0.5 GiB, since filling its RAM harms others."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**29


def _warm_up() -> None:
    """Start the threads and pools that PyTorch makes on first use, so the baseline has them."""
    torch.randn(1 << 20).exp_()
    conv, head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(72, 4)
    model = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(8), torch.nn.Flatten(), head)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 3, 5, 5)).sum().backward()
    optimizer.step()


def _status_bytes(name: str) -> int:
    """Read a line of /proc/self/status, bytes."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
