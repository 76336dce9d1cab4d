"""One GPU by itself: does it compute, copy and remember?"""

from __future__ import annotations

from typing import Any

from healthcheck.exercise import torch_math
from healthcheck.exercise.base import Finding, Wrong
from healthcheck.measure.compare import generator
from healthcheck.measure.seed import fresh_seed

_COPIED = 64 << 20  # bytes
_MOST, _SHARE = 1 << 30, 16  # of the memory: what is written and read again, at most and of what is free


def product_copy_and_memory(device: str, keep: Any = None) -> Finding:
    """A matrix product, a copy there and back, and a pattern that memory has to hold.

    `keep` stands in for the memory: it is given the pattern, and gives back what it then holds.
    """
    product = torch_math.matmul(device)
    seed = fresh_seed()
    _copy(device, seed)
    held = _remember(device, seed, keep)
    return Finding(
        f"product of {product.summary}; {_COPIED >> 20} MiB copied there and back, {held >> 20} MiB held",
        {"seed": seed},
    )


def _copy(device: str, seed: int) -> None:
    import torch

    sent = torch.randint(0, 256, (_COPIED,), generator=generator("cpu", seed), dtype=torch.uint8)
    back = sent.to(device).clone().cpu()
    wrong = int((back != sent).sum())
    if wrong:
        raise Wrong(f"{wrong} of {_COPIED} bytes came back changed from a copy to the GPU.", _REPLACE)


def _remember(device: str, seed: int, keep: Any) -> int:
    """Write a pattern into memory and read it again; return how many bytes."""
    import torch

    free = torch.cuda.mem_get_info()[0] if device == "cuda" else _COPIED * _SHARE
    size = min(_MOST, free // _SHARE) // 8 * 8
    pattern = torch.randint(-(2**62), 2**62, (size // 8,), generator=generator(device, seed), device=device)
    held = (keep or torch.clone)(pattern)
    again = torch.randint(-(2**62), 2**62, (size // 8,), generator=generator(device, seed), device=device)
    wrong = int((held != again).sum())
    if wrong:
        raise Wrong(f"{wrong} of {size // 8} words in the GPU's memory are not what was written.", _REPLACE)
    return size


_REPLACE = "nvidia-smi -q -d ECC,ROW_REMAPPER  # on the host: a GPU that forgets is to be replaced"
