"""d = a + b + c in one pass: a Triton kernel of our own. Three reads and one write a number.

The file stands alone (torch and triton only), so that it is also the body of a package that the
Hugging Face library `kernels` loads: see `labkit.experiments.own_kernel`.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024  # numbers that one program instance handles


@triton.jit
def _add3(a, b, c, d, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,) of this instance
    inside = place < n  # the last instance reaches over the end
    total = tl.load(a + place, inside) + tl.load(b + place, inside) + tl.load(c + place, inside)
    tl.store(d + place, total, inside)


def add3(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a + b + c; raises ValueError unless contiguous, of one shape, dtype and device."""
    for x in (a, b, c):
        if x.shape != a.shape or x.dtype != a.dtype or x.device != a.device:
            raise ValueError("add3 needs three tensors of one shape, dtype and device")
        if not x.is_contiguous():
            raise ValueError("add3 needs contiguous tensors")
    d = torch.empty_like(a)
    n = a.numel()
    if n:
        _add3[(triton.cdiv(n, BLOCK),)](a, b, c, d, n, BLOCK=BLOCK)
    return d
