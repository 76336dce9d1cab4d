"""Code generated while running: a Triton kernel, and torch.compile (Triton on a GPU, C++ on the CPU)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from healthcheck.exercise.base import Finding, Wrong, check
from healthcheck.measure.compare import EPS_FLOAT32, bound, generator
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]


def triton_add(device: str, op: Op | None = None) -> Finding:
    """A vector sum, masked at the end, into a buffer of NaN. `op` stands in for the kernel (x, y, out)."""
    import torch
    import triton

    from healthcheck.exercise.triton_kernel import add

    seed, n = fresh_seed(), 10_007
    draw = generator(device, seed)
    x, y = (torch.randn(n, generator=draw, device=device) for _ in range(2))
    out = torch.full((n,), math.nan, device=device)
    (op or add)(x, y, out)
    error = check("the Triton kernel", out, x.double() + y.double(), bound(EPS_FLOAT32))
    return Finding(
        f"vector sum of {n} numbers, relative error {error:.1g}",
        {"seed": seed, "version": triton.__version__},
    )


def _options() -> dict[str, Any]:
    """Spare a single kernel the precompiled header: 137 MB of cache and most of the time on the CPU."""
    import torch._inductor.config

    name = "cpp_cache_precompile_headers"
    return {name: False} if hasattr(torch._inductor.config, name) else {}


def torch_compile(device: str, op: Op | None = None) -> Finding:
    """A small function compiled whole and compared with float64. `op` stands in for torch.compile.

    A random number is part of the code, so that it is compiled now: a kernel cached while there still was a
    compiler proves nothing.
    """
    import torch
    import torch._dynamo.utils

    seed = fresh_seed()
    scale = 1.0 + seed / 2**33

    def function(x: Any, y: Any) -> Any:
        return torch.nn.functional.gelu(x * scale + y).sum(-1)

    draw = generator(device, seed)
    x, y = (torch.randn(64, 96, generator=draw, device=device) for _ in range(2))
    ref = function(x.double(), y.double())
    torch._dynamo.reset()
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    compiled = (op or torch.compile)(function, fullgraph=True, options=_options())
    error = check("the compiled function", compiled(x, y), ref, bound(EPS_FLOAT32, 96))
    if op is None and stats["unique_graphs"] == before:
        raise Wrong(
            "torch.compile compiled nothing: it is disabled by the environment",
            "unset TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE",
        )
    return Finding(f"compiled and compared, relative error {error:.1g}", {"seed": seed, "error": error})
