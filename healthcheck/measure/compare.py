"""Is this tensor the right answer? One measure and one bound for every library.

The measure is the relative error ||out - ref|| / ||ref|| (Frobenius norm) against a reference in float64 that
is computed another way. The bound follows from the number format and the length of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EPS_FLOAT32 = 2.0**-23
EPS_TF32 = 2.0**-10  # also float16's
EPS_BFLOAT16 = 2.0**-7
EPS_INT8_WEIGHT = 2.0**-5  # 8-bit weights, one scale a row: about 1 % on random numbers


@dataclass(frozen=True)
class Comparison:
    """`error` is infinite, and `fault` says why, where no error can be computed."""

    error: float
    tolerance: float
    fault: str = ""

    @property
    def ok(self) -> bool:
        return not self.fault and self.error <= self.tolerance

    @property
    def sentence(self) -> str:
        if self.fault:
            return self.fault
        return f"relative error {self.error:.2g}, allowed {self.tolerance:.2g}"


def bound(eps: float, depth: int = 1, accumulate_eps: float = EPS_FLOAT32) -> float:
    """The largest relative error that rounding explains.

    `eps` is the spacing of the result's format at 1, `depth` the number of terms in each sum, and
    `accumulate_eps` the spacing of the format they are summed in. Rounding errors of a sum are random, so
    they grow with the root of its length. Rounding the result alone costs 0.3 `eps` in the norm; the factors
    leave room for rounded intermediates and reordered arithmetic, far below what a wrong kernel does.
    """
    return 2 * eps + 4 * math.sqrt(depth) * accumulate_eps


def eps_of(dtype: Any) -> float:
    """The spacing at 1 of a torch floating or complex dtype."""
    import torch

    return float(torch.finfo(dtype).eps)


def compare(out: Any, ref: Any, tolerance: float) -> Comparison:
    """Compare tensor `out` with the reference `ref` (float64 or complex128, same shape, any device)."""
    import torch

    if tuple(out.shape) != tuple(ref.shape):
        return Comparison(math.inf, tolerance, f"shape {tuple(out.shape)}, expected {tuple(ref.shape)}")
    wide = torch.complex128 if ref.is_complex() or out.is_complex() else torch.float64
    out = out.detach().to(device=ref.device, dtype=wide)
    ref = ref.detach().to(wide)
    if not bool(torch.isfinite(ref).all()):
        return Comparison(math.inf, tolerance, "the reference itself is not finite")
    bad = int((~torch.isfinite(out)).sum())
    if bad:
        return Comparison(math.inf, tolerance, f"{bad} of {out.numel()} values are NaN or infinite")
    size = float(torch.linalg.vector_norm(ref))
    if size == 0.0:
        return Comparison(math.inf, tolerance, "the reference is all zeros and proves nothing")
    return Comparison(float(torch.linalg.vector_norm(out - ref)) / size, tolerance)


def poison(device: str, like: Any) -> None:
    """Make memory that is handed out unwritten be NaN, for results of the size of tensor `like`.

    A kernel that is launched but never writes hands out old memory, which may well hold an old right answer.
    """
    poison_bytes(device, [like.numel() * like.element_size()])


def poison_bytes(device: str, sizes: Sequence[int], copies: int = 4) -> None:
    """Leave freed blocks of `sizes` bytes with the allocator, filled with 255: NaN in every float format."""
    import torch

    blocks = [
        torch.full((size,), 255, dtype=torch.uint8, device=device) for size in sizes for _ in range(copies)
    ]
    del blocks


def generator(device: str, seed: int) -> Any:
    """A torch generator on `device`, seeded."""
    import torch

    made = torch.Generator(device=device)
    made.manual_seed(seed)
    return made
