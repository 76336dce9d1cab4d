"""The formulas agree with what torch counts as it runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from healthcheck.measure import flops
from healthcheck.measure.flops import Decoder

pytestmark = pytest.mark.cpu


def test_a_product() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    assert flops.counted(lambda: a @ b) == flops.matmul(5, 3, 7)


def test_a_linear_layer_with_bias() -> None:
    layer, x = nn.Linear(7, 3), torch.randn(2, 4, 7)
    assert flops.counted(lambda: layer(x)) == flops.linear(tokens=8, inputs=7, outputs=3)


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2)])
def test_a_convolution(stride: int, padding: int, groups: int) -> None:
    layer = nn.Conv2d(4, 6, (3, 5), stride=stride, padding=padding, groups=groups)
    x = torch.randn(2, 4, 9, 11)
    size = tuple(layer(x).shape[2:])
    assert flops.counted(lambda: layer(x)) == flops.convolution(2, 4, 6, size, (3, 5), groups=groups)


@pytest.mark.parametrize("backend", [nn.attention.SDPBackend.MATH, nn.attention.SDPBackend.FLASH_ATTENTION])
def test_attention(backend: nn.attention.SDPBackend) -> None:
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)

    def attend() -> torch.Tensor:
        with nn.attention.sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    assert flops.counted(attend) == flops.attention_forward(2, 3, 5, 7, 8, causal=False)


def test_fused_attention_is_counted_whole_where_causal() -> None:
    q, k, v = (torch.randn(2, 3, 6, 8) for _ in range(3))
    whole = flops.attention_forward(2, 3, 6, 6, 8, causal=False)
    assert flops.counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) == whole


def test_the_backward_pass_of_fused_attention() -> None:
    q, k, v = (torch.randn(2, 3, 6, 8, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v)
    counted = flops.counted(lambda: out.sum().backward())
    assert counted == flops.attention_backward(2, 3, 6, 6, 8, causal=False)


def test_a_decoder_of_torch_layers() -> None:
    """Torch counts causal attention whole and the formula half: that half is all the difference."""
    d = Decoder(layers=2, hidden=12, heads=4, kv_heads=2, head_dim=4, intermediate=20, vocabulary=11)
    batch, tokens = 2, 6
    layers = [_Layer(d) for _ in range(d.layers)]
    head = nn.Linear(d.hidden, d.vocabulary, bias=False)
    x = torch.randn(batch, tokens, d.hidden)

    def forward(logits: int) -> torch.Tensor:
        y = x
        for layer in layers:
            y = layer(y)
        out: torch.Tensor = head(y[:, -logits:])
        return out

    masked = d.layers * flops.attention_forward(batch, d.heads, tokens, tokens, d.head_dim, causal=True)
    assert flops.counted(lambda: forward(tokens)) == flops.decoder_prefill(d, batch, tokens) + masked
    assert flops.counted(lambda: forward(1)) == flops.decoder_prefill(d, batch, tokens, logits=1) + masked


class _Layer(nn.Module):
    """Attention with shared keys and values, and a gated MLP."""

    def __init__(self, d: Decoder) -> None:
        super().__init__()
        self.d = d
        queries, keys = d.heads * d.head_dim, d.kv_heads * d.head_dim
        self.q, self.o = nn.Linear(d.hidden, queries, bias=False), nn.Linear(queries, d.hidden, bias=False)
        self.k, self.v = (nn.Linear(d.hidden, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(d.hidden, d.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(d.intermediate, d.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            f(x).view(batch, tokens, -1, self.d.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        shared = self.d.heads // self.d.kv_heads
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(out.transpose(1, 2).reshape(batch, tokens, -1))
        result: torch.Tensor = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return result
