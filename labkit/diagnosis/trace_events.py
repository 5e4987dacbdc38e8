"""The events of a trace that count, in columns: what, when, on which device, launched by whom.

The kinds and most names are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, BSD-3);
later categories are those of Kineto's ActivityType.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from labkit.diagnosis.trace_file import NotATrace, TraceFile

# The kinds of events that count. The first seven are the classes of a step, in their priority.
KERNEL, MEMCPY, MEMSET, COMMUNICATION, RUNTIME, DATALOADER, CPU_OP = range(7)
ELIGIBLE_OP, GRAPH_LAUNCH, COMMUNICATION_KERNEL, STEP, ANNOTATION, PYTHON = range(7, 13)
NAMED = {DATALOADER, KERNEL, CPU_OP, ELIGIBLE_OP, ANNOTATION, PYTHON}  # whose names are kept
ON_DEVICE = KERNEL, MEMCPY, MEMSET, COMMUNICATION_KERNEL
ISSUED = RUNTIME, GRAPH_LAUNCH  # calls of the host into the device's runtime
HOST = COMMUNICATION, DATALOADER, CPU_OP, ELIGIBLE_OP  # the host's other work

_OF_KIND = {
    KERNEL: "kernel mtia_ccp_events",
    MEMCPY: "memcpy gpu_memcpy",
    MEMSET: "memset gpu_memset",
    COMMUNICATION: "collective_comm",
    RUNTIME: "runtime cuda_runtime cuda_driver hip_runtime hip_driver xpu_runtime xpu_driver "
    "mtia_runtime glow_runtime hpu_op privateuse1_runtime privateuse1_driver",
    CPU_OP: "operator cpu_op python",
    ANNOTATION: "user_annotation",
    PYTHON: "python_function",
}
CATEGORIES = {name: kind for kind, names in _OF_KIND.items() for name in names.split()}

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
_collective = lru_cache(maxsize=4096)(_COLLECTIVE_KERNEL.search)

MAX_DEVICES = 256  # beyond, a file is a mistake, or an attack on the reader's time
_MOST_NS = 2**61  # the year 2043 in ns since 1970: sums of two stay inside 64 bits
_LONGEST_NAME = 1000  # characters kept; C++ templates run to several thousand


class Intervals(NamedTuple):
    """Starts and ends of stretches of time, in ns, in no particular order."""

    start: np.ndarray
    end: np.ndarray

    def only(self, which: np.ndarray) -> Intervals:
        """Return some of them, by index or mask."""
        return Intervals(self.start[which], self.end[which])

    length = property(lambda self: self.end - self.start)  # ns


def join(*several: Intervals) -> Intervals:
    """Put intervals side by side in one."""
    return Intervals(*map(np.concatenate, zip(*several, strict=True)))


@dataclass(frozen=True)
class Events:
    """The events of one trace, sorted by start, with device work tied to its launch."""

    span: Intervals  # when it was; for each event:
    kind: np.ndarray  # KERNEL, MEMCPY, ...
    place: np.ndarray  # the number of its device or, on the host, of its thread
    name: np.ndarray  # index into `names`, -1 where it is not kept
    tied: np.ndarray  # whether it is device work of which it is known what launched it
    launched: Intervals  # that call
    eligible: np.ndarray  # whether it is of an operator that can use Tensor Cores
    names: tuple[str, ...]
    devices: tuple[str, ...]  # as the trace numbers them

    def of(self, *kinds: int) -> Intervals:
        """Return those of these kinds."""
        return self.span.only(np.isin(self.kind, kinds))


def uses_tensor_cores(kernel: str) -> bool:
    """Tell from its name whether a kernel computes on Tensor Cores (sources in this module)."""
    return bool(_TENSOR_CORE.search(kernel)) and not _NO_TENSOR_CORE.search(kernel)


def read_events(file: TraceFile) -> Events:
    """Read the events of `file` that count; up to 1% may be malformed: a note tells."""
    rows = array("q")  # of each event start, end, correlation, external id, name, place, kind
    names: dict[str, int] = {}
    places: dict[tuple[bool, str], int] = {}  # devices (True) and threads
    ranks: set[str] = set()  # the processes with ProfilerStep marks
    bad, first = 0, ""
    for number, event in enumerate(file, 1):  # about 3 µs each: most of the time of a reading
        try:
            if type(event) is not dict:
                raise ValueError("it is not an object")
            # flows, marks, counters and names carry no duration
            if event.get("ph") != "X" or (kind := _kind_of(event)) is None:
                continue
            start, length = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
            if start is None or length is None or length < 0:
                raise ValueError("its 'ts' or 'dur' is not a time in µs")
            args, process = event.get("args") or {}, event.get("pid")
            if type(args) is not dict or isinstance(process, (dict, list)):
                raise ValueError("its 'args' or 'pid' has the wrong type")
        except ValueError as error:
            bad += 1
            first = first or f"in event {number:,} {error}"
            continue
        index = -1
        if kind in NAMED:
            name = event["name"]
            index = names.setdefault(name[:_LONGEST_NAME], len(names))
            if kind == KERNEL and _collective(name):
                kind = COMMUNICATION_KERNEL
        on_device = kind in ON_DEVICE
        where = str(process if on_device else event.get("tid"))[:100]
        place = places.setdefault((on_device, where), len(places))
        if kind == STEP:
            ranks.add(str(process)[:100])
        correlation = external = 0
        if kind < STEP:
            correlation = _identifier(args.get("correlation"))
            external = _identifier(args.get("External id") or args.get("external id"))
        rows.extend((start, start + length, correlation, external, index, place, kind))

    table = np.frombuffer(rows, np.int64).reshape(-1, 7)
    good, devices = len(table), tuple(text for on_device, text in places if on_device)
    if bad > 0.01 * (good + bad):
        raise file.error(f"has malformed events ({bad:,} beside {good:,} usable ones; {first})")
    if np.isin(table[:, 6], (ANNOTATION, PYTHON)).all():
        raise file.error("has no timed event of torch.profiler", kind=NotATrace)
    if bad:
        file.notes.append(f"{bad:,} malformed events of {good + bad:,} were left out; {first}.")
    if len(ranks) > 1:
        raise file.error(
            f"has the steps of {len(ranks)} ranks (processes {', '.join(sorted(ranks)[:4])})",
            "write one file per rank, as torch.profiler.tensorboard_trace_handler(folder, "
            "f'rank{rank}') does, and give the folder",
        )
    if len(devices) > MAX_DEVICES:
        raise file.error(f"has work on more than {MAX_DEVICES} devices", "give one rank's file")
    return _tied(table, tuple(names), devices)


def _tied(table: np.ndarray, names: tuple[str, ...], devices: tuple[str, ...]) -> Events:
    """Tie device work to its launches and operators."""
    table = table[np.argsort(table[:, 0], kind="stable")]
    start, end, correlation, external, name, place, kind = table.T
    span, calls = Intervals(start, end), np.flatnonzero(np.isin(kind, ISSUED))
    by_id = dict(zip(correlation[calls].tolist(), calls.tolist(), strict=True)) | {0: -1}
    work, launch = np.isin(kind, ON_DEVICE), np.full(len(kind), -1)
    launch[work] = [by_id.get(number, -1) for number in correlation[work].tolist()]
    tied = launch >= 0
    # Some versions give the operator's id to the launch only.
    operator = np.where(tied & (external == 0), external[launch], external)

    def is_of(kinds: int) -> np.ndarray:
        ids = external[kind == kinds]
        return np.isin(operator, ids[ids > 0])

    kind[(kind == KERNEL) & is_of(COMMUNICATION)] = COMMUNICATION_KERNEL
    launched, eligible = span.only(launch), is_of(ELIGIBLE_OP)
    return Events(span, kind, place, name, tied, launched, eligible, names, devices)


def _kind_of(event: dict[str, Any]) -> int | None:
    """Return what kind of event it is, None where it does not count; ValueError if not text."""
    category, name = event.get("cat"), event.get("name")
    if category is None:
        return None
    if category == "python_function" and str(event.get("dur"))[1:2] in ".":
        return None  # there may be 20 to an operator, and those under 10 µs name no long wait
    if type(category) is not str or (type(name) is not str and category.lower() in CATEGORIES):
        raise ValueError("its category or name is not text")
    return _kind(category, name) if type(name) is str else None


@lru_cache(maxsize=4096)
def _kind(category: str, name: str) -> int | None:
    kind = CATEGORIES.get(category.lower())
    if kind == RUNTIME and "GraphLaunch" in name:
        return GRAPH_LAUNCH
    if kind not in (CPU_OP, ANNOTATION):
        return kind
    if name.startswith("ProfilerStep#"):
        return STEP
    if name.startswith(("enumerate(DataLoader)#", "enumerate(DataPipe)#")):
        return DATALOADER
    if name.startswith(("nccl:", "gloo:", "ucc:", "mpi:", "xccl:", "hccl:")):
        return COMMUNICATION
    if kind == ANNOTATION:
        # A person's label spans waiting too; the optimizer's, which torch writes, is work.
        return CPU_OP if name.startswith("Optimizer.") else ANNOTATION
    return ELIGIBLE_OP if _ELIGIBLE.fullmatch(name) else CPU_OP


def _nanoseconds(micros: Any) -> int | None:
    """Convert the text of a number of µs to whole ns; None unless a number within ±2**61 ns."""
    if type(micros) is not str:
        return None
    try:  # exact, where a float of µs since 1970 would be good to 0.25 µs
        ns = Decimal(micros[:99]).scaleb(3)
        return round(ns) if abs(ns) < _MOST_NS else None
    except ArithmeticError:
        return None


def _identifier(text: Any) -> int:
    """Return a correlation or external id, 0 where there is none."""
    return int(text) if type(text) is str and len(text) <= 18 and text.isdecimal() else 0
