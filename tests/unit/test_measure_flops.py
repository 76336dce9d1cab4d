"""Formulas of work against values computed by hand."""

from __future__ import annotations

import pytest

from healthcheck.measure import flops
from healthcheck.measure.flops import Decoder

LLAMA_7B = Decoder(
    layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, intermediate=11008, vocabulary=32000
)
LLAMA_13B = Decoder(
    layers=40, hidden=5120, heads=40, kv_heads=40, head_dim=128, intermediate=13824, vocabulary=32000
)
# Two layers; per layer q 6x4, o 4x6, k and v 6x2, gate, up and down 6x10: 24 + 24 + 12 + 12 + 180 = 252
TINY = Decoder(layers=2, hidden=6, heads=2, kv_heads=1, head_dim=2, intermediate=10, vocabulary=7)


def test_a_product_multiplies_and_adds() -> None:
    assert flops.matmul(2, 3, 4) == 48
    assert flops.matmul(10_000, 10_000, 10_000) == 2 * 10**12


def test_a_linear_layer_is_a_product_without_its_bias() -> None:
    assert flops.linear(tokens=5, inputs=7, outputs=3) == 210


def test_the_first_convolution_of_resnet50_is_236_million_operations() -> None:
    # 112 x 112 outputs of 64 channels, each 3 x 7 x 7 multiplications and additions
    assert flops.convolution(1, 3, 64, (112, 112), (7, 7)) == 12_544 * 64 * 147 * 2 == 236_027_904


def test_groups_divide_a_convolution_and_dimensions_are_free() -> None:
    assert flops.convolution(2, 8, 8, (5,), (3,), groups=8) == 2 * 2 * 8 * 5 * 1 * 3
    assert flops.convolution(1, 2, 3, (4, 5, 6), (1, 1, 1)) == 2 * 3 * 120 * 2


def test_attention_is_two_products_and_causal_half_of_them() -> None:
    # 2 heads: (3, 8) x (8, 3) and (3, 3) x (3, 8), 144 each
    assert flops.attention_forward(1, 2, 3, 3, 8, causal=False) == 2 * 2 * 144
    assert flops.attention_forward(1, 2, 3, 3, 8, causal=True) == 2 * 144
    assert flops.attention_forward(1, 32, 2048, 2048, 128, causal=True) == 34_359_738_368


def test_causal_queries_at_the_end_of_many_keys_see_nearly_all() -> None:
    # 1 query sees 9.5 of 10 keys: the diagonal counts half
    assert flops.attention_forward(1, 1, 1, 10, 4, causal=False) == 160
    assert flops.attention_forward(1, 1, 1, 10, 4, causal=True) == 152


def test_causal_attention_of_more_queries_than_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="found 2 and 3"):
        flops.attention_forward(1, 1, 3, 2, 4, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_the_backward_pass_is_two_and_a_half_times_the_forward(causal: bool) -> None:
    forward, backward = (42, 105) if causal else (60, 150)
    assert flops.attention_forward(1, 1, 3, 5, 1, causal=causal) == forward
    assert flops.attention_backward(1, 1, 3, 5, 1, causal=causal) == backward


def test_a_tiny_decoder_is_added_up_by_hand() -> None:
    assert TINY.layer_weights == 252
    assert TINY.head_weights == 42
    # 3 prompts of 4 tokens: products 2 x 12 x 2 x 252; attention 2 layers x 4 x 3 x 2 heads x 16 x 2 / 2;
    # head 2 x 12 x 42
    assert flops.decoder_prefill(TINY, batch=3, tokens=4) == 12_096 + 768 + 1_008


def test_the_head_for_the_last_token_alone_costs_one_token() -> None:
    assert flops.decoder_prefill(TINY, batch=3, tokens=4, logits=1) == 12_096 + 768 + 252


def test_llama_2_7b_needs_28_tflop_for_a_prompt_of_2048() -> None:
    assert LLAMA_7B.layer_weights == 4 * 4096**2 + 3 * 4096 * 11008 == 202_375_168
    products = 2 * 2048 * (32 * 202_375_168 + 131_072_000)
    assert flops.decoder_prefill(LLAMA_7B, 1, 2048) == products + 32 * 34_359_738_368
    assert flops.decoder_prefill(LLAMA_7B, 1, 2048) == pytest.approx(28.16e12, rel=1e-3)


def test_a_copy_reads_and_writes() -> None:
    assert flops.copied_bytes(2**30) == 2_147_483_648


def test_a_token_of_a_tiny_decoder_moves_weights_and_cache() -> None:
    # 2 x 252 + 42 = 546 weights of 2 bytes; cache of 2 layers x 2 (k, v) x 1 head x 2 numbers x 2 bytes = 16
    # for each of 9 tokens read and 1 written
    assert TINY.cached_per_token == 8
    assert flops.decode_bytes_per_token(TINY, 9, weight_bytes=2, cache_bytes=2) == 1092 + 160


def test_a_batch_shares_the_weights_and_not_the_cache() -> None:
    assert flops.decode_bytes_per_token(TINY, 9, weight_bytes=2, cache_bytes=2, batch=4) == 273 + 160


def test_llama_2_13b_in_int8_is_bound_to_78_tokens_a_second_by_1008_gigabytes() -> None:
    moved = flops.decode_bytes_per_token(LLAMA_13B, 0, weight_bytes=1, cache_bytes=2)
    assert moved == 12_851_609_600 + 819_200
    assert 1008e9 / moved == pytest.approx(78.4, abs=0.05)
