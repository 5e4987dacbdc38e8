"""A stand-in GPU, for tests only: CUDA's semantics on a CPU, on queues of a stated speed.

Tensors say that they are on "cuda:0" and hold no numbers: they lie on the meta device, so that a
model of any size runs in milliseconds. Every operator on them is a kernel: it costs the
host a launch, goes into the queue of the current stream, and takes there what the card's data sheet
allows for its FLOPs and bytes. The host runs ahead; what has to wait (`.item()`, a pageable copy,
synchronize) waits. `torch.Event`, `torch.Stream`, `torch.accelerator` and autograd are PyTorch's
own, through CUDA's device guard (standin_gpu.cpp, compiled here), and `torch.cuda` is patched where
a build without CUDA has nothing. What the queue did is in `kernels`: the truth that labkit's
numbers are held against. The clock is virtual: nothing takes time but what is stated.

    with standin_gpu.installed(H200) as gpu:  # once in a process, which then has this card
        train(Trainer(job, torch.device("cuda", 0)), gpu.loader(5, batch), timeline, job)
        gpu.busy_ns(start_ns, end_ns)
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from labkit.diagnosis import datasheets

SOURCE = Path(__file__).with_suffix(".cpp")
LAUNCH_US = 6.0  # host time of one operator's launch from eager PyTorch
VIEW_US = 1.0  # host time of an operator that launches nothing
EVENT_US = 1.5  # host time of recording an event
SHORTEST_KERNEL_US = 2.0
REACHED = 0.7
BANDWIDTH_REACHED = 0.85  # of the data sheet's peaks, by a good kernel
PAGEABLE = 0.4  # of the bus's rate reaches a copy that is staged through pinned memory
MOST_CARDS = 4
QUEUE = 1024  # launches in flight until the host has to wait
BLOCKING_COPY = 64 * 2**10  # bytes: a smaller copy from pageable memory is staged and returns


class Card(NamedTuple):
    """What the data sheet says of a card, and what CUDA says of it; its bus in 10^9 byte/s."""

    sheet: datasheets.Card
    name: str
    memory_gib: float
    sms: int
    capability: tuple[int, int]
    l2_mib: float
    bus_gb_per_s: float = 25.0


def card(name, *more):
    sheet = datasheets.card(name)
    assert sheet is not None
    return Card(sheet, name, *more)


CARDS = {
    "T4": card("Tesla T4", 14.6, 40, (7, 5), 4, 12.0),
    "A100": card("NVIDIA A100-SXM4-40GB", 39.4, 108, (8, 0), 40),
    "H200": card("NVIDIA H200", 139.8, 132, (9, 0), 60, 50.0),
}
WHOLE = CARDS["A100"].sheet
CARDS["A100 1g"] = CARDS["A100"]._replace(  # a MIG instance
    sheet=replace(
        WHOLE,
        tflop_per_s={name: peak * 14 / 108 for name, peak in WHOLE.tflop_per_s.items()},
        gb_per_s=WHOLE.gb_per_s / 8,
    ),
    name="NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    memory_gib=4.75,
    sms=14,
)


class Kernel(NamedTuple):
    """One piece of work in a card's queue; times in ns on the host's clock."""

    name: str
    card: int
    start: int
    end: int
    flops: float

    @property
    def is_copy(self):
        return self.name.startswith("memcpy")


class VirtualClock:
    """The host's time, which passes only where something is stated to take some."""

    ns = 1_000_000_000

    def now(self):
        return self.ns

    def spend(self, us):
        self.ns += round(us * 1e3)

    def wait_until(self, ns):
        self.ns = max(self.ns, ns)


class OnCard(torch.Tensor):
    """A tensor on the stand-in: it has a card's device, and its shape in `inner`."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner, device):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        made.inner = inner
        GPU.made[device.index] += 1
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return GPU.run(func, args, kwargs or {})


class ToCard(TorchDispatchMode):
    """Sees what makes a tensor on the card where there was none: `torch.rand(3, device="cuda")`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            return GPU.run(func, args, kwargs)
        return func(*args, **kwargs)


class StandIn:
    """The cards, their queues, and the host's clock."""

    def __init__(self, cards):
        self.cards = cards
        self.clock = VirtualClock()
        self.kernels: list[Kernel] = []
        self.syncs = 0  # times the host waited for a card
        self.fast = 0.0  # what the cards' clocks gain on the host's, as a share
        self.free: dict[tuple[int, int], int] = {}  # when each card's stream will be through, ns
        self.queued: deque = deque()  # ends of the kernels in flight
        self.events: dict[int, int] = {}  # when each event passes, ns
        self.arriving: deque = deque()  # (when, do it): copies to the host under way
        self.shapes: dict[tuple, Any] = {}  # of what an operator makes, once it is known
        self.made = [0] * len(cards)  # tensors

    def enqueue(self, name, card, us, flops=0.0):
        # Caught: an optimizer that updated one tensor after the other
        self.clock.spend(LAUNCH_US)
        while self.queued and self.queued[0] <= self.clock.now():
            self.queued.popleft()
        if len(self.queued) >= QUEUE:
            self.clock.wait_until(self.queued.popleft())
        stream = LIBRARY.standin_stream(card)
        start = max(self.clock.now(), self.free.get((card, stream), 0))
        end = start + round(us * 1e3)
        self.free[card, stream] = end
        self.queued.append(end)
        self.kernels.append(Kernel(name, card, start, end, flops))
        return end

    def record(self, event, card, stream):
        # Caught: a headroom that took what the host had issued for what the card had done
        self.clock.spend(EVENT_US)
        self.events[event] = max(self.free.get((card, stream), 0), self.clock.now())

    def forget(self, event):
        self.events.pop(event, None)

    def passed(self, event):
        self.arrive()
        return self.events.get(event, 0) <= self.clock.now()

    def elapsed_ms(self, start, end):
        """Return the time between two events as CUDA does, in a float of 32 bits; NaN too early."""
        # Caught: minutes into a run, the two clocks part, and 32 bits are too few to time a step by
        if not (self.passed(start) and self.passed(end)):
            return float("nan")
        ms = (self.events[end] - self.events[start]) * (1 + self.fast) / 1e6
        return ctypes.c_float(ms).value

    def stream_waits(self, event, card, stream):
        # Caught nothing so far
        self.free[card, stream] = max(self.free.get((card, stream), 0), self.events.get(event, 0))

    def host_waits(self, card, stream, event):
        """Hold the host until an event, a stream or a card (-1: not asked) is through."""
        self.syncs += 1
        until = (
            [self.events.get(event, 0)]
            if event >= 0
            else [
                end
                for (c, s), end in self.free.items()
                if c == card and (stream < 0 or s == stream)
            ]
        )
        self.clock.wait_until(max(until, default=0))
        self.arrive()

    def arrive(self):
        while self.arriving and self.arriving[0][0] <= self.clock.now():
            self.arriving.popleft()[1]()

    def run(self, func, args, kwargs):
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            return self.copy(func, args, kwargs)
        if name == "_local_scalar_dense":  # `.item()`: the host waits for everything before it
            return self.to_host(args[0], None, args[0].element_size(), True, {}).item()
        on_card = [x for x in tensors_of((*args, *kwargs.values())) if isinstance(x, OnCard)]
        device = on_card[0].device if on_card else on_a_card(torch.device(kwargs["device"]))
        out = self.compute(func, args, kwargs)
        if does_work(func):
            self.launch(func, name, device.index, args, kwargs, out)
        else:
            self.clock.spend(VIEW_US)
        if changes_an_argument(func):
            return kwargs.get("out", args[0]) if func._schema.returns else None
        if isinstance(out, (list, tuple)):
            return type(out)(self.outside(x, device) for x in out)
        return self.outside(out, device)

    def compute(self, func, args, kwargs):
        if changes_an_argument(func) and "out" not in kwargs:
            return None
        inner = {k: self.inside(v) for k, v in kwargs.items() if k != "pin_memory"}
        if inner.get("device") is not None:
            inner["device"] = torch.device("meta")
        if not does_work(func):  # a view shares its storage
            return func(*map(self.inside, args), **inner)
        asked = (func, *map(described, args), *map(described, kwargs.items()))
        if asked not in self.shapes:
            out = func(*map(self.inside, args), **inner)
            self.shapes[asked] = described(out)
            return out
        return blank(self.shapes[asked])

    def launch(self, func, name, card, args, kwargs, out):
        made = out if isinstance(out, (list, tuple)) else (out,)
        given = [value for key, value in kwargs.items() if key != "out"]  # which is made, not read
        tensors = tensors_of((*args, *given, *made))
        bytes_ = sum(x.numel() * x.element_size() for x in tensors)
        flops = 0.0
        if func._overloadpacket in flop_registry:
            flops = float(flop_registry[func._overloadpacket](*args, **kwargs, out_val=out))
        self.enqueue(name, card, self.kernel_us(self.cards[card], flops, bytes_), flops)

    @staticmethod
    def kernel_us(card, flops, bytes_):
        """Return what a good kernel takes on the card, µs: the slower of its FLOPs and bytes."""
        # Caught: models sized by the number of SMs, whose steps were launches on a fast card
        rate = card.sheet.tflop_per_s["fp32"] * 1e6 * REACHED
        moved = card.sheet.gb_per_s * 1e3 * BANDWIDTH_REACHED
        return max(SHORTEST_KERNEL_US, flops / rate, bytes_ / moved)

    def inside(self, x):
        if isinstance(x, OnCard):
            return x.inner
        if isinstance(x, (list, tuple)):
            return [self.inside(each) for each in x]
        if isinstance(x, torch.Tensor) and x.device.type == "cpu":
            return x.to("meta") if x.dim() else x
        return x

    def outside(self, x, device):
        plain = isinstance(x, torch.Tensor) and not isinstance(x, OnCard)
        return OnCard(x, device) if plain else x

    def copy(self, func, args, kwargs):
        # Caught nothing so far. Holds: a run from pinned memory is never synchronised
        in_place = func.overloadpacket.__name__ == "copy_"
        source = args[1] if in_place else args[0]
        target = args[0].device if in_place else kwargs.get("device") or source.device
        target = on_a_card(torch.device(target))
        waits = not (args[2] if in_place and len(args) > 2 else kwargs.get("non_blocking", False))
        size = source.numel() * source.element_size()
        if target.type == "cpu":
            return self.to_host(source, args[0] if in_place else None, size, waits, kwargs)
        inner = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        if not in_place:
            inner["device"] = torch.device("meta")
        out = func(*map(self.inside, args), **inner)
        if source.device == target:
            self.launch(func, "copy_", target.index, args, {}, out)
        else:
            pinned = source.device.type == "cpu" and source.is_pinned()
            crossing = size if pinned else size / PAGEABLE
            end = self.over_the_bus("memcpyHtoD", target.index, crossing)
            if waits or (not pinned and size > BLOCKING_COPY):
                self.syncs += 1
                self.clock.wait_until(end)
        return args[0] if in_place else self.outside(out, target)

    def over_the_bus(self, name, card, size):
        us = SHORTEST_KERNEL_US + size / (self.cards[card].bus_gb_per_s * 1e3)
        return self.enqueue(name, card, us)

    def to_host(self, source, target, size, waits, kwargs):
        """Copy to the host: its numbers are there when the queue has done it, NaN before."""
        # Caught nothing so far. Holds: a loss is read when it has arrived
        if target is None:
            target = torch.empty(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        end = self.over_the_bus("memcpyDtoH", source.device.index, size)
        self.arriving.append((end, target.zero_))
        if waits or not target.is_pinned():
            self.syncs += 1
            self.clock.wait_until(end)
            self.arrive()
        elif target.is_floating_point():
            target.fill_(float("nan"))
        return target

    def busy_ns(self, start, end):
        """Return the ns between two moments in which a kernel was running."""
        # Caught nothing so far. Holds: the busy share of a run
        total = 0
        reached = start
        for kernel in sorted(self.kernels, key=lambda k: k.start):
            if not kernel.is_copy:
                total += max(0, min(kernel.end, end) - max(kernel.start, reached))
                reached = max(reached, kernel.end)
        return total

    def loader(self, prep_ms, batch, workers=0, prefetch=2):
        """Yield `batch` as a DataLoader would: each takes `prep_ms` on the host or in a worker."""
        # Caught: a queue of one batch a worker, which keeps the workers waiting
        prep = round(prep_ms * 1e6)
        asked = []
        free = [self.clock.now()] * workers
        for number in itertools.count():
            asked.append(self.clock.now())
            if workers:
                since = asked[max(0, number - workers * prefetch)]
                free[number % workers] = max(free[number % workers], since) + prep
                self.clock.wait_until(free[number % workers])
            else:
                self.clock.wait_until(asked[-1] + prep)
            yield batch


def on_a_card(device):
    """Return the current card where a device is only called "cuda"."""
    # Caught: streams and events of a run on the second card that were the first card's
    nameless = device.type == "cuda" and device.index is None
    return torch.device("cuda", LIBRARY.standin_device()) if nameless else device


class Shape(NamedTuple):
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def described(x):
    """Return an argument as something that can be looked up: tensors by their shape."""
    if isinstance(x, torch.Tensor):
        return Shape(tuple(x.shape), x.stride(), x.dtype)
    if isinstance(x, (list, tuple)):
        return tuple(map(described, x))
    return x


def blank(x):
    """Return tensors without numbers in the place of those that were described."""
    if isinstance(x, Shape):
        return torch.empty_strided(x.size, x.stride, dtype=x.dtype, device="meta")
    return tuple(map(blank, x)) if isinstance(x, tuple) else x


def tensors_of(values):
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
    return [each for value in lists for each in value if isinstance(each, torch.Tensor)]


@functools.cache
def does_work(func):
    """Whether an operator does anything on the card: not a view, nor an allocation."""
    name = func.overloadpacket.__name__
    if name.startswith(("empty", "new_empty", "detach", "_unsafe_view", "lift")):
        return False
    schema = func._schema
    view = any(arg.alias_info and not arg.alias_info.is_write for arg in schema.arguments)
    return not view or schema.is_mutable


@functools.cache
def changes_an_argument(func):
    """Whether an operator returns nothing but an argument that it has changed: `add_`."""
    schema = func._schema
    return schema.is_mutable and all(made.alias_info is not None for made in schema.returns)


GPU: Any = None  # the one of this process
LIBRARY: Any = None


class Answers(ctypes.Structure):
    """The callbacks of standin_gpu.cpp, in its order."""

    _i = ctypes.c_int64
    _n = ctypes.c_int
    _fields_ = [
        ("record", ctypes.CFUNCTYPE(None, _i, _n, _i)),
        ("forget", ctypes.CFUNCTYPE(None, _i)),
        ("passed", ctypes.CFUNCTYPE(_n, _i)),
        ("elapsed_ms", ctypes.CFUNCTYPE(ctypes.c_double, _i, _i)),
        ("stream_waits", ctypes.CFUNCTYPE(None, _i, _n, _i)),
        ("host_waits", ctypes.CFUNCTYPE(None, _n, _i, _i)),
    ]


def compiled():
    """Compile standin_gpu.cpp against this PyTorch (3 s, once a machine); return the library."""
    root = Path(torch.__file__).parent
    mark = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    made = Path(tempfile.gettempdir()) / f"standin_gpu-{mark}-{os.getuid()}.so"
    if not made.exists():
        part = made.with_suffix(f".{os.getpid()}")
        command = [
            "g++",
            "-std=c++20",
            "-O1",
            "-shared",
            "-fPIC",
            f"-I{root / 'include'}",
            SOURCE,
            "-o",
            part,
            f"-L{root / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
        ]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        part.rename(made)
    return made


def install(*cards):
    """Give this process these cards, for good: call it before anything asks for a device."""
    global GPU, LIBRARY, _answers
    first = LIBRARY is None
    if first:
        LIBRARY = ctypes.CDLL(str(compiled()))
        LIBRARY.standin_stream.restype = ctypes.c_int64
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        import torch.optim.optimizer as optimizer

        optimizer._foreach_supported_types.append(OnCard)
        ToCard().__enter__()
        patch_cuda()
        fill_in_kernels()
    GPU = StandIn(cards)
    _answers = Answers(**{name: kind(getattr(GPU, name)) for name, kind in Answers._fields_})
    if first:  # autograd starts a thread for each device that it finds in its first backward pass
        LIBRARY.standin_install(MOST_CARDS, _answers)
        torch.ones(1, requires_grad=True).sum().backward()
    if LIBRARY.standin_install(len(cards), _answers):
        raise RuntimeError("this system does not let PyTorch be given another accelerator")
    LIBRARY.standin_use(0)
    return GPU


@contextlib.contextmanager
def installed(*cards):
    """Install the cards on the virtual clock; let labkit and the time module tell its time."""
    gpu = install(*cards)
    now = gpu.clock.now
    spend = gpu.clock.spend
    with contextlib.ExitStack() as undo:
        ns = dict.fromkeys(("perf_counter_ns", "thread_time_ns"), lambda: now())
        s = {}
        for name in ("perf_counter", "monotonic", "thread_time", "process_time"):
            s[name] = lambda: now() / 1e9
        sleep = {"sleep": lambda seconds: spend(seconds * 1e6)}
        undo.enter_context(mock.patch.multiple(time, **ns, **s, **sleep))
        for name, module in list(sys.modules.items()):
            if name.startswith("labkit.") and hasattr(module, "now_ns"):
                undo.enter_context(mock.patch.object(module, "now_ns", lambda: now()))
        yield gpu


def fill_in_kernels():
    """Give CUDA the two kernels that `torch.tensor(..., device="cuda")` asks for itself."""
    global _kernels
    _kernels = torch.library.Library("aten", "IMPL")

    def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        card = LIBRARY.standin_device() if device.index is None else device.index
        empty = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return OnCard(empty, torch.device("cuda", card))

    def copy_(target, source, non_blocking=False):
        return GPU.copy(torch.ops.aten.copy_.default, (target, source, non_blocking), {})

    _kernels.impl("empty_strided", empty_strided, "CUDA")
    _kernels.impl("copy_", copy_, "CUDA")


def patch_cuda():
    """Answer what torch.cuda asks of a driver from the stand-in."""

    def index(device=None):
        if isinstance(device, int):
            return device
        found = torch.device(device).index if device is not None else None
        return LIBRARY.standin_device() if found is None else found

    def properties(device=None):
        card = GPU.cards[index(device)]
        i = index(device)
        return SimpleNamespace(
            name=card.name,
            total_memory=int(card.memory_gib * 2**30),
            major=card.capability[0],
            minor=card.capability[1],
            multi_processor_count=card.sms,
            L2_cache_size=int(card.l2_mib * 2**20),
            uuid=f"00000000-0000-0000-0000-00000000000{i}",
        )

    answers = {
        "device_count": lambda: len(GPU.cards),
        "is_initialized": lambda: bool(GPU.cards),
        "current_device": index,
        "set_device": lambda d: LIBRARY.standin_use(index(d)),
        "get_device_properties": properties,
        "memory_allocated": lambda d=None: GPU.made[index(d)],
        "reset_peak_memory_stats": lambda d=None: None,
        "Event": torch.Event,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, value)
