"""The events of a trace that count, in columns: what, when, on which device, launched by whom.

The kinds and most names are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3, BSD-3);
later categories are those of Kineto's ActivityType.
"""

from __future__ import annotations

import re
from array import array
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache

import numpy as np
import pandas

from labkit.text import one_line
from labkit.traces.file import ONE_PER_RANK, Json, JsonObject, NotATrace, TraceFile


class Kind(IntEnum):
    """The kinds of events that count; first the `CLASSES` but "other", in their order."""

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


KERNELS = (Kind.KERNEL, Kind.COLLECTIVE_KERNEL)
COPIES = (Kind.MEMCPY, Kind.MEMSET)
ON_DEVICE = (*KERNELS, *COPIES)
HOST_WORK = (Kind.COMMUNICATION, Kind.DATALOADER, Kind.CPU_OP)

CLASSED_AS = {Kind.COMMUNICATION: Kind.COLLECTIVE_KERNEL}  # {a class: what it has besides}
LANES = {  # rows of a picture of the trace
    "CPU operators": (Kind.CPU_OP,),
    "DataLoader": (Kind.DATALOADER,),
    "CUDA calls": (Kind.RUNTIME,),
    "kernels": (Kind.KERNEL,),
    "collectives": (Kind.COLLECTIVE_KERNEL,),
    "copies": COPIES,
}

CATEGORIES = {
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
KIND_OF_CATEGORY = {name: kind for kind, names in CATEGORIES.items() for name in names.split()}
# What the names of operators and annotations begin with that are of another kind. A person's label
# spans waiting too; the optimizer's, which torch writes, is work.
KIND_OF_NAME = {
    ("ProfilerStep#",): Kind.STEP,
    ("enumerate(DataLoader)#", "enumerate(DataPipe)#"): Kind.DATALOADER,
    ("nccl:", "gloo:", "ucc:", "mpi:", "xccl:", "hccl:"): Kind.COMMUNICATION,
    ("Optimizer.",): Kind.CPU_OP,
}

# Operators whose kernels can run on Tensor Cores: autocast's list as the plugin had it, and the
# names that newer versions of torch use for the same work; then nodes of the backward pass.
ELIGIBLE = re.compile(
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
TENSOR_CORE = re.compile(
    r"[hs]884|[hs]1688|hmma|i8816|16816|c1688|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel"
    r"|conv1x1|conv2d_c1_k1|direct_group|xmma_"
    r"|16832|gmma|tensorop|nvjet|tcgen05|flash_(?:fwd|bwd)|fmha_cutlass[FB]_b?f16|sdpa_sm\d"
    r"|Cijk_.*_MI\d+x\d+|(?i:xdl|mfma|wmma|fmha_?[fb]wd)|igemm_\w+_gtcx|^_?attn_(?:fwd|bwd)"
)
# The list above has 'xmma_', which also names kernels of plain multiply-adds.
NO_TENSOR_CORE = re.compile(r"ffma|simt")
# NCCL, RCCL, MSCCL, oneCCL and Habana's; then collectives that other libraries wrote themselves
COLLECTIVE = re.compile(
    r"(?i)^(?:void )?(?:\w+::)*(?:nccl|rccl|msccl|oneccl|hccl)|cross_device_reduce|nvshmem|deep_ep"
    r"|(?:one|two)_?shot_?all_?reduce|multimem_\w*(?:reduce|gather)|all_?reduce_?fusion"
)

MOST_NS = 2**61  # the year 2043 in ns since 1970: sums of two stay inside 64 bits
LONGEST_NAME = 1000  # characters kept; C++ templates run to several thousand
MOST_MALFORMED = 0.01  # of the events
COLUMNS = ["start", "end", "correlation", "external", "name", "process", "kind"]
BRIEF = ("", ".")  # the second character of a number below 10


@lru_cache(maxsize=4096)
def uses_tensor_cores(kernel: str) -> bool:
    """Tell from its name whether a kernel computes on Tensor Cores (sources in this module)."""
    return bool(TENSOR_CORE.search(kernel)) and not NO_TENSOR_CORE.search(kernel)


def read_events(file: TraceFile) -> tuple[pandas.DataFrame, list[str]]:
    """Read the events of `file` that count, and notes: up to 1% of them may be malformed.

    A row for each, sorted by its `start` and with its `end`, in ns; its `kind`, `name`, `process`
    (a number), `launch` (the row of the call that launched this device work, -1 where it is not
    known), and whether `can_use_tensor_cores`.
    """
    numbers = array("q")
    texts: dict[str, int] = {}
    bad = 0
    for event in file:
        try:
            numbers.extend(_row(event, texts))
        except ValueError:
            bad += 1
    rows = np.frombuffer(numbers, np.int64).reshape(-1, len(COLUMNS))
    every = len(rows) + bad
    if bad > MOST_MALFORMED * every:
        raise file.error(f"has malformed events ({bad:,} of {every:,} that count)")
    notes = [f"{bad:,} malformed events of {every:,} were left out."] if bad else []
    events = pandas.DataFrame(rows, columns=COLUMNS).sort_values("start", kind="stable")
    words = np.array([*map(one_line, texts)], dtype=object)
    events = events.reset_index(drop=True)
    events["name"] = pandas.Categorical(words[events["name"]])
    ranks = events.process[events.kind == Kind.STEP].nunique()
    if ranks > 1:
        raise file.error(f"has the steps of {ranks} ranks", ONE_PER_RANK)
    if events.kind.isin([Kind.ANNOTATION, Kind.PYTHON]).all():
        raise file.error("has no timed event of torch.profiler", kind=NotATrace)
    return _with_launches(events), notes


def _row(event: Json, texts: dict[str, int]) -> tuple[int, ...]:
    """Return an event that counts as whole numbers (3 µs); ValueError says what is wrong with it.

    They are the `COLUMNS`; the number of a text is its place in `texts`.
    """
    if not isinstance(event, dict):
        raise ValueError("it is not an object")
    kind = _kind_of(event)
    if kind is None:
        return ()
    start = _nanoseconds(event.get("ts"))
    end = start + _nanoseconds(event.get("dur"), least=0)
    arguments = event.get("args") or {}
    if not isinstance(arguments, dict):
        raise ValueError("its 'args' has the wrong type")
    return (
        start,
        end,
        _identifier(arguments.get("correlation")),
        _identifier(arguments.get("External id") or arguments.get("external id")),
        texts.setdefault(str(event["name"])[:LONGEST_NAME], len(texts)),
        texts.setdefault(str(event.get("pid"))[:LONGEST_NAME], len(texts)),
        kind,
    )


def _with_launches(events: pandas.DataFrame) -> pandas.DataFrame:
    """Tie device work to its launches and operators."""
    correlation = events.correlation
    calls = correlation[(events.kind == Kind.RUNTIME) & (correlation > 0)]
    call_of = dict(zip(calls, calls.index, strict=True))
    launch = correlation.where(events.kind.isin(ON_DEVICE)).map(call_of).fillna(-1).astype(int)
    # Some versions give the operator's id to the launch only.
    external = events.external
    of_launch = external.to_numpy()[launch]
    operator = external.where((launch < 0) | (external > 0), of_launch)
    known = external.where(external > 0)
    eligible = events.name.map(ELIGIBLE.fullmatch).notna() & (events.kind == Kind.CPU_OP)
    collective = operator.isin(known[events.kind == Kind.COMMUNICATION])
    return events.assign(
        launch=launch,
        can_use_tensor_cores=operator.isin(known[eligible]),
        kind=events.kind.mask((events.kind == Kind.KERNEL) & collective, Kind.COLLECTIVE_KERNEL),
    )


def _kind_of(event: JsonObject) -> Kind | None:
    """Return the kind of an event, None where it does not count."""
    category = event.get("cat")
    name = event.get("name")
    # flows, marks, counters and names carry no duration
    if event.get("ph") != "X" or not isinstance(category, str) or not isinstance(name, str):
        return None
    if category == "python_function" and str(event.get("dur"))[1:2] in BRIEF:
        return None  # there may be 20 to an operator, and brief ones name no long wait
    return _kind(category[:LONGEST_NAME].lower(), name[:LONGEST_NAME])


@lru_cache(maxsize=4096)
def _kind(category: str, name: str) -> Kind | None:
    kind = KIND_OF_CATEGORY.get(category)
    if kind == Kind.KERNEL and COLLECTIVE.search(name):
        return Kind.COLLECTIVE_KERNEL
    if kind in (Kind.CPU_OP, Kind.ANNOTATION):
        for beginnings, other in KIND_OF_NAME.items():
            if name.startswith(beginnings):
                return other
    return kind


def _nanoseconds(micros: Json, least: int = -MOST_NS) -> int:
    """Convert the text of a number of µs to whole ns, from `least` to 2**61."""
    if isinstance(micros, str):
        try:  # exact, where a float of µs since 1970 would be good to 0.25 µs
            nanoseconds = Decimal(micros[:99]).scaleb(3)
            if least <= nanoseconds < MOST_NS:
                return round(nanoseconds)
        except ArithmeticError:
            pass
    raise ValueError("its 'ts' or 'dur' is not a time in µs")


def _identifier(text: Json) -> int:
    """Return a correlation or external id, 0 where there is none."""
    if not isinstance(text, str) or len(text) > 18 or not text.isdecimal():
        return 0
    return int(text)
