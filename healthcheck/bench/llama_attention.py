"""Prefill of a Llama-2-7B: its attention written out (eager) against fused kernels and compiled code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from healthcheck.bench.attention import exact_forward
from healthcheck.bench.attention_backends import need, refusals
from healthcheck.bench.scenario import (
    Case,
    Compilation,
    Cost,
    Machine,
    Prepared,
    Scenario,
    Setup,
    Throughput,
    Unavailable,
    Variant,
)
from healthcheck.exercise.base import ABSENT
from healthcheck.measure import flops
from healthcheck.measure.compare import EPS_FLOAT32, EPS_TF32, bound, generator
from healthcheck.measure.flops import Decoder

SEQUENCES = 1  # the article does not say how many it had
LENGTH = 2048
LLAMA_2_7B = Decoder(
    layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, intermediate=11008, vocabulary=32000
)
_SHORT_LAYERS = 4
_FEWEST_LAYERS = 2
_TINY = Decoder(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, intermediate=172, vocabulary=256)
_SMALL = Decoder(layers=4, hidden=256, heads=8, kv_heads=8, head_dim=32, intermediate=688, vocabulary=1000)
_POSITIONS = 4  # whose logits are compared
# What eager needs beside the weights, of which 2 GiB are four tensors of scores, and what a reference
# in float32 of one layer needs.
_BESIDE_WEIGHTS = 4 * 2**30
_USABLE = 0.92  # of the GPU's memory: the rest is CUDA's own and fragments
_EPS = {"fp16": EPS_TF32, "fp32": EPS_FLOAT32}  # fp16 has as many digits as TF32
_DTYPES = {"fp16": "float16", "fp32": "float32"}
_BYTES = {"fp16": 2, "fp32": 4}
_ROPE_BASE = 10000.0
_NORM_EPS = 1e-5  # Llama 2's


@dataclass(frozen=True)
class Form:
    """A decoder and its prompt. `all_layers` is how many the whole model has."""

    decoder: Decoder
    length: int
    dtype: str
    all_layers: int
    model: str

    @property
    def reduced(self) -> bool:
        return self.decoder.layers < self.all_layers


@dataclass(frozen=True)
class Inputs:
    """One set of weights for all variants; `tokens` (batch, length) are drawn at random."""

    model: Any
    tokens: Any


def cases(machine: Machine) -> tuple[Case, ...]:
    form = form_of(machine)
    name = f"prefill-{form.length}{'-reduced' if form.reduced else ''}"
    variants = [EAGER, SDPA]
    if machine.on_gpu:
        variants.append(FLASH_ATTN)
    if not machine.short:  # compiling takes longer than a short form may
        variants.append(COMPILED)
    return (Case(name, SEQUENCES, tuple(variants), form),)


def form_of(machine: Machine) -> Form:
    """Llama-2-7B with as many of its layers as fit; a small decoder on the CPU."""
    if not machine.on_gpu:
        decoder = _TINY if machine.short else _SMALL
        return Form(decoder, 64 if machine.short else 256, "fp32", decoder.layers, "small Llama")
    layers = _SHORT_LAYERS if machine.short else LLAMA_2_7B.layers
    if machine.memory is not None:
        layers = min(layers, layers_that_fit(machine.memory))
    decoder = replace(LLAMA_2_7B, layers=layers)
    return Form(decoder, LENGTH, "fp16", LLAMA_2_7B.layers, "Llama-2-7B")


def layers_that_fit(memory: int) -> int:
    """Layers of Llama-2-7B in fp16 that `memory` bytes hold beside all else; never fewer than two."""
    size = _BYTES["fp16"]
    embedding_and_head = 2 * LLAMA_2_7B.head_weights * size
    left = memory * _USABLE - _BESIDE_WEIGHTS - embedding_and_head
    return max(_FEWEST_LAYERS, int(left // (LLAMA_2_7B.layer_weights * size)))


def _workload(setup: Setup) -> str:
    f = setup.form
    d = f.decoder
    layers = f"{d.layers} of its {f.all_layers} layers" if f.reduced else f"{d.layers} layers"
    sequences = f"{setup.batch} sequence{'s' if setup.batch > 1 else ''} of {f.length} tokens"
    return f"{f.model} shape, {layers}, hidden {d.hidden}, {f.dtype}: {sequences}, no KV cache kept"


def _inputs(setup: Setup) -> Inputs:
    """Random weights as the configuration draws them; nothing is downloaded."""
    if importlib.util.find_spec("transformers") is None:
        raise Unavailable(f"needs transformers, which is {ABSENT}")
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    made: Any = AutoModelForCausalLM

    f = setup.form
    d = f.decoder
    config = LlamaConfig(
        vocab_size=d.vocabulary,
        hidden_size=d.hidden,
        intermediate_size=d.intermediate,
        num_hidden_layers=d.layers,
        num_attention_heads=d.heads,
        num_key_value_heads=d.kv_heads,
        max_position_embeddings=max(f.length, LENGTH),
        rms_norm_eps=_NORM_EPS,
    )
    torch.manual_seed(setup.seed)
    with torch.device(setup.device):
        model = made.from_config(config, dtype=getattr(torch, _DTYPES[f.dtype]))
    draw = generator(setup.device, setup.seed)
    size = (setup.batch, f.length)
    tokens = torch.randint(d.vocabulary, size, generator=draw, device=setup.device)
    return Inputs(model.eval().requires_grad_(False), tokens)


def _eager(setup: Setup, inputs: Inputs) -> Prepared:
    return _by("eager", setup, inputs)


def _sdpa(setup: Setup, inputs: Inputs) -> Prepared:
    return _by("sdpa", setup, inputs)


def _flash_attn(setup: Setup, inputs: Inputs) -> Prepared:
    """Looked for here: without flash-attn transformers may want to download a kernel instead."""
    need("flash_attn", "flash-attn")
    return _by("flash_attention_2", setup, inputs)


def _by(implementation: str, setup: Setup, inputs: Inputs) -> Prepared:
    call = _call(inputs.model, inputs.tokens)
    with refusals(implementation), attending_by(inputs.model, implementation):
        call()
        _wait(setup)
    return Prepared(call, context=lambda: attending_by(inputs.model, implementation))


def _compiled(setup: Setup, inputs: Inputs) -> Prepared:
    """torch.compile of the form with SDPA. Nothing is compiled for another length: `dynamic` is off."""
    import torch

    call = _call(torch.compile(inputs.model, dynamic=False), inputs.tokens)
    with attending_by(inputs.model, "sdpa"):
        compilation = _compilation(setup, call)
    return Prepared(call, compilation=compilation, context=lambda: attending_by(inputs.model, "sdpa"))


def _compilation(setup: Setup, call: Callable[[], Any]) -> Compilation:
    """Seconds of the first call with an empty cache, then of one that finds on disk what that one wrote."""
    import torch

    with _empty_cache():
        torch._dynamo.reset()
        cold = _seconds(setup, call)
        torch._dynamo.reset()
        _forget_compiled()
        return Compilation(cold, _seconds(setup, call))


@contextlib.contextmanager
def _empty_cache() -> Iterator[None]:
    """A cache of its own, beside the usual one: that directory is known to allow execution."""
    from torch._inductor import utils

    parent = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or None
    if parent is not None:
        Path(parent).mkdir(parents=True, exist_ok=True)
    fresh: Any = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache  # newer and older name
    with fresh(dir=parent):
        yield


def _forget_compiled() -> None:
    """Drop what Inductor keeps in this process, so that only its files are left."""
    from torch._inductor import utils

    forget: Any = getattr(utils, "clear_caches", None) or utils.clear_inductor_caches
    forget()


def _seconds(setup: Setup, call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    _wait(setup)
    return time.perf_counter() - began


def _wait(setup: Setup) -> None:
    if setup.on_gpu:
        import torch

        torch.cuda.synchronize()


def _call(model: Any, tokens: Any) -> Callable[[], Any]:
    """A forward pass; its result are the logits (batch, length, vocabulary)."""
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return model(input_ids=tokens, use_cache=False).logits

    return call


@contextlib.contextmanager
def attending_by(model: Any, implementation: str) -> Iterator[None]:
    """Let `model` compute attention by `implementation` (a name of transformers), then as before."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def positions(length: int) -> list[int]:
    """The tokens whose logits are compared: evenly spaced, the last one among them."""
    return [length * (i + 1) // _POSITIONS - 1 for i in range(_POSITIONS)]


def _compared(setup: Setup, result: Any) -> Any:
    return result[:, positions(setup.form.length)]


def _reference(setup: Setup, inputs: Inputs) -> Any:
    """Logits (batch, positions, vocabulary) in float32, of the same weights, written out."""
    import torch

    with torch.inference_mode():
        weights = {name: tensor.detach() for name, tensor in inputs.model.state_dict().items()}
        return torch.stack([_logits(setup.form, weights, tokens) for tokens in inputs.tokens])


def _logits(form: Form, weights: dict[str, Any], tokens: Any) -> Any:
    """One sequence. Each layer's weights become float32 when it is their turn, so that they fit."""
    x = weights["model.embed_tokens.weight"][tokens].float()
    for i in range(form.decoder.layers):
        prefix = f"model.layers.{i}."
        layer = {n.removeprefix(prefix): w.float() for n, w in weights.items() if n.startswith(prefix)}
        x = x + _attention(form, layer, _rms_norm(x, layer["input_layernorm.weight"]))
        x = x + _swiglu(layer, _rms_norm(x, layer["post_attention_layernorm.weight"]))
    x = _rms_norm(x[positions(form.length)], weights["model.norm.weight"].float())
    return x @ weights["lm_head.weight"].float().T


def _rms_norm(x: Any, weight: Any) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + _NORM_EPS).sqrt() * weight


def _swiglu(layer: dict[str, Any], x: Any) -> Any:
    gate, up = x @ layer["mlp.gate_proj.weight"].T, x @ layer["mlp.up_proj.weight"].T
    return (gate * gate.sigmoid() * up) @ layer["mlp.down_proj.weight"].T


def _attention(form: Form, layer: dict[str, Any], x: Any) -> Any:
    """Causal self-attention of x (length, hidden), head by head."""
    import torch

    d = form.decoder
    q, k, v = (
        (x @ layer[f"self_attn.{name}_proj.weight"].T).view(form.length, -1, d.head_dim).transpose(0, 1)
        for name in "qkv"
    )
    q, k = _rotated(q), _rotated(k)
    group = d.heads // d.kv_heads
    heads = [exact_forward(q[h], k[h // group], v[h // group], causal=True) for h in range(d.heads)]
    return torch.cat(heads, -1) @ layer["self_attn.o_proj.weight"].T


def _rotated(x: Any) -> Any:
    """Rotary embedding of x (heads, length, width): component i of the first half turns with i of the second,
    by the position times base^(-2i / width)."""
    import torch

    length, width = x.shape[-2:]
    rates = _ROPE_BASE ** (-2 * torch.arange(width // 2, dtype=torch.float64, device=x.device) / width)
    angles = torch.arange(length, dtype=torch.float64, device=x.device)[:, None] * rates
    cos, sin = angles.cos().float(), angles.sin().float()
    first, second = x[..., : width // 2], x[..., width // 2 :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _tolerance(setup: Setup) -> float:
    """Every layer rounds twice on its way into the sum; such errors add up as their squares do."""
    f = setup.form
    return bound(_EPS[f.dtype], f.decoder.intermediate) * float((2 * f.decoder.layers) ** 0.5)


def _throughput(setup: Setup, inputs: Inputs) -> Throughput:
    return Throughput(float(setup.batch * setup.form.length), "tokens/s")


def _cost(setup: Setup, inputs: Inputs) -> Cost:
    f = setup.form
    return Cost(flops=float(flops.decoder_prefill(f.decoder, setup.batch, f.length)), engine=f.dtype)


EAGER = Variant("eager", "eager", _eager)
SDPA = Variant("sdpa", "SDPA", _sdpa)
FLASH_ATTN = Variant("flash-attn", "FlashAttention-2", _flash_attn)
COMPILED = Variant("compiled", "SDPA + torch.compile", _compiled)

SCENARIO = Scenario(
    name="llama-attention",
    title="Llama-2-7B prefill: eager attention against fused",
    has_cpu_form=True,
    cases=cases,
    workload=_workload,
    inputs=_inputs,
    reference=_reference,
    compared=_compared,
    tolerance=_tolerance,
    throughput=_throughput,
    cost=_cost,
)
