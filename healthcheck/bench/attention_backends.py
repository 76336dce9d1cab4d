"""Libraries that offer attention, asked in one way. Importable without torch."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from healthcheck.bench.scenario import Unavailable
from healthcheck.exercise.base import ABSENT

Operator = Callable[[Any, Any, Any], Any]
_REASON_LENGTH = 160
# How the libraries say that they have no kernel for this GPU, number format or shape.
_REFUSALS = (
    "no available kernel",
    "no viable backend",
    "invalid backend",
    "no kernel image",
    "invalid device function",
    "not supported",
    "only supports",
    "no operator found",
    "no valid execution plans",
    "no execution plans",
)


@dataclass(frozen=True)
class Backend:
    """One library's attention.

    `load` takes whether the mask is causal and returns the operator of q, k and v, each (batch, heads,
    length, width), or (batch, length, heads, width) where `length_first`. `sdpa` is the name of the
    `torch.nn.attention.SDPBackend` that torch is held to while it runs.
    """

    name: str
    label: str
    load: Callable[[bool], Operator]
    length_first: bool = False
    sdpa: str = ""

    def context(self) -> AbstractContextManager[Any]:
        """What has to be entered around the operator."""
        if not self.sdpa:
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel([getattr(SDPBackend, self.sdpa)])

    def laid_out(self, tensor: Any) -> Any:
        """`tensor` (batch, heads, length, width) as the library's users have it in memory."""
        return tensor.transpose(1, 2).contiguous() if self.length_first else tensor

    def heads_first(self, tensor: Any) -> Any:
        """A result of the library as a view (batch, heads, length, width)."""
        return tensor.transpose(1, 2) if self.length_first else tensor


def need(module: str, label: str) -> None:
    """Raise Unavailable when `module` is not installed. One that is broken is no reason to skip."""
    if importlib.util.find_spec(module) is None:
        raise Unavailable(f"{label} is {ABSENT}")


@contextlib.contextmanager
def refusals(label: str) -> Iterator[None]:
    """Turn a library's refusal of this GPU, number format or shape into Unavailable, in one line.

    torch gives the reasons why a kernel was not chosen as warnings, so they are collected.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if not refused(error):
                raise
            reasons = [str(error), *(str(w.message) for w in said)]
            raise Unavailable(f"{label}: {_told(reasons)}") from None


def refused(error: BaseException) -> bool:
    """Whether `error` says that a library has nothing for what it was asked."""
    return isinstance(error, NotImplementedError) or any(text in str(error).lower() for text in _REFUSALS)


def _told(reasons: list[str]) -> str:
    """The first line of each reason that tells something."""
    lines = [" ".join(reason.strip().splitlines()[0].split()) for reason in reasons if reason.strip()]
    telling = [line.split(" (Triggered internally")[0] for line in lines if "not used because" not in line]
    return "; ".join(dict.fromkeys(telling))[:_REASON_LENGTH]


def _sdpa(causal: bool) -> Operator:
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda q, k, v: attention(q, k, v, is_causal=causal)


def _flash_attn(causal: bool) -> Operator:
    need("flash_attn", "flash-attn")
    from flash_attn import flash_attn_func

    return lambda q, k, v: flash_attn_func(q, k, v, causal=causal)


def _xformers(causal: bool) -> Operator:
    need("xformers", "xFormers")
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    mask = LowerTriangularMask() if causal else None
    return lambda q, k, v: memory_efficient_attention(q, k, v, attn_bias=mask)


MATH = Backend("math", "SDPA math", _sdpa, sdpa="MATH")
FLASH = Backend("flash", "SDPA flash", _sdpa, sdpa="FLASH_ATTENTION")
EFFICIENT = Backend("efficient", "SDPA efficient", _sdpa, sdpa="EFFICIENT_ATTENTION")
CUDNN = Backend("cudnn", "SDPA cuDNN", _sdpa, sdpa="CUDNN_ATTENTION")
FLASH_ATTN = Backend("flash-attn", "flash-attn", _flash_attn, length_first=True)
XFORMERS = Backend("xformers", "xFormers", _xformers, length_first=True)
