"""A stand-in GPU, for tests only: CUDA's semantics on a CPU, on queues of a stated speed.

Tensors say that they are on "cuda:0" and hold no numbers: they lie on the meta device, so that a
model of any size runs in milliseconds. Every operator on them is a kernel: it costs the
host a launch, goes into the card's one queue, and takes there what the card's data sheet allows for
its FLOPs and bytes. The host runs ahead; what has to wait (`.item()`, a pageable copy, synchronize)
waits. `torch.Event`, `torch.accelerator` and autograd are PyTorch's own, through CUDA's device
guard (standin_gpu.cpp, compiled here), and `torch.cuda` is patched where a build without CUDA has
nothing. What the queue did is in `kernels`: the truth that labkit's numbers are held against. The
clock is virtual: nothing takes time but what is stated.

Each part says what it has caught, or which promise it holds; without the others nothing runs.

    with standin_gpu.installed(H200) as gpu:  # once in a process, which then has this card
        train(Trainer(job, torch.device("cuda", 0)), gpu.loader(5, batch), timeline, job)
        gpu.kernels
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from labkit.results import device_peaks

SOURCE = Path(__file__).with_suffix(".cpp")
LAUNCH_US = 6.0  # host time of one operator's launch from eager PyTorch
VIEW_US = 1.0  # host time of an operator that launches nothing
EVENT_US = 1.5  # host time of recording an event
SHORTEST_KERNEL_US = 2.0
REACHED = 0.7
BANDWIDTH_REACHED = 0.85  # of the data sheet's peaks, by a good kernel
CARD = torch.device("cuda", 0)


class Card(NamedTuple):
    """What CUDA says of a card, its bus in 10^9 byte/s, and how much of the data sheet it has."""

    name: str
    memory_gib: float
    capability: tuple[int, int]
    bus_gb_per_s: float = 25.0
    share: float = 1.0


CARDS = {
    "T4": Card("Tesla T4", 14.6, (7, 5), 12.0),
    "A100": Card("NVIDIA A100-SXM4-40GB", 39.4, (8, 0)),
    # Caught: a default model of which one layer takes a small card too long. A MIG instance
    "A100 1g": Card("NVIDIA A100-SXM4-40GB", 4.75, (8, 0), share=1 / 8),
    "H200": Card("NVIDIA H200", 139.8, (9, 0), 50.0),
}


class Kernel(NamedTuple):
    """One piece of work in the card's queue; times in ns on the host's clock."""

    name: str
    start: int
    end: int
    flops: float

    @property
    def is_copy(self):
        return self.name.startswith("memcpy")


class OnCard(torch.Tensor):
    """A tensor on the stand-in: it has the card's device, and its shape in `inner`."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), dtype=inner.dtype, device=CARD
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return GPU.run(func, args, kwargs or {})


class ToCard(TorchDispatchMode):
    """Sees what makes a tensor on the card where there was none: `torch.rand(3, device="cuda")`."""

    # Holds: a model is made on its card

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            return GPU.run(func, args, kwargs)
        return func(*args, **kwargs)


class StandIn:
    """The card, its queue, and the host's clock."""

    def __init__(self, card):
        self.card = card
        self.now_ns = 1_000_000_000  # the host's time passes only where something takes some
        self.kernels: list[Kernel] = []
        self.syncs = 0  # times the host waited for the card
        self.free = 0  # when the card will be through, ns
        self.events: dict[int, int] = {}  # when each event passes, ns
        self.arriving: deque = deque()  # (when, where): copies to the host under way
        self.made: dict[tuple, Any] = {}  # by operators: else the tests take three times as long

    def spend(self, us):
        self.wait_until(self.now_ns + round(us * 1e3))

    def wait_until(self, ns):
        self.now_ns = max(self.now_ns, ns)
        while self.arriving and self.arriving[0][0] <= self.now_ns:
            self.arriving.popleft()[1].zero_()

    def enqueue(self, name, us, flops=0.0):
        # Caught: an optimizer that updated one tensor after the other
        self.spend(LAUNCH_US)
        start = max(self.now_ns, self.free)
        self.free = end = start + round(us * 1e3)
        self.kernels.append(Kernel(name, start, end, flops))
        return end

    def record(self, event, _device):
        # Caught: a headroom that took what the host had issued for what the card had done
        self.spend(EVENT_US)
        self.events[event] = max(self.free, self.now_ns)

    def passed(self, event):
        return self.events[event] <= self.now_ns

    def elapsed_ms(self, start, end):
        """Return the time between two events as CUDA does, in a float of 32 bits; NaN too early."""
        # Caught: minutes into a run, 32 bits are too few to time a step by
        if not (self.passed(start) and self.passed(end)):
            return float("nan")
        ms = (self.events[end] - self.events[start]) / 1e6
        return ctypes.c_float(ms).value

    def synchronize(self, until):
        """Hold the host until a copy, an event or a card is through."""
        # Holds: a run from pinned memory is never synchronised
        self.syncs += 1
        self.wait_until(until)

    def finish(self, _device):
        self.synchronize(self.free)

    def finish_event(self, event):
        self.synchronize(self.events[event])

    def run(self, func, args, kwargs):
        """Do an operator: a copy, a kernel, or what only looks at a tensor otherwise."""
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            return self.copy(func, args, kwargs)
        if name == "_local_scalar_dense":  # `.item()`: the host waits for everything before it
            return self.to_host(args[0], torch.empty((), dtype=args[0].dtype), True).item()
        out = self.compute(func, args, kwargs)
        if does_work(func):
            self.launch(func, args, kwargs, out)
        else:
            self.spend(VIEW_US)
        if changes_an_argument(func):
            return kwargs.get("out", args[0]) if func._schema.returns else None
        if isinstance(out, (list, tuple)):
            return type(out)(map(outside, out))
        return outside(out)

    def compute(self, func, args, kwargs):
        """Return what an operator makes, without numbers: where it is no view, made once."""
        if changes_an_argument(func) and "out" not in kwargs:
            return None
        asked = (func, *map(described, (*args, *kwargs.items())))
        made = self.made.get(asked)
        if made is None:
            made = func(*map(inside, args), **on_meta(kwargs))
            if does_work(func):
                self.made[asked] = made
        return made

    def launch(self, func, args, kwargs, out):
        """Put an operator into the card's queue, for as long as its FLOPs and bytes take."""
        # Holds: the MFU of a run
        made = out if isinstance(out, (list, tuple)) else (out,)
        given = [value for key, value in kwargs.items() if key != "out"]  # which is made, not read
        tensors = tensors_of((*args, *given, *made))
        bytes_ = sum(x.numel() * x.element_size() for x in tensors)
        flops = 0.0
        if func.overloadpacket in flop_registry:
            flops = float(flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
        self.enqueue(func.overloadpacket.__name__, self.kernel_us(flops, bytes_), flops)

    def kernel_us(self, flops, bytes_):
        """Return what a good kernel takes on the card, µs: the slower of its FLOPs and bytes."""
        # Caught: models sized by the number of SMs, whose steps were launches on a fast card
        sheet = device_peaks.card(self.card.name)
        rate = self.card.share * sheet["tflop_per_s"]["fp32"] * 1e6 * REACHED
        moved = self.card.share * sheet["gb_per_s"] * 1e3 * BANDWIDTH_REACHED
        return max(SHORTEST_KERNEL_US, flops / rate, bytes_ / moved)

    def copy(self, func, args, kwargs):
        """Copy on the card, to it, or from it."""
        if func.overloadpacket.__name__ == "copy_":
            target, source = args[:2]
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        else:
            source = args[0]
            waits = not kwargs.get("non_blocking", False)
            made = func(inside(source), **on_meta({"device": source.device} | kwargs))
            device = torch.device(kwargs.get("device") or source.device)
            on_host = device.type == "cpu"
            target = torch.empty_like(made, device="cpu") if on_host else OnCard(made)
        if target.device.type == "cpu":
            return self.to_host(source, target, waits)
        if source.device == target.device:
            self.launch(func, (source,), {}, target)
        else:
            end = self.over_the_bus("memcpyHtoD", source)
            if waits or not source.is_pinned():
                self.synchronize(end)
        return target

    def over_the_bus(self, name, tensor):
        size = tensor.numel() * tensor.element_size()
        us = SHORTEST_KERNEL_US + size / (self.card.bus_gb_per_s * 1e3)
        return self.enqueue(name, us)

    def to_host(self, source, target, waits):
        """Copy to the host: its numbers are there when the queue has done it, NaN before."""
        # Holds: a loss is read when it has arrived
        end = self.over_the_bus("memcpyDtoH", source)
        if waits or not target.is_pinned():
            self.synchronize(end)
            return target.zero_()
        self.arriving.append((end, target))
        return target.fill_(float("nan"))

    def loader(self, prep_ms, batch, workers=0, prefetch=2):
        """Yield `batch` as a DataLoader would: each takes `prep_ms` on the host or in a worker."""
        # Caught: a queue of one batch a worker, which keeps the workers waiting
        prep = round(prep_ms * 1e6)
        asked = []
        free = [self.now_ns] * workers
        for number in itertools.count():
            asked.append(self.now_ns)
            ready = self.now_ns + prep
            if workers:
                since = asked[max(0, number - workers * prefetch)]
                ready = max(free[number % workers], since) + prep
                free[number % workers] = ready
            self.wait_until(ready)
            yield batch


def inside(x):
    """Return an argument for an operator that runs without numbers."""
    if isinstance(x, OnCard):
        return x.inner
    if isinstance(x, (list, tuple)):
        return [inside(each) for each in x]
    if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.dim():
        return x.to("meta")
    return x


def on_meta(kwargs):
    """Return the keyword arguments for an operator that runs without numbers."""
    inner = {name: inside(value) for name, value in kwargs.items() if name != "pin_memory"}
    if inner.get("device") is not None:
        inner["device"] = torch.device("meta")
    return inner


def outside(x):
    """Return what an operator made as the card's."""
    plain = isinstance(x, torch.Tensor) and not isinstance(x, OnCard)
    return OnCard(x) if plain else x


def described(x):
    """Return an argument as something that can be looked up: tensors by their shape."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.stride(), x.dtype
    return tuple(map(described, x)) if isinstance(x, (list, tuple)) else x


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
        ("record", ctypes.CFUNCTYPE(None, _i, _n)),
        ("passed", ctypes.CFUNCTYPE(_n, _i)),
        ("elapsed_ms", ctypes.CFUNCTYPE(ctypes.c_double, _i, _i)),
        ("finish", ctypes.CFUNCTYPE(None, _n)),
        ("finish_event", ctypes.CFUNCTYPE(None, _i)),
    ]


def compiled():
    """Compile standin_gpu.cpp against this PyTorch (3 s, once a machine); return the library."""
    root = Path(torch.__file__).parent
    mark = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    made = Path(tempfile.gettempdir()) / f"standin_gpu-{mark}-{os.getuid()}.so"
    if not made.exists():
        part = made.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", SOURCE]
        command += ["-o", part, f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
        subprocess.run(command, check=True, capture_output=True)
        part.rename(made)
    return made


@contextlib.contextmanager
def installed(card):
    """Give this process this card, for good, and the virtual clock meanwhile.

    Call it before anything asks for a device.
    """
    global GPU, LIBRARY, _answers
    first = LIBRARY is None
    if first:
        LIBRARY = ctypes.CDLL(str(compiled()))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        import torch.optim.optimizer as optimizer

        optimizer._foreach_supported_types.append(OnCard)
        ToCard().__enter__()
        patch_cuda()
        fill_in_kernels()
    GPU = gpu = StandIn(card)
    _answers = Answers(**{name: kind(getattr(gpu, name)) for name, kind in Answers._fields_})
    if first:  # autograd starts a thread for each device that it finds in its first backward pass
        LIBRARY.standin_install(1, _answers)
        torch.ones(1, requires_grad=True).sum().backward()
    if LIBRARY.standin_install(1, _answers):
        raise RuntimeError("this system does not let PyTorch be given another accelerator")
    LIBRARY.standin_use(0)
    clocks: dict[str, Any] = {"sleep": lambda seconds: gpu.spend(seconds * 1e6)}
    for name in ("perf_counter", "monotonic", "thread_time", "process_time"):
        clocks[name] = lambda: gpu.now_ns / 1e9
    with contextlib.ExitStack() as undo:
        undo.enter_context(mock.patch.multiple(time, **clocks))
        for name, module in list(sys.modules.items()):
            if name.startswith("labkit.") and hasattr(module, "now_ns"):
                undo.enter_context(mock.patch.object(module, "now_ns", lambda: gpu.now_ns))
        yield gpu


def fill_in_kernels():
    """Give CUDA the two kernels that `torch.tensor(..., device="cuda")` asks for itself."""
    global _kernels
    _kernels = torch.library.Library("aten", "IMPL")

    def empty_strided(size, stride, *, dtype=None, **_):
        empty = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return OnCard(empty)

    def copy_(*args):
        return GPU.copy(torch.ops.aten.copy_.default, args, {})

    _kernels.impl("empty_strided", empty_strided, "CUDA")
    _kernels.impl("copy_", copy_, "CUDA")


def patch_cuda():
    """Answer what torch.cuda asks of a driver from the stand-in."""

    def properties(device=None):
        card = GPU.card
        return SimpleNamespace(
            name=card.name,
            total_memory=int(card.memory_gib * 2**30),
            major=card.capability[0],
            minor=card.capability[1],
            multi_processor_count=100,
            L2_cache_size=2**25,
            uuid="0",
        )

    answers = {
        "device_count": lambda: 1,
        "is_initialized": lambda: True,
        "current_device": lambda: LIBRARY.standin_device(),
        "set_device": lambda device: LIBRARY.standin_use(device.index),
        "get_device_properties": properties,
        "memory_allocated": lambda device: 1,  # this process holds a tensor
        "reset_peak_memory_stats": lambda device: None,
        "Event": torch.Event,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, value)
