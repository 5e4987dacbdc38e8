"""The events of a trace that count, in columns: what, when, on which device, launched by whom.

The kinds and most names are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, BSD-3);
later categories are those of Kineto's ActivityType.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from labkit.results.text import one_line
from labkit.traces.file import MAX_EVENTS, Json, JsonObject, NotATrace, TraceFile


class Kind(IntEnum):
    """The kinds of events that count; the first seven are the classes of a step, by priority."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    COMMUNICATION = 3  # a collective, as the host issues it
    RUNTIME = 4  # a call of the host into the device's runtime
    DATALOADER = 5
    CPU_OP = 6
    COLLECTIVE_KERNEL = 7
    STEP = 8
    ANNOTATION = 9
    PYTHON = 10


ON_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COLLECTIVE_KERNEL)
KERNELS = (Kind.KERNEL, Kind.COLLECTIVE_KERNEL)
HOST_WORK = (Kind.COMMUNICATION, Kind.DATALOADER, Kind.CPU_OP)

_CATEGORIES = {
    Kind.KERNEL: "kernel mtia_ccp_events",
    Kind.MEMCPY: "memcpy gpu_memcpy",
    Kind.MEMSET: "memset gpu_memset",
    Kind.COMMUNICATION: "collective_comm",
    Kind.RUNTIME: "runtime cuda_runtime cuda_driver hip_runtime hip_driver xpu_runtime xpu_driver "
    "mtia_runtime glow_runtime hpu_op privateuse1_runtime privateuse1_driver",
    Kind.CPU_OP: "operator cpu_op python",
    Kind.ANNOTATION: "user_annotation",
    Kind.PYTHON: "python_function",
}
_KIND_OF_CATEGORY = {name: kind for kind, names in _CATEGORIES.items() for name in names.split()}
_LOADERS = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
_BACKENDS = ("nccl:", "gloo:", "ucc:", "mpi:", "xccl:", "hccl:")

# Operators whose kernels can run on Tensor Cores: autocast's list as the plugin had it, and the
# names that newer versions of torch use for the same work; then nodes of the backward pass.
_ELIGIBLE = re.compile(
    r"aten::(?:_?convolution|convolution_backward|conv(?:_transpose)?[123]d|conv_tbc|prelu|linear"
    r"|(?:cudnn|miopen)_convolution\w*|_cudnn_rnn(?:_backward)?|miopen_rnn|_thnn_fused_\w+_cell"
    r"|(?:lstm|gru|rnn_tanh|rnn_relu)_cell|addmm_?|_addmm_activation|addmv|addr|matmul|mm|mv"
    r"|addbmm|baddbmm_?|bmm|chain_matmul|linalg_multi_dot|_(?:int|(?:scaled_)?grouped|scaled)_mm"
    r"|_(?:flash|efficient|cudnn)_attention_(?:for|back)ward"
    r"|_scaled_dot_product_cudnn_attention(?:_backward)?)"
    r"|CudnnConvolution(?:Transpose)?Backward|BmmBackward0|(?:Mm|Mv|Addmv|Addmm|Addbmm)Backward"
)
# Kernels that run on Tensor Cores, by name: NVIDIA PyProf's list (prof/tc.py, used by the plugin)
# in the first two lines, then what Hopper and Blackwell libraries and attention kernels are called,
# then AMD's Matrix Cores: Tensile's MI, Composable Kernel's xdl, MIOpen's gtcx, attention.
_TENSOR_CORE = re.compile(
    r"[hs]884|[hs]1688|hmma|i8816|16816|c1688|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel"
    r"|conv1x1|conv2d_c1_k1|direct_group|xmma_"
    r"|16832|gmma|tensorop|nvjet|tcgen05|flash_(?:fwd|bwd)|fmha_cutlass[FB]_b?f16|sdpa_sm\d"
    r"|Cijk_.*_MI\d+x\d+|(?i:xdl|mfma|wmma|fmha_?[fb]wd)|igemm_\w+_gtcx|^_?attn_(?:fwd|bwd)"
)
# The list above has 'xmma_', which also names kernels of plain multiply-adds.
_NO_TENSOR_CORE = re.compile(r"ffma|simt")
# NCCL, RCCL, MSCCL, oneCCL and Habana's; then collectives that other libraries wrote themselves
_COLLECTIVE_KERNEL = re.compile(
    r"(?i)^(?:void )?(?:\w+::)*(?:nccl|rccl|msccl|oneccl|hccl)|cross_device_reduce|nvshmem|deep_ep"
    r"|(?:one|two)_?shot_?all_?reduce|multimem_\w*(?:reduce|gather)|all_?reduce_?fusion"
)

_MOST_NS = 2**61  # the year 2043 in ns since 1970: sums of two stay inside 64 bits
_LONGEST_NAME = 1000  # characters kept; C++ templates run to several thousand
_MOST_NAMES = 200_000  # that are different, and as many devices and threads
_MOST_MALFORMED = 0.01  # of the events
_COLUMNS = 7


class Intervals(NamedTuple):
    """Starts and ends of stretches of time, in ns."""

    start: np.ndarray
    end: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """How long each is, in ns."""
        return self.end - self.start

    def only(self, which: np.ndarray | slice) -> Intervals:
        """Return some of them, by index or mask."""
        return Intervals(self.start[which], self.end[which])


@dataclass(frozen=True)
class Events:
    """The events of one trace, sorted by start, with device work tied to its launch."""

    began_ns: int  # when the first began, on the trace's own clock; for each event:
    span: Intervals  # when it was, from there on
    kind: np.ndarray  # a Kind
    place: np.ndarray  # the number of its device or, on the host, of its thread
    name: np.ndarray  # index into `names`
    launch: np.ndarray  # index of the call that launched this device work, -1 where it is not known
    can_use_tensor_cores: np.ndarray  # whether it is of an operator that can
    names: tuple[str, ...]
    devices: tuple[str, ...]  # as the trace numbers them

    def are(self, *kinds: Kind) -> np.ndarray:
        """Return whether each event is of one of these kinds."""
        return np.isin(self.kind, kinds)

    def names_of(self, kind: Kind) -> list[str]:
        """Return the names of those of a kind, each once."""
        return [self.names[number] for number in np.unique(self.name[self.kind == kind])]

    def of(self, *kinds: Kind) -> Intervals:
        """Return when those of these kinds were."""
        return self.span.only(self.are(*kinds))


@lru_cache(maxsize=4096)
def uses_tensor_cores(kernel: str) -> bool:
    """Tell from its name whether a kernel computes on Tensor Cores (sources in this module)."""
    return bool(_TENSOR_CORE.search(kernel)) and not _NO_TENSOR_CORE.search(kernel)


class Rows:
    """The events that count as rows of whole numbers, and what the numbers stand for."""

    def __init__(self):
        # Of each event start, end, correlation, external id, name, place, kind
        self.numbers = array("q")
        self.names: dict[str, int] = {}
        self.places: dict[tuple[bool, str], int] = {}  # devices (True) and threads
        self.ranks: set[str] = set()  # the processes with marks of steps

    def take(self, event: Json) -> None:
        """Take an event in, if it counts (3 µs); ValueError says what is wrong with it."""
        if not isinstance(event, dict):
            raise ValueError("it is not an object")
        kind = _kind_of(event)
        if kind is None:
            return
        start = _nanoseconds(event.get("ts"))
        end = start + _nanoseconds(event.get("dur"), least=0)
        arguments = event.get("args") or {}
        process = event.get("pid")
        if not isinstance(arguments, dict) or isinstance(process, (dict, list)):
            raise ValueError("its 'args' or 'pid' has the wrong type")
        on_device = kind in ON_DEVICE
        where = process if on_device else event.get("tid")
        if max(len(self.names), len(self.places)) > _MOST_NAMES:
            raise ValueError(f"there are {_MOST_NAMES:,} other names")
        if kind == Kind.STEP:
            self.ranks.add(str(process)[:100])
        external = arguments.get("External id") or arguments.get("external id")
        row = (
            start,
            end,
            _identifier(arguments.get("correlation")),
            _identifier(external),
            self.names.setdefault(str(event["name"])[:_LONGEST_NAME], len(self.names)),
            self.places.setdefault((on_device, str(where)[:100]), len(self.places)),
            kind,
        )
        self.numbers.extend(row)

    @property
    def table(self) -> np.ndarray:
        """The rows (events, 7), in the order of the file."""
        return np.frombuffer(self.numbers, np.int64).reshape(-1, _COLUMNS)


def read_events(file: TraceFile) -> Events:
    """Read the events of `file` that count; up to 1% may be malformed: a note tells."""
    rows = Rows()
    malformed: list[str] = []
    for number, event in enumerate(file, 1):
        try:
            rows.take(event)
        except ValueError as error:
            malformed.append(f"in event {number:,} {error}")
            if len(malformed) > _MOST_MALFORMED * MAX_EVENTS:
                break  # too many for a file of any length
    table = rows.table
    bad = len(malformed)
    every = len(table) + bad
    if bad > _MOST_MALFORMED * every:
        what = f"has malformed events ({bad:,} of {every:,} that count; {malformed[0]})"
        raise file.error(what)
    if bad:
        file.notes.append(f"{bad:,} malformed events of {every:,} were left out; {malformed[0]}.")
    if len(rows.ranks) > 1:
        raise file.error(
            f"has the steps of {len(rows.ranks)} ranks "
            f"(processes {', '.join(map(one_line, sorted(rows.ranks)[:4]))})",
            "write one file per rank, as torch.profiler.tensorboard_trace_handler(folder, "
            "f'rank{rank}') does, and give the folder",
        )
    if np.isin(table[:, -1], (Kind.ANNOTATION, Kind.PYTHON)).all():
        raise file.error("has no timed event of torch.profiler", kind=NotATrace)
    devices = tuple(one_line(place) for on_device, place in rows.places if on_device)
    return _tied(table, tuple(map(one_line, rows.names)), devices)


def _tied(table: np.ndarray, names: tuple[str, ...], devices: tuple[str, ...]) -> Events:
    """Tie device work to its launches and operators."""
    table = table[np.argsort(table[:, 0], kind="stable")]
    began_ns = int(table[0, 0])
    table[:, :2] -= began_ns
    start, end, correlation, external, name, place, kind = table.T
    calls = np.flatnonzero(kind == Kind.RUNTIME)
    call_of = dict(zip(correlation[calls].tolist(), calls.tolist(), strict=True))
    call_of[0] = -1
    work = np.isin(kind, ON_DEVICE)
    launch = np.full(len(kind), -1)
    launch[work] = [call_of.get(number, -1) for number in correlation[work].tolist()]
    # Some versions give the operator's id to the launch only.
    operator = np.where((launch >= 0) & (external == 0), external[launch], external)

    def is_of(operators: np.ndarray) -> np.ndarray:
        ids = external[operators]
        return np.isin(operator, ids[ids > 0])

    eligible_name = np.array([bool(_ELIGIBLE.fullmatch(each)) for each in names], dtype=bool)
    eligible = is_of((kind == Kind.CPU_OP) & eligible_name[name])
    kind[(kind == Kind.KERNEL) & is_of(kind == Kind.COMMUNICATION)] = Kind.COLLECTIVE_KERNEL
    span = Intervals(start, end)
    return Events(began_ns, span, kind, place, name, launch, eligible, names, devices)


def _kind_of(event: JsonObject) -> Kind | None:
    """Return the kind of an event, None where it does not count."""
    category = event.get("cat")
    name = event.get("name")
    # flows, marks, counters and names carry no duration
    if event.get("ph") != "X" or not isinstance(category, str) or not isinstance(name, str):
        return None
    if category == "python_function" and _is_brief(event.get("dur")):
        return None  # there may be 20 to an operator, and brief ones name no long wait
    return _kind(category[:_LONGEST_NAME].lower(), name[:_LONGEST_NAME])


def _is_brief(duration: object) -> bool:
    """Return whether it is less than 10 µs: one digit before the point, as text."""
    return str(duration)[1:2] in ("", ".")


@lru_cache(maxsize=4096)
def _kind(category: str, name: str) -> Kind | None:
    kind = _KIND_OF_CATEGORY.get(category)
    if kind == Kind.KERNEL and _COLLECTIVE_KERNEL.search(name):
        return Kind.COLLECTIVE_KERNEL
    if kind not in (Kind.CPU_OP, Kind.ANNOTATION):
        return kind
    if name.startswith("ProfilerStep#"):
        return Kind.STEP
    if name.startswith(_LOADERS):
        return Kind.DATALOADER
    if name.startswith(_BACKENDS):
        return Kind.COMMUNICATION
    # A person's label spans waiting too; the optimizer's, which torch writes, is work.
    return Kind.CPU_OP if name.startswith("Optimizer.") else kind


def _nanoseconds(micros: Json, least: int = -_MOST_NS) -> int:
    """Convert the text of a number of µs to whole ns, from `least` to 2**61."""
    if isinstance(micros, str):
        try:  # exact, where a float of µs since 1970 would be good to 0.25 µs
            nanoseconds = Decimal(micros[:99]).scaleb(3)
            if least <= nanoseconds < _MOST_NS:
                return round(nanoseconds)
        except ArithmeticError:
            pass
    raise ValueError("its 'ts' or 'dur' is not a time in µs")


def _identifier(text: Json) -> int:
    """Return a correlation or external id, 0 where there is none."""
    if not isinstance(text, str) or len(text) > 18 or not text.isdecimal():
        return 0
    return int(text)
