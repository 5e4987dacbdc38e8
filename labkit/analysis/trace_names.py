"""What the names in a trace mean: categories old and new, operators, Tensor Core kernels.

The classes and most names are those of PyTorch's TensorBoard plugin (torch-tb-profiler 0.4.3,
BSD-3, removed upstream), read for its rules; later categories are those of Kineto's ActivityType.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

# The kinds of events that count. The first seven are the classes of a step, in their priority.
KERNEL, MEMCPY, MEMSET, COMMUNICATION, RUNTIME, DATALOADER, CPU_OP = range(7)
STEP, ELIGIBLE_OP, GRAPH_LAUNCH, COMMUNICATION_KERNEL = range(7, 11)
ON_DEVICE = (KERNEL, MEMCPY, MEMSET)

_ANNOTATION = -1  # a label on a stretch of host code: counts only where torch itself wrote it
CATEGORIES = {
    "kernel": KERNEL,
    "memcpy": MEMCPY,
    "gpu_memcpy": MEMCPY,
    "memset": MEMSET,
    "gpu_memset": MEMSET,
    "collective_comm": COMMUNICATION,
    "runtime": RUNTIME,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "hip_runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "mtia_runtime": RUNTIME,
    "glow_runtime": RUNTIME,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME,
    "operator": CPU_OP,
    "cpu_op": CPU_OP,
    "python": CPU_OP,
    "user_annotation": _ANNOTATION,
}

# Operators whose kernels can run on Tensor Cores: autocast's list as the plugin had it, and the
# names that newer versions of torch use for the same work.
ELIGIBLE = frozenset(
    f"aten::{name}"
    for name in [
        "_convolution",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "cudnn_convolution",
        "cudnn_convolution_transpose",
        "prelu",
        "addmm",
        "addmv",
        "addr",
        "matmul",
        "mm",
        "mv",
        "linear",
        "addbmm",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "linalg_multi_dot",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "addmm_",
        "cudnn_convolution_backward",
        "cudnn_convolution_backward_input",
        "cudnn_convolution_backward_weight",
        "cudnn_convolution_transpose_backward",
        "cudnn_convolution_transpose_backward_input",
        "cudnn_convolution_transpose_backward_weight",
        "convolution_backward",
        "cudnn_convolution_relu",
        "cudnn_convolution_add_relu",
        "baddbmm_",
        "_addmm_activation",
        "_scaled_mm",
        "_grouped_mm",
        "_scaled_grouped_mm",
        "_int_mm",
        "_cudnn_rnn",
        "_cudnn_rnn_backward",
        "_flash_attention_forward",
        "_flash_attention_backward",
        "_efficient_attention_forward",
        "_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_cudnn_attention_forward",
        "_cudnn_attention_backward",
    ]
) | frozenset(
    [
        "CudnnConvolutionBackward",
        "CudnnConvolutionTransposeBackward",
        "BmmBackward0",
        "MmBackward",
        "MvBackward",
        "AddmvBackward",
        "AddmmBackward",
        "AddbmmBackward",
    ]
)

# Kernels that run on Tensor Cores, by name: NVIDIA PyProf's list (prof/tc.py, used by the plugin)
# in the first two lines, then what Hopper and Blackwell libraries and attention kernels are called.
_TENSOR_CORE = re.compile(
    r"[hs]884|[hs]1688|hmma|i8816|16816|c1688|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel"
    r"|conv1x1|conv2d_c1_k1|direct_group|xmma_"
    r"|16832|gmma|tensorop|nvjet|tcgen05|flash_(?:fwd|bwd)|fmha_cutlass[FB]_b?f16|sdpa_sm\d"
)
# The list above has 'xmma_', which also names kernels of plain multiply-adds.
_NO_TENSOR_CORE = re.compile(r"ffma|simt")


def uses_tensor_cores(kernel: str) -> bool:
    """Tell from its name whether a kernel computes on Tensor Cores (sources in this module)."""
    return bool(_TENSOR_CORE.search(kernel)) and not _NO_TENSOR_CORE.search(kernel)


@lru_cache(maxsize=4096)
def kind_of(category: Any, name: Any) -> int | None:
    """Return what kind of event it is, None where it does not count; TypeError if not text."""
    if category is None:
        return None
    if not isinstance(category, str):
        raise TypeError
    kind = CATEGORIES.get(category.lower())
    if kind is None:
        return None
    if not isinstance(name, str):
        raise TypeError
    if kind == RUNTIME:
        return GRAPH_LAUNCH if "GraphLaunch" in name else RUNTIME
    if kind not in (CPU_OP, _ANNOTATION):
        return kind
    if name.startswith("ProfilerStep#"):
        return STEP
    if name.startswith(("enumerate(DataLoader)#", "enumerate(DataPipe)#")):
        return DATALOADER
    if name.startswith(("nccl:", "gloo:", "ucc:", "mpi:", "xccl:")):
        return COMMUNICATION
    if kind == _ANNOTATION:
        # A person's label spans waiting too; the optimizer's, which torch writes, is work.
        return CPU_OP if name.startswith("Optimizer.") else None
    return ELIGIBLE_OP if name in ELIGIBLE else CPU_OP
