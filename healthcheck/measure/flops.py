"""Work counted: floating-point operations and bytes that a computation needs at least.

Importable without torch. A multiplication and an addition are two operations; what is not a matrix product
(softmax, norms, activations, biases) is left out, as in the counts that peaks and papers go by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decoder:
    """The shape of a Llama-like decoder: attention and a gated MLP (gate, up, down) per layer, then a head.

    `hidden` and `intermediate` are widths, `heads` those of the queries, `kv_heads` those of keys and values.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's products: queries, keys, values, output, gate, up and down."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * queries + 2 * keys + 3 * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Weights of the product that gives the logits."""
        return self.hidden * self.vocabulary

    @property
    def cached_per_token(self) -> int:
        """Numbers that the key/value cache holds for one token of one sequence."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def matmul(m: int, n: int, k: int) -> int:
    """FLOPs of (m, k) times (k, n)."""
    return 2 * m * n * k


def linear(tokens: int, inputs: int, outputs: int) -> int:
    """FLOPs of a linear layer over `tokens` rows."""
    return matmul(tokens, outputs, inputs)


def convolution(
    batch: int, inputs: int, outputs: int, size: Sequence[int], kernel: Sequence[int], *, groups: int = 1
) -> int:
    """FLOPs of a convolution computed directly: `inputs` and `outputs` channels, `size` of the *output*
    and of the `kernel` per dimension.

    Padding counts as data. Winograd's algorithm, which cuDNN may take for 3x3 in fp32, does fewer.
    """
    return 2 * batch * outputs * math.prod(size) * (inputs // groups) * math.prod(kernel)


def attention_forward(  # noqa: PLR0917 (shapes in their usual order)
    batch: int, heads: int, q: int, kv: int, head_dim: int, causal: bool
) -> int:
    """FLOPs of attention of `q` queries to `kv` keys, `heads` those of the queries.

    Causal, the last query sees all keys, and the diagonal counts half, so that it is half of the work where
    q = kv: FlashAttention's convention, slightly less than what has to be done. ValueError for causal
    attention with more queries than keys.
    """
    if not causal:
        return 4 * batch * heads * q * kv * head_dim
    if q > kv:
        raise ValueError(f"causal attention needs at least as many keys as queries; found {kv} and {q}")
    return 2 * batch * heads * q * (2 * kv - q) * head_dim


def attention_backward(  # noqa: PLR0917 (shapes in their usual order)
    batch: int, heads: int, q: int, kv: int, head_dim: int, causal: bool
) -> int:
    """FLOPs of the backward pass alone: five products, of which one is computed again, against the
    forward's two. FlashAttention's convention."""
    return attention_forward(batch, heads, q, kv, head_dim, causal=causal) * 5 // 2


def decoder_prefill(decoder: Decoder, batch: int, tokens: int, logits: int | None = None) -> int:
    """FLOPs of the forward pass over `batch` prompts of `tokens` each, with causal attention.

    `logits` is for how many tokens of each prompt the head is computed: None = all of them, 1 = the last
    one, which is all that generation needs.
    """
    d = decoder
    products = 2 * batch * tokens * d.layers * d.layer_weights
    attention = d.layers * attention_forward(batch, d.heads, tokens, tokens, d.head_dim, causal=True)
    head = linear(batch * (tokens if logits is None else logits), d.hidden, d.vocabulary)
    return products + attention + head


def copied_bytes(size: int) -> int:
    """Bytes moved by a copy of `size` bytes within one memory: each is read and written."""
    return 2 * size


def decode_bytes_per_token(
    decoder: Decoder, context: int, weight_bytes: float, cache_bytes: float, batch: int = 1
) -> float:
    """Bytes of memory traffic per token that is generated after `context` tokens, at least.

    One step makes one token for each of `batch` sequences: it reads every weight of the products once, and
    for each sequence reads the cache and writes a token to it. `weight_bytes` and `cache_bytes` are those of
    one number (fp16: 2, int8: 1). Embedding rows, norms and activations are left out.
    """
    weights = (decoder.layers * decoder.layer_weights + decoder.head_weights) * weight_bytes
    cache = decoder.cached_per_token * (context + 1) * cache_bytes
    return weights / batch + cache


def counted(call: Callable[[], Any]) -> float:
    """FLOPs of one eager `call` by torch's FlopCounterMode.

    It counts matrix products, convolutions and torch's own attention, this one whole even where causal. What
    it has no formula for, such as a kernel of another library, counts as nothing.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    fused = {  # torch knows those of the GPU only
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_forward,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
    }
    with FlopCounterMode(display=False, custom_mapping=fused) as mode:
        call()
    return float(mode.get_total_flops())


def _fused_forward(q: Sequence[int], k: Sequence[int], *others: Any, **more: Any) -> int:
    """From the shapes (batch, heads, length, head_dim)."""
    batch, heads, length, head_dim = q
    return attention_forward(batch, heads, length, k[-2], head_dim, causal=False)


def _fused_backward(
    gradient: Sequence[int], q: Sequence[int], k: Sequence[int], *others: Any, **more: Any
) -> int:
    batch, heads, length, head_dim = q
    return attention_backward(batch, heads, length, k[-2], head_dim, causal=False)
