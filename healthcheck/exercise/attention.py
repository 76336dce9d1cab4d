"""Attention by every library that offers it, against one written out in float64."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable
from typing import Any

from healthcheck.exercise.base import Finding, Skip, Wrong, check, need
from healthcheck.measure.compare import bound, eps_of, generator, poison
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]
SHAPE = (2, 4, 160, 64)  # batch, heads, length, width of a head; the length is no multiple of a block
AMPERE = (8, 0)
_NO_KERNEL = ("No available kernel", "No viable backend", "Invalid backend")


def reference(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of q, k, v (batch, heads, length, width), in float64; same shape."""
    import torch

    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def sdpa(device: str, op: Op | None = None) -> Finding:
    """torch's attention as it chooses itself, and on a GPU by each backend that can run there."""
    import torch

    seed = fresh_seed()
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v = _inputs(device, dtype, seed)
    ref, tolerance = reference(q, k, v), bound(eps_of(dtype), SHAPE[2])
    call = op or torch.nn.functional.scaled_dot_product_attention
    poison(device, q)
    errors = {"default": check("SDPA", call(q, k, v, is_causal=True), ref, tolerance)}
    unavailable = {}
    for name, backend in _backends() if device == "cuda" else ():
        with torch.nn.attention.sdpa_kernel(backend):
            poison(device, q)
            try:
                out = call(q, k, v, is_causal=True)
            except RuntimeError as error:
                if not any(text in str(error) for text in _NO_KERNEL):
                    raise
                unavailable[name] = str(error).splitlines()[0]
                continue
        errors[name] = check(f"SDPA's {name} backend", out, ref, tolerance)
    if device == "cuda" and not {"flash", "efficient", "cudnn"} & set(errors):
        raise Wrong(
            "no fused attention backend of torch runs on this GPU: flash, efficient and cuDNN all refuse"
        )
    return Finding(
        f"{', '.join(errors)}: relative error up to {max(errors.values()):.1g}",
        {"seed": seed, "errors": errors, "unavailable": unavailable},
    )


def flash_attn(device: str, op: Op | None = None) -> Finding:
    """flash-attn's causal forward; it wants (batch, length, heads, width)."""
    import flash_attn as library
    import torch

    _need_ampere()
    seed, errors = fresh_seed(), {}
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = _inputs(device, dtype, seed)
        poison(device, q)
        out = (op or library.flash_attn_func)(
            *(t.transpose(1, 2).contiguous() for t in (q, k, v)), causal=True
        )
        errors[str(dtype)] = check(
            f"flash-attn in {dtype}", out.transpose(1, 2), reference(q, k, v), bound(eps_of(dtype), SHAPE[2])
        )
    return Finding(
        f"causal forward, relative error up to {max(errors.values()):.1g}",
        {"seed": seed, "errors": errors, "version": library.__version__},
    )


def xformers(device: str, op: Op | None = None) -> Finding:
    """xFormers' attention as it chooses itself, and by each forward operator that takes these inputs."""
    import torch
    import xformers.ops as library
    from xformers.ops import fmha

    seed = fresh_seed()
    q, k, v = _inputs(device, torch.float16, seed)
    ref, tolerance = reference(q, k, v), bound(eps_of(torch.float16), SHAPE[2])
    arguments = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    mask = library.LowerTriangularMask()
    call = op or library.memory_efficient_attention
    poison(device, q)
    out = call(*arguments, attn_bias=mask)
    errors = {"default": check("xFormers attention", out.transpose(1, 2), ref, tolerance)}
    refused = {}
    for operator in (fmha.cutlass.FwOp, fmha.flash.FwOp):
        reasons = operator.not_supported_reasons(fmha.Inputs(*arguments, attn_bias=mask))
        if reasons:
            refused[operator.NAME] = "; ".join(reasons)
            continue
        poison(device, q)
        out = call(*arguments, attn_bias=mask, op=(operator, None))
        errors[operator.NAME] = check(f"xFormers' {operator.NAME}", out.transpose(1, 2), ref, tolerance)
    return Finding(
        f"{', '.join(errors)}: relative error up to {max(errors.values()):.1g}",
        {"seed": seed, "errors": errors, "refused": refused},
    )


def xformers_flash(device: str, name: str | None = None) -> Finding:
    """That xFormers offers flash-attn, and it is ours: needs no GPU. `name` stands in for what it offers."""
    need("flash_attn", "flash-attn")
    from xformers.ops.fmha import flash

    ours = importlib.metadata.version("flash_attn")
    expected, offered = f"fa2F@{ours}", name or flash.FwOp.NAME
    if offered != expected:
        raise Wrong(
            f"xFormers offers {offered} as its flash backend, not {expected} from the installed flash-attn",
            f"pip install --force-reinstall --no-deps flash-attn=={ours}  # the image's own wheel",
        )
    return Finding(f"offers {offered}, from the installed flash-attn", {"backend": offered})


def _inputs(device: str, dtype: Any, seed: int) -> list[Any]:
    import torch

    draw = generator(device, seed)
    return [torch.randn(*SHAPE, generator=draw, device=device).to(dtype) for _ in range(3)]


def _backends() -> tuple[tuple[str, Any], ...]:
    from torch.nn.attention import SDPBackend

    return (
        ("math", SDPBackend.MATH),
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("efficient", SDPBackend.EFFICIENT_ATTENTION),
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
    )


def _need_ampere() -> None:
    import torch

    capability = torch.cuda.get_device_capability()
    if capability < AMPERE:
        raise Skip(
            f"needs Ampere (compute capability 8.0) or newer; this GPU has {capability[0]}.{capability[1]}"
        )
