"""Observe somebody else's loop: its loader's settings, its samples and padding, its device.

Nothing here imports torch, runs their code, or waits for a device.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import labkit
from labkit.bench.host import plain_machine
from labkit.process.events import VERSION, EventLog

if TYPE_CHECKING:
    import torch

    from labkit.bench.device_clock import DeviceClock, Write

READ = ("num_workers", "batch_size", "pin_memory", "prefetch_factor", "persistent_workers")
LEAST_TOKENS = 8  # in a row of text

Keys = tuple[object, ...]
"""What leads to a part of a batch: indices of lists and tuples, keys of mappings."""


def knobs_of(loader: object) -> dict[str, int | bool]:
    """Return the settings of a torch DataLoader under their own names; {} of anything else."""
    data = sys.modules.get("torch.utils.data")
    loader = getattr(loader, "fake_l", loader)  # a fastai DataLoader's, for torch's iterators
    if data is None or not isinstance(loader, data.DataLoader):
        return {}
    knobs = {name: getattr(loader, name, None) for name in READ}
    if knobs["batch_size"] is None:  # where a batch sampler was given
        knobs["batch_size"] = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return {name: value for name, value in knobs.items() if isinstance(value, (bool, int))}


def in_flight(knobs: Mapping[str, int]) -> int:
    """Return how many batches a loader's workers prepare ahead; 0 where that is not known."""
    return knobs.get("num_workers", 0) * knobs.get("prefetch_factor", 0)


def leaves(batch: object) -> Iterator[object]:
    """Yield what is in a batch, however deep in lists, tuples and mappings."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from leaves(part)
    else:
        yield batch


def counter_for(batch: object, batch_size: int | None) -> Callable[[Any], int] | None:
    """Return what counts the samples of batches like this: its first array's or list's length."""
    if (shape := getattr(batch, "shape", None)) is not None:
        return (lambda batch: batch.shape[0]) if len(shape) else None
    if not isinstance(batch, (list, tuple, Mapping)):
        return None
    if len(batch) == batch_size and not isinstance(batch, Mapping):
        return len
    parts = list(batch.items() if isinstance(batch, Mapping) else enumerate(batch))
    for place, part in parts:
        if inner := counter_for(part, batch_size):
            return lambda batch: inner(batch[place])
    return len if parts and isinstance(batch, list) else None


def bytes_along(keys: Keys) -> Callable[[Any], int]:
    """Return what gives the bytes of the array that some keys lead to; 0 of a batch without one."""

    def measure(batch: Any) -> int:
        try:
            for key in keys:
                batch = batch[key]
            return int(batch.nbytes)
        except Exception:  # a batch of another kind is no reason to stop recording
            return 0

    return measure


def largest_array(batch: object) -> tuple[Any, Keys]:
    """Return the largest array in a batch, and the keys that lead to it; ValueError without one."""
    return max(_arrays(batch, ()), key=lambda found: found[0].nbytes)


def _arrays(batch: object, keys: Keys) -> Iterator[tuple[Any, Keys]]:
    """Yield every array in a batch, and the keys that lead to it."""
    if hasattr(batch, "shape") and hasattr(batch, "nbytes"):
        yield batch, keys
    elif isinstance(batch, (list, tuple, Mapping)):
        parts = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        for key, part in parts:
            yield from _arrays(part, (*keys, key))


def dtype_of_most(arrays: Iterable[Any]) -> str | None:
    """Return the number format of most of the numbers in some arrays, as "float32"."""
    numbers: Counter[str] = Counter()
    for array in arrays:
        numbers[str(array.dtype).removeprefix("torch.")] += array.nbytes // array.itemsize
    return max(numbers, key=numbers.__getitem__, default=None)


def padding_of(batch: object) -> float | None:
    """Return the share (0 to 1) of a batch's tokens that only pad it; None where it has none.

    By its attention mask; else by what the first 64 rows of its first whole-number matrix (B, T)
    on the CPU end in, where that is hardly ever met before their end.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    parts: Sequence[Any] = batch if isinstance(batch, (list, tuple)) else [batch]
    mask = None
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        parts = [mask, batch.get("input_ids")]
    matrices = (part for part in parts if torch.is_tensor(part) and part.dim() == 2 and part.is_cpu)
    tokens = next((each for each in matrices if not each.is_floating_point()), None)
    if tokens is None or not len(tokens) or tokens.shape[1] < LEAST_TOKENS:
        return None
    within = 0
    if tokens is mask:
        padding = float((tokens == 0).mean(dtype=torch.float32))
    else:
        tokens = tokens[:64]
        real = tokens != tokens[:, -1].mode()[0]
        length = int((real * torch.arange(1, tokens.shape[1] + 1)).amax(1).sum())  # of all rows
        padding = 1 - length / tokens.numel()
        within = length - int(real.sum())  # the same number, before a row's end
    return padding if 0 < padding < 1 and within <= 0.02 * tokens.numel() else None


class Tally:
    """Sums over the steps so far, in ns and of bounded size: what the live line is made from."""

    def __init__(self, end: int | None = None):
        self.end = end  # of the step before, on the device
        self.steps = 0
        self.samples = 0
        self.wall = 0
        self.busy = 0
        self.wait = 0

    def add(self, t: tuple[int, ...], samples: int, busy: tuple[int, int]) -> None:
        """Add a step: its stamps, and when the device was busy."""
        begin = t[0] if self.end is None else self.end
        start = max(busy[0], begin)
        end = max(busy[1], start)
        self.busy += end - start
        self.wait += min(t[1] - t[0], start - begin)
        self.wall += end - begin
        self.steps += 1
        self.samples += samples
        self.end = end


def machine_and_clock(
    write: Write, device: torch.device | None = None
) -> tuple[dict[str, Any], DeviceClock | None]:
    """Describe the machine, without torch as far as Python knows it, and return a GPU's clock.

    `device` is the one that is trained on, where that is known.
    """
    if torch := sys.modules.get("torch"):
        from labkit.bench import machine

        clock = None
        if device is None:
            device = find_device(torch)
        if device.type == "cuda":
            from labkit.bench.device_clock import DeviceClock
            from labkit.bench.timeline import EventPool

            clock = DeviceClock(EventPool(device), write)
        return machine.describe(device), clock
    return plain_machine(platform.processor() or platform.machine()), None


def write_spec(log: EventLog, run: str, pipeline: Mapping[str, Any], **more: object) -> None:
    """Write what the record of this process begins with; `pipeline` is what was asked for."""
    log.write(
        "spec",
        version=VERSION,
        run=run,
        labkit=labkit.__version__,
        utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        pipeline=pipeline,
        **more,
    )
    log.write("hello", pid=os.getpid())


def telemetry_beside(folder: Path) -> subprocess.Popen[bytes] | None:
    """Sample the instruments beside this process, in one that dies with it; None where it fails."""
    if sys.platform != "linux":  # it could outlive us
        return None
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
    with suppress(OSError):  # numbers without telemetry are still numbers
        return subprocess.Popen(
            [sys.executable, "-m", "labkit.bench.telemetry", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # no Ctrl-C
        )
    return None


def device_of(trained: Iterable[torch.Tensor]) -> torch.device | None:
    """Return the device of the first of some weights; None where they do not tell.

    Weights on the CPU tell only where they are plain parameters: shards, and copies that an
    optimizer has offloaded, rest there while the model computes on a card.
    """
    parameter = sys.modules["torch"].nn.Parameter
    for weights in trained:
        kind = weights.device.type
        is_plain = type(weights) is parameter and kind != "meta"
        return weights.device if is_plain or kind not in ("cpu", "meta") else None
    return None


def find_device(torch: ModuleType) -> torch.device:
    """Return the device this process holds tensors on; starts no CUDA of its own."""
    if torch.cuda.is_initialized():
        held = [torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())]
        if any(held):
            current = torch.cuda.current_device()
            return torch.device("cuda", current if held[current] else held.index(max(held)))
    other = torch.accelerator.current_accelerator()
    if other is None or other.type == "cuda":
        return torch.device("cpu")
    module = torch.get_device_module(other)
    held_bytes = module.current_allocated_memory if other.type == "mps" else module.memory_allocated
    return other if module.is_available() and held_bytes() else torch.device("cpu")
