"""8-bit weights: bitsandbytes and torchao against the layer they replace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from healthcheck.exercise.base import Finding, Wrong, check
from healthcheck.measure.compare import EPS_INT8_WEIGHT, generator
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]
_BLOCKWISE = 0.02  # dynamic 8-bit code, 256 values a block: about 1 % on normal numbers
_WIDTH = 64


def bitsandbytes(device: str, op: Op | None = None) -> Finding:
    """Block-wise 8-bit quantisation and an 8-bit linear layer. `op` changes what comes back."""
    import bitsandbytes as library
    import torch

    seed = fresh_seed()
    draw = generator(device, seed)
    values = torch.randn(64, 256, generator=draw, device=device)
    packed, state = library.functional.quantize_blockwise(values)
    if packed.dtype is not torch.uint8:
        raise Wrong(f"bitsandbytes quantises to {packed.dtype}, not to 8 bits")
    back = library.functional.dequantize_blockwise(packed, state)
    errors = {
        "blockwise": check(
            "bitsandbytes' 8-bit round trip", op(back) if op else back, values.double(), _BLOCKWISE
        )
    }
    dtype = torch.float16 if device == "cuda" else torch.float32
    plain = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
    layer = library.nn.Linear8bitLt(_WIDTH, _WIDTH, bias=False, has_fp16_weights=False)
    layer.load_state_dict(plain.state_dict())
    layer = layer.to(device)
    x = torch.randn(32, _WIDTH, generator=draw, device=device).to(dtype)
    with torch.no_grad():
        ref = x.double() @ plain.weight.to(device).double().T
        errors["linear"] = check("bitsandbytes' 8-bit linear layer", layer(x), ref, EPS_INT8_WEIGHT)
    return _finding(seed, errors)


def torchao(device: str, op: Op | None = None) -> Finding:
    """A linear layer with 8-bit weights, which must really be 8 bits wide. `op` changes what it gives."""
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    seed = fresh_seed()
    draw = generator(device, seed)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    linear = torch.nn.Linear(_WIDTH, _WIDTH, bias=False).to(device=device, dtype=dtype)
    small = torch.nn.Sequential(copy.deepcopy(linear))
    quantize_(small, Int8WeightOnlyConfig())
    if type(small[0].weight.data) is type(linear.weight.data):
        raise Wrong("torchao's quantize_ leaves the weights as they were")
    x = torch.randn(32, _WIDTH, generator=draw, device=device).to(dtype)
    with torch.no_grad():
        out = small(x)
        ref = x.double() @ linear.weight.double().T
    error = check("torchao's 8-bit linear layer", op(out) if op else out, ref, EPS_INT8_WEIGHT)
    return _finding(seed, {"int8 weights": error})


def _finding(seed: int, errors: dict[str, float]) -> Finding:
    return Finding(
        f"{', '.join(errors)}: relative error up to {max(errors.values()):.1g}",
        {"seed": seed, "errors": errors},
    )
