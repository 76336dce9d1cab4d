"""Causal attention: the formula as torch writes it out (math) against the best fused kernel here."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from healthcheck.bench.scenario import Prepared, Scenario, Setup, Throughput, Unavailable, Variant
from healthcheck.exercise.attention import reference as exact
from healthcheck.exercise.compare import EPS_BFLOAT16, EPS_FLOAT32, bound, compare, generator
from healthcheck.measure import timer
from healthcheck.measure.stats import summarise

_TRIAL = timer.Plan(warmup_seconds=0.02, seconds=0.05, least=5, most=20, most_seconds=1.0)
_REASON_LENGTH = 90


@dataclass(frozen=True)
class Shape:
    heads: int
    length: int
    width: int


@dataclass(frozen=True)
class Candidate:
    """A fused kernel. `make` takes q, k, v and returns the call, or raises what the library raises."""

    label: str
    make: Callable[[Any, Any, Any], Callable[[], Any]]
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def shape(setup: Setup) -> Shape:
    if setup.on_gpu:
        return Shape(32, 2048, 128)
    return Shape(8, 512 if setup.short else 1024, 64)


def _workload(setup: Setup) -> str:
    s = shape(setup)
    kind = "bf16" if setup.on_gpu else "fp32"
    return f"B={setup.batch} H={s.heads} L={s.length} D={s.width} {kind} causal forward"


def _inputs(setup: Setup) -> tuple[Any, Any, Any]:
    import torch

    s = shape(setup)
    if setup.on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise Unavailable("needs bf16: Ampere (compute capability 8.0) or newer")
    dtype = torch.bfloat16 if setup.on_gpu else torch.float32
    draw = generator(setup.device, setup.seed)
    size = (setup.batch, s.heads, s.length, s.width)
    q, k, v = (torch.randn(*size, generator=draw, device=setup.device).to(dtype) for _ in range(3))
    return q, k, v


def _reference(setup: Setup, inputs: tuple[Any, Any, Any]) -> Any:
    """Head by head: all at once the scores alone would take gigabytes in float64."""
    import torch

    heads = [exact(*(t[:, h : h + 1] for t in inputs)).cpu() for h in range(inputs[0].shape[1])]
    return torch.cat(heads, 1)


def _tolerance(setup: Setup) -> float:
    return bound(EPS_BFLOAT16 if setup.on_gpu else EPS_FLOAT32, shape(setup).length)


def _throughput(setup: Setup, inputs: Any) -> Throughput:
    """Two products of L x L x D a head, half of each for a causal mask, two operations a term."""
    s = shape(setup)
    flops = 2 * 2 * setup.batch * s.heads * s.length**2 * s.width / 2
    return Throughput(flops / 1e12, "TFLOP/s") if setup.on_gpu else Throughput(flops / 1e9, "GFLOP/s")


def _math(setup: Setup, inputs: Any) -> Prepared:
    from torch.nn.attention import SDPBackend

    candidate = _sdpa("SDPA math", SDPBackend.MATH)
    return Prepared(candidate.make(*inputs), context=candidate.context)


def _fused(setup: Setup, inputs: Any) -> Prepared:
    """Try every fused kernel briefly, return the fastest that is right; all trials go into the notes."""
    if not setup.on_gpu:
        return Prepared(_sdpa("SDPA default").make(*inputs), label="SDPA default")
    watch = timer.stopwatch(setup.device)
    ref = _sdpa("SDPA default").make(*inputs)().double()
    tolerance = 2 * _tolerance(setup)  # both sides of this comparison are rounded
    times: dict[str, float] = {}
    notes: list[str] = []
    best: tuple[Candidate, Callable[[], Any]] | None = None
    for candidate in _candidates(notes):
        with candidate.context():
            try:
                call = candidate.make(*inputs)
                seen = compare(call(), ref, tolerance)
                if not seen.ok:
                    notes.append(f"{candidate.label}: WRONG, {seen.sentence}")
                    continue
                median = summarise(timer.measure(call, watch, _TRIAL)).median
            except (RuntimeError, NotImplementedError, ValueError) as error:
                notes.append(f"{candidate.label}: {' '.join(str(error).split())[:_REASON_LENGTH]}")
                continue
        if not times or median < min(times.values()):
            best = candidate, call
        times[candidate.label] = median
    if best is None:
        raise Unavailable(f"no fused attention kernel runs on this GPU ({'; '.join(notes)})")
    tried = ", ".join(f"{label} {ms:.3f} ms" for label, ms in sorted(times.items(), key=lambda x: x[1]))
    candidate, call = best
    return Prepared(
        call, label=f"fused: {candidate.label}", notes=(f"tried: {tried}", *notes), context=candidate.context
    )


def _candidates(notes: list[str]) -> Iterator[Candidate]:
    """The fused kernels that are installed; those that are not, or do not import, go into `notes`."""
    from torch.nn.attention import SDPBackend

    yield _sdpa("SDPA flash", SDPBackend.FLASH_ATTENTION)
    yield _sdpa("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION)
    yield _sdpa("SDPA efficient", SDPBackend.EFFICIENT_ATTENTION)
    for module, label, make in (
        ("flash_attn", "flash-attn", _flash_attn),
        ("xformers", "xFormers", _xformers),
    ):
        if importlib.util.find_spec(module) is None:
            notes.append(f"{label}: not part of this environment")
            continue
        try:
            yield Candidate(label, make())
        except ImportError as error:
            notes.append(f"{label}: does not import: {error}"[:_REASON_LENGTH])


def _sdpa(label: str, *backends: Any) -> Candidate:
    def make(q: Any, k: Any, v: Any) -> Callable[[], Any]:
        import torch

        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def context() -> contextlib.AbstractContextManager[Any]:
        from torch.nn.attention import sdpa_kernel

        return sdpa_kernel(list(backends)) if backends else contextlib.nullcontext()

    return Candidate(label, make, context)


def _flash_attn() -> Callable[[Any, Any, Any], Callable[[], Any]]:
    from flash_attn import flash_attn_func

    def make(*qkv: Any) -> Callable[[], Any]:
        arguments = _length_first(qkv)
        return lambda: flash_attn_func(*arguments, causal=True).transpose(1, 2)

    return make


def _xformers() -> Callable[[Any, Any, Any], Callable[[], Any]]:
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    def make(*qkv: Any) -> Callable[[], Any]:
        arguments, mask = _length_first(qkv), LowerTriangularMask()
        return lambda: memory_efficient_attention(*arguments, attn_bias=mask).transpose(1, 2)

    return make


def _length_first(qkv: tuple[Any, ...]) -> list[Any]:
    """(batch, length, heads, width), laid out so: a model that uses these libraries has it that way."""
    return [t.transpose(1, 2).contiguous() for t in qkv]


SCENARIO = Scenario(
    name="attention",
    title="Attention: math against the best fused kernel",
    has_cpu_form=True,
    variants=(Variant("math", "SDPA math", _math), Variant("fused", "fused kernel", _fused)),
    batch=lambda device, short: 1,
    workload=_workload,
    inputs=_inputs,
    reference=_reference,
    tolerance=_tolerance,
    throughput=_throughput,
)
