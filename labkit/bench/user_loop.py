"""Observe somebody else's loop: its loader's settings, its samples, what grows, its GPU's work.

Nothing here imports torch, runs their code, or waits for a device. An event is recorded when a
batch is handed over, and another when the next one is requested: the pair spans the body's work.
"""

from __future__ import annotations

import linecache
import os
import platform
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from labkit import quotas
from labkit.bench import stack
from labkit.process.events import now_ns

READ = ("num_workers", "batch_size", "pin_memory", "prefetch_factor", "persistent_workers")
DRIFT = 2e-5  # the most that two quartz clocks part: 20 µs in a second
LEAST_TOKENS = 8  # in a row of text
PATIENCE_S = 1.0  # for the last steps, when the loop is over
SIZED = (list, dict, set, deque)
LEAST = 32  # entries, or additions in a graph: what is smaller is no growth
DEEP = 64  # additions behind a tensor that are followed
RISES = 3  # looks in a row at which it was larger: what is emptied now and then is no growth


def knobs_of(loader: Any) -> dict[str, int | bool]:
    """Return the settings of a torch DataLoader under their own names; {} of anything else."""
    data = sys.modules.get("torch.utils.data")
    loader = getattr(loader, "fake_l", loader)  # a fastai DataLoader's, for torch's iterators
    if data is None or not isinstance(loader, data.DataLoader):
        return {}
    knobs = {name: getattr(loader, name, None) for name in READ}
    if knobs["batch_size"] is None:  # where a batch sampler was given
        knobs["batch_size"] = getattr(loader.batch_sampler, "batch_size", None)
    return {name: value for name, value in knobs.items() if isinstance(value, (bool, int))}


def counter_for(batch: Any, batch_size: int | None) -> Callable[[Any], int] | None:
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


def padding_of(batch: Any) -> float | None:
    """Return the share (0 to 1) of a batch's tokens that only pad it; None where it has none.

    By its attention mask; else by what the first 64 rows of its first whole-number matrix (B, T)
    on the CPU end in, where that is hardly ever met before their end.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    if isinstance(batch, Mapping):
        parts = [batch[name] for name in ("attention_mask", "input_ids") if name in batch]
    matrices = (
        part for part in parts if torch.is_tensor(part) and part.dim() == 2 and part.numel()
        and not part.is_floating_point() and part.is_cpu
    )  # fmt: skip
    tokens = next(matrices, None)
    if tokens is None or tokens.shape[1] < LEAST_TOKENS:
        return None
    if isinstance(batch, Mapping) and tokens is batch.get("attention_mask"):
        padding, within = float((tokens == 0).mean(dtype=torch.float32)), 0
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
        self.steps = self.samples = self.wall = self.busy = self.wait = 0

    def add(self, t: tuple, samples: int, busy: tuple[int, int]) -> None:
        """Add a step: its stamps, and when the device was busy."""
        begin = t[0] if self.end is None else self.end
        start = max(busy[0], begin)
        end = max(busy[1], start)
        self.busy += end - start
        self.wait += min(t[1] - t[0], start - begin)
        self.wall += end - begin
        self.steps, self.samples, self.end = self.steps + 1, self.samples + samples, end


Mark = tuple[Any, int]  # an event, and the host's time before it was recorded, ns
InFlight = tuple[int, tuple[int, ...], int, Mark, Mark]  # number, stamps, samples, start and end


class DeviceClock:
    """Turns pairs of events into busy intervals on the host's clock, once the device is through.

    The two clocks are tied without a synchronisation: an event cannot have passed before it was
    recorded, nor after it was first seen to have passed. The first bound is tight whenever the
    device was idle, the second whenever the host looked just then.
    """

    def __init__(self, events: Any, write: Callable[..., None]):
        """`events` is an EventPool; `write(i, t, n, interval)` takes finished steps."""
        self.events = events
        self.write = write
        self.in_flight: deque[InFlight] = deque()
        self.last: Any = None  # the event at `place_ns` on the device's clock
        self.place_ns = 0.0
        self.zero_ns = 0.0  # the host's time at place 0

    def mark(self) -> tuple[Any, int]:
        """Record an event on the current stream: (event, the host's time before it)."""
        before = now_ns()
        return self.events.record(), before

    def add(
        self, i: int, t: tuple[int, ...], samples: int, start: tuple[Any, int], end: tuple[Any, int]
    ) -> None:
        """Keep step `i`, whose body has been issued, until the device is through with it."""
        self.in_flight.append((i, t, samples, start, end))

    def collect(self) -> None:
        """Write the steps that the device has finished."""
        while self.in_flight and self.in_flight[0][-1][0].query():
            seen = now_ns()
            i, t, samples, start, end = self.in_flight.popleft()
            places = [self._place(event, before, seen) for event, before in (start, end)]
            self.write(i, t, samples, tuple(int(self.zero_ns + place) for place in places))

    def _place(self, event: Any, issued_ns: int, seen_ns: int) -> float:
        moved = 0.0
        if self.last is None:
            self.zero_ns = issued_ns
        else:  # from the event before: over an hour the 32 bits of an elapsed time lose 0.25 ms
            moved = self.last.elapsed_time(event) * 1e6
            self.events.idle.append(self.last)
        self.last, self.place_ns = event, self.place_ns + moved
        self.zero_ns -= DRIFT * moved
        self.zero_ns = min(max(self.zero_ns, issued_ns - self.place_ns), seen_ns - self.place_ns)
        return self.place_ns

    def finish(self) -> None:
        """Give the device a moment for what is still in flight."""
        deadline = time.monotonic() + PATIENCE_S
        self.collect()
        while self.in_flight and time.monotonic() < deadline:
            time.sleep(0.005)  # asked now and then, not synchronised
            self.collect()


def machine_and_clock(
    write: Callable[..., None], device: Any = None
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
            from labkit.bench.timeline import EventPool

            clock = DeviceClock(EventPool(device), write)
        return machine.describe(device), clock
    name = platform.processor() or platform.machine()
    cores = quotas.cpu_cores()
    return {
        "device": "cpu", "kind": "cpu", "name": name, "cpu_name": name,
        "cpu_cores": cores.count, "host_cores": cores.of, "cores_limit": cores.limit,
        "os": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version()},
    }, None  # fmt: skip


def telemetry_beside(folder: Path) -> subprocess.Popen | None:
    """Sample the instruments beside this process, in one that dies with it; None where it fails."""
    if sys.platform == "linux":  # elsewhere it could outlive us
        root, none = str(Path(__file__).parents[2]), subprocess.DEVNULL
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
        with suppress(OSError):  # numbers without telemetry are still numbers
            return subprocess.Popen(
                [sys.executable, "-m", "labkit.bench.telemetry", str(os.getpid())],
                stdin=none, stdout=none, stderr=none, cwd=folder,
                env={**os.environ, "PYTHONPATH": path}, start_new_session=True,  # no Ctrl-C
            )  # fmt: skip
    return None


def device_of(trained: Iterable[Any]) -> Any:
    """Return the device of the first of some weights; None where they do not tell.

    Weights on the CPU tell only where they are plain parameters: shards, and copies that an
    optimizer has offloaded, rest there while the model computes on a card.
    """
    torch = sys.modules["torch"]
    for weights in trained:
        kind = weights.device.type
        is_plain = type(weights) is torch.nn.Parameter and kind != "meta"
        return weights.device if is_plain or kind not in ("cpu", "meta") else None
    return None


def find_device(torch: Any) -> Any:
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


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.seen: dict[str, tuple[int, int, int]] = {}  # {name: (first size, last, rises)}
        self.found: dict[str, dict[str, Any]] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        if frame is None or loop is None:
            return
        names = dict(stack.locals_of(frame))
        if hasattr(owner := names.get("self"), "__dict__"):
            names |= {f"self.{name}": value for name, value in vars(owner).items()}
        for name, value in names.items():
            kind, size = _size(value)
            if not size or name.startswith("_"):
                continue
            first, last, rises = self.seen.get(name, (size, size, 0))
            if size < last:
                first, rises = size, 0
            elif size > last or size == DEEP:
                rises += 1
            self.seen[name] = first, size, rises
            if rises >= RISES and size >= max(LEAST, 2 * first):
                self.found[name] = {
                    "name": name,
                    "graph": kind == "graph",
                    "before": first,
                    "after": size,
                    "bytes": _bytes_of(value),
                    "file": loop.co_filename,
                    "function": loop.co_name,
                    "line": _line_of(name, loop),
                }


def _size(value: Any) -> tuple[str, int]:
    """Return ("graph" or "list", size): entries of a container, additions behind a tensor."""
    if type(value) in SIZED:
        last = value[-1] if type(value) in (list, deque) and value else None
        return "list" if _graph_of(last) is None else "graph", len(value)
    node = _graph_of(value)
    depth = 0
    while node is not None and type(node).__name__.startswith("AddBackward") and depth < DEEP:
        depth += 1
        before = [each for each, _ in node.next_functions]
        node = next((n for n in before if type(n).__name__.startswith("AddBackward")), None)
    return "graph", depth


def _bytes_of(value: Any) -> int | None:
    """Return about how many bytes a container's entries hold, by its last one; None if unknown."""
    if type(value) not in SIZED or type(value) is set or not value:
        return None
    last = next(reversed(value.values())) if type(value) is dict else value[-1]
    parts = last if type(last) in (list, tuple) else [last]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    known = tuple(filter(None, (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))))
    return len(value) * sum(
        int(part.nbytes) if isinstance(part, known) else sys.getsizeof(part) for part in parts
    )


def _graph_of(value: Any) -> Any:
    """Return a tensor's `grad_fn`; None of everything else, whose attributes may be code."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return value.grad_fn if tensor is not None and issubclass(type(value), tensor) else None


def _line_of(name: str, code: CodeType) -> int:
    """Return the line of the loop's function that makes `name` larger, as far as its text tells."""
    grows = re.compile(
        rf"(?<![\w.]){re.escape(name)}(?:\[[^\]]*\])?(?:\.(?:append|extend|add|update|insert)\(|\s*\+?=)"
    )
    lines = linecache.getlines(code.co_filename)
    last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
    found = [n for n in range(code.co_firstlineno, last + 1)
             if n <= len(lines) and grows.search(lines[n - 1])]  # fmt: skip
    return found[-1] if found else code.co_firstlineno
