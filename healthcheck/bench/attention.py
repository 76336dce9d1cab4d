"""Attention: the formula as torch writes it out (math) against every fused kernel of the stack."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from healthcheck.bench.attention_backends import (
    CUDNN,
    EFFICIENT,
    FLASH,
    FLASH_ATTN,
    MATH,
    XFORMERS,
    Backend,
    refusals,
)
from healthcheck.bench.scenario import (
    Case,
    Cost,
    Machine,
    Prepared,
    Scenario,
    Setup,
    Throughput,
    Unavailable,
    Variant,
)
from healthcheck.measure import flops
from healthcheck.measure.compare import EPS_BFLOAT16, EPS_FLOAT32, EPS_TF32, bound, generator
from healthcheck.measure.timer import Plan

TOKENS = 16384  # batch x length, as in the FlashAttention papers
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
ALL = (MATH, FLASH, EFFICIENT, CUDNN, FLASH_ATTN, XFORMERS)
FEW = (MATH, FLASH, CUDNN, FLASH_ATTN)
_EPS = {"fp16": EPS_TF32, "bf16": EPS_BFLOAT16, "fp32": EPS_FLOAT32}  # fp16 has as many digits as TF32
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_GRID_PLAN = Plan(warmup_seconds=0.05, seconds=0.2, least=5, most=50, most_seconds=1.0)
_GRID_STEADY = 0.3
_SHORT_PLAN = Plan(warmup_seconds=0.05, seconds=0.15, least=5, most=50, most_seconds=2.0)
_SHORT_STEADY = 0.3
_ROWS = 1024  # queries at a time in the reference: a block of scores in float64 is then 128 MiB at most
# Bytes for each score that the math backend holds at once. It computes in float32: the scores, their softmax
# and a copy of that (4 bytes each), less what is freed in between, and room for the allocator.
_FORWARD_BYTES, _BACKWARD_BYTES = 12, 17


@dataclass(frozen=True)
class Form:
    """`width` is the head dimension. `backward` times the backward pass alone."""

    dtype: str
    heads: int
    length: int
    width: int
    causal: bool
    backward: bool

    @property
    def name(self) -> str:
        """As in "bf16-causal-fwd"."""
        parts = (self.dtype, "causal" if self.causal else "", "bwd" if self.backward else "fwd")
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Inputs:
    """Each (batch, heads, length, width); `grad` is that of the result, None for a forward pass."""

    q: Any
    k: Any
    v: Any
    grad: Any = None


def cases(machine: Machine) -> tuple[Case, ...]:
    """The grid of the FlashAttention papers on a GPU; one case where it has to be short."""
    if machine.on_gpu and machine.short:
        form = Form("bf16", heads=32, length=2048, width=128, causal=True, backward=False)
        return (Case(form.name, 1, _variants(FEW), form, _SHORT_PLAN, _SHORT_STEADY),)
    if machine.on_gpu:
        return tuple(_grid())
    form = Form("fp32", heads=8, length=512, width=64, causal=True, backward=False)
    if machine.short:
        return (Case(form.name, 1, _variants((MATH, FLASH)), form),)
    pair = (Form("fp32", 8, 1024, 64, True, backward) for backward in (False, True))
    return tuple(Case(f"{f.name}-L{f.length}", 1, _variants((MATH, FLASH)), f) for f in pair)


def _grid() -> Iterator[Case]:
    for dtype, causal, backward, length in product(("fp16", "bf16"), (False, True), (False, True), LENGTHS):
        form = Form(dtype, heads=16, length=length, width=128, causal=causal, backward=backward)
        name = f"{form.name}-L{length}"
        yield Case(name, TOKENS // length, _variants(ALL), form, _GRID_PLAN, _GRID_STEADY)


def _variants(backends: tuple[Backend, ...]) -> tuple[Variant, ...]:
    return tuple(Variant(b.name, b.label, _prepare(b)) for b in backends)


def _prepare(backend: Backend) -> Callable[[Setup, Inputs], Prepared]:
    def prepare(setup: Setup, inputs: Inputs) -> Prepared:
        if backend is MATH:
            return _prepare_math(setup, inputs)
        return _ready(backend, setup, inputs)

    return prepare


def _prepare_math(setup: Setup, inputs: Inputs) -> Prepared:
    """Only math holds all scores: where they do not fit it alone is left out, and no batch is halved."""
    import torch

    needed = score_bytes(setup.form, setup.batch)
    available = _free_bytes() if setup.on_gpu else None
    if available is not None and needed > available:
        raise Unavailable(shortage(needed, available))
    upcast = setup.form.dtype != "fp32"
    notes = ("computes in fp32, as torch does unless told otherwise",) if upcast else ()
    try:
        return _ready(MATH, setup, inputs, notes)
    except torch.cuda.OutOfMemoryError:
        said = shortage(needed, available or 0)
    raise Unavailable(said)


def _ready(backend: Backend, setup: Setup, inputs: Inputs, notes: tuple[str, ...] = ()) -> Prepared:
    """Run it once, so that a library which has nothing for this GPU or shape says so here."""
    import torch

    with refusals(backend.label), backend.context():
        call = attention_call(backend, setup.form, inputs)
        call()
        if setup.on_gpu:
            torch.cuda.synchronize()
    return Prepared(call, context=backend.context, notes=notes)


def attention_call(backend: Backend, form: Form, inputs: Inputs) -> Callable[[], Any]:
    """What is timed: one forward pass, or the backward pass of one that was made here.

    Its result is (batch, heads, length, width), or three of these: the gradients of q, k and v.
    """
    import torch

    operator = backend.load(form.causal)
    qkv = [backend.laid_out(t) for t in (inputs.q, inputs.k, inputs.v)]
    if not form.backward:
        return lambda: backend.heads_first(operator(*qkv))
    leaves = [t.detach().requires_grad_() for t in qkv]
    out, grad = operator(*leaves), backend.laid_out(inputs.grad)

    def backward() -> tuple[Any, ...]:
        grads = torch.autograd.grad(out, leaves, grad, retain_graph=True)
        return tuple(backend.heads_first(t) for t in grads)

    return backward


def score_bytes(form: Form, batch: int) -> int:
    """Bytes that the math backend needs for its length x length scores."""
    each = _BACKWARD_BYTES if form.backward else _FORWARD_BYTES
    return batch * form.heads * form.length**2 * each


def shortage(needed: int, available: int) -> str:
    """Why math is left out, in words."""
    return f"its scores need {needed / 2**30:.1f} GiB of GPU memory, {available / 2**30:.1f} GiB are free"


def _free_bytes() -> int:
    """What torch can still allocate: free on the GPU, or reserved and not in use."""
    import torch

    idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0]) + int(idle)


def _workload(setup: Setup) -> str:
    f = setup.form
    mask = "causal" if f.causal else "full"
    which = "backward" if f.backward else "forward"
    return f"B={setup.batch} H={f.heads} L={f.length} D={f.width} {f.dtype} {mask} {which}"


def _inputs(setup: Setup) -> Inputs:
    import torch

    f = setup.form
    if f.dtype == "bf16" and setup.on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise Unavailable("needs bf16: Ampere (compute capability 8.0) or newer")
    draw, dtype = generator(setup.device, setup.seed), getattr(torch, _DTYPES[f.dtype])
    size = (setup.batch, f.heads, f.length, f.width)

    def drawn() -> Any:
        return torch.randn(*size, generator=draw, device=setup.device).to(dtype)

    return Inputs(drawn(), drawn(), drawn(), drawn() if f.backward else None)


def compared_heads(setup: Setup) -> tuple[tuple[int, int], ...]:
    """The (batch, head) pairs whose results are judged: first, last, and one that is drawn by the seed."""
    every = list(product(range(setup.batch), range(setup.form.heads)))
    chosen = {every[0], every[-1], random.Random(setup.seed).choice(every)}
    return tuple(sorted(chosen))


def _compared(setup: Setup, result: Any) -> Any:
    """(pairs, length, width), or (3, pairs, length, width) of gradients.

    Those of q, k and v are of one size, so that no wrong one hides behind the others.
    """
    import torch

    if setup.form.backward:
        return torch.stack([_heads_of(setup, gradient) for gradient in result])
    return _heads_of(setup, result)


def _heads_of(setup: Setup, tensor: Any) -> Any:
    import torch

    return torch.stack([tensor[b, h] for b, h in compared_heads(setup)])


def _reference(setup: Setup, inputs: Inputs) -> Any:
    import torch

    f, answers = setup.form, []
    for b, h in compared_heads(setup):
        q, k, v = (t[b, h].double() for t in (inputs.q, inputs.k, inputs.v))
        if f.backward:
            answers.append(torch.stack(exact_backward(q, k, v, inputs.grad[b, h].double(), f.causal)))
        else:
            answers.append(exact_forward(q, k, v, f.causal))
    return torch.stack(answers, 1) if f.backward else torch.stack(answers)


def exact_forward(q: Any, k: Any, v: Any, causal: bool, *, rows: int = _ROWS) -> Any:
    """Attention of one head, q, k and v (length, width), in their own format, `rows` queries at a time."""
    import torch

    blocks = [p @ v[: p.shape[1]] for _, p in _probabilities(q, k, causal, rows)]
    return torch.cat(blocks)


def exact_backward(
    q: Any, k: Any, v: Any, grad: Any, causal: bool, *, rows: int = _ROWS
) -> tuple[Any, Any, Any]:
    """Gradients of q, k and v of one head, each (length, width), for the gradient `grad` of its result.

    With P = softmax(S), S = s Q K^T and O = P V: dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(dO O)),
    dQ = s dS K and dK = s dS^T Q (Dao et al., FlashAttention, 2022, appendix B).
    """
    import torch

    scale = 1 / math.sqrt(q.shape[-1])
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    for begin, p in _probabilities(q, k, causal, rows):
        queries, keys = slice(begin, begin + p.shape[0]), slice(p.shape[1])
        do = grad[queries]
        dv[keys] += p.T @ do
        dp = do @ v[keys].T
        row_sums = (do * (p @ v[keys])).sum(-1, keepdim=True)
        ds = p * (dp - row_sums) * scale
        dq[queries] = ds @ k[keys]
        dk[keys] += ds.T @ q[queries]
    return dq, dk, dv


def _probabilities(q: Any, k: Any, causal: bool, rows: int) -> Iterator[tuple[int, Any]]:
    """Of each block the first query and its probabilities (queries, keys), without keys ahead of them all."""
    import torch

    length = q.shape[0]
    for begin in range(0, length, rows):
        end = min(begin + rows, length)
        keys = end if causal else length
        scores = q[begin:end] @ k[:keys].T / math.sqrt(q.shape[-1])
        if causal:
            own = torch.arange(begin, end, device=q.device)[:, None]
            scores.masked_fill_(torch.arange(keys, device=q.device)[None] > own, -math.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        yield begin, weights / weights.sum(-1, keepdim=True)


def _tolerance(setup: Setup) -> float:
    return bound(_EPS[setup.form.dtype], setup.form.length)


def _flops(setup: Setup) -> float:
    f = setup.form
    count = flops.attention_backward if f.backward else flops.attention_forward
    return float(count(setup.batch, f.heads, f.length, f.length, f.width, causal=f.causal))


def _throughput(setup: Setup, inputs: Inputs) -> Throughput:
    work = _flops(setup)
    return Throughput(work / 1e12, "TFLOP/s") if setup.on_gpu else Throughput(work / 1e9, "GFLOP/s")


def _cost(setup: Setup, inputs: Inputs) -> Cost:
    return Cost(flops=_flops(setup), engine=setup.form.dtype)


SCENARIO = Scenario(
    name="attention",
    title="Attention: math against the fused kernels",
    has_cpu_form=True,
    at_start=True,
    cases=cases,
    workload=_workload,
    inputs=_inputs,
    reference=_reference,
    compared=_compared,
    tolerance=_tolerance,
    throughput=_throughput,
    cost=_cost,
)
