"""The model libraries, each with something tiny and random: nothing is ever downloaded."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

from healthcheck.exercise.base import Finding, Wrong, check
from healthcheck.measure.compare import EPS_FLOAT32, EPS_TF32, bound, generator
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]


def transformers(device: str, op: Op | None = None) -> Finding:
    """A two-layer Llama, SDPA and eager attention, against itself in float64. `op` changes the logits."""
    import torch
    import transformers as library

    seed = fresh_seed()
    torch.manual_seed(seed)
    config = library.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    config._attn_implementation = "eager"
    build: Op = library.LlamaForCausalLM
    exact = build(config).eval()
    weights = copy.deepcopy(exact.state_dict())
    exact = exact.double()
    tokens = torch.randint(0, config.vocab_size, (2, 24), generator=generator("cpu", seed))
    errors = {}
    with torch.no_grad():
        ref = exact(tokens).logits
        for kind in ("sdpa", "eager"):
            config = copy.deepcopy(config)
            config._attn_implementation = kind
            model = build(config).eval()
            model.load_state_dict(weights)
            logits = model.to(device)(tokens.to(device)).logits
            logits = op(logits) if op else logits
            errors[kind] = check(f"Llama with {kind} attention", logits, ref.to(device), _tolerance(device))
    return Finding(
        f"tiny Llama, SDPA and eager: relative error up to {max(errors.values()):.1g}",
        {"seed": seed, "errors": errors},
    )


def diffusers(device: str, op: Op | None = None) -> Finding:
    """A tiny conditional UNet against itself in float64 on the CPU. `op` changes the result."""
    import diffusers as library
    import torch

    seed = fresh_seed()
    torch.manual_seed(seed)
    build: Op = library.UNet2DConditionModel
    model = build(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()
    exact = copy.deepcopy(model).double()
    sample, prompt, step = torch.randn(2, 4, 16, 16), torch.randn(2, 7, 32), torch.tensor([7, 420])
    with torch.no_grad():
        ref = exact(sample.double(), step, prompt.double()).sample
        out = model.to(device)(sample.to(device), step.to(device), prompt.to(device)).sample
    error = check("the tiny UNet", op(out) if op else out, ref.to(device), _tolerance(device))
    return Finding(f"tiny UNet, relative error {error:.1g}", {"seed": seed, "error": error})


def accelerate(device: str, op: Op | None = None) -> Finding:
    """One training step through Accelerator equals the step worked out by hand. `op` changes the weights."""
    import torch
    from accelerate import Accelerator

    seed, rate = fresh_seed(), 0.1
    torch.manual_seed(seed)
    layer = torch.nn.Linear(8, 1, bias=False)
    weight, x = layer.weight.detach().double().clone(), torch.randn(16, 8)
    gradient = 2 * (x.double() @ weight.T).T @ x.double() / len(x)  # of mean((xw)^2)
    accelerator = Accelerator(cpu=device == "cpu")
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=rate))
    accelerator.backward(model(x.to(accelerator.device)).square().mean())
    optimizer.step()
    after = accelerator.unwrap_model(model).weight.detach().cpu()
    error = check(
        "a training step by Accelerate",
        op(after) if op else after,
        weight - rate * gradient,
        _tolerance(device),
    )
    return Finding(f"one training step, relative error {error:.1g}", {"seed": seed, "error": error})


def safetensors(device: str, op: Op | None = None) -> Finding:
    """Tensors come back bit for bit. `op` stands in for safetensors.torch.load."""
    import torch
    from safetensors.torch import load, save

    seed = fresh_seed()
    values = torch.randn(5, 7, generator=generator(device, seed), device=device)
    tensors = {"float32": values, "bfloat16": values.bfloat16(), "int64": (values * 100).long()}
    back = (op or load)(save(tensors))
    wrong = [
        name for name, t in tensors.items() if name not in back or not torch.equal(back[name].to(device), t)
    ]
    if wrong or len(back) != len(tensors):
        raise Wrong(f"safetensors brings back other values: {', '.join(wrong) or sorted(back)}")
    return Finding(f"{', '.join(tensors)} come back exactly", {"seed": seed})


def sentencepiece(device: str, op: Op | None = None) -> Finding:
    """Train a tiny tokenizer, then encode and decode a sentence. `op` changes the decoded text."""
    import sentencepiece as library

    words = ["dyno", "measures", "what", "the", "image", "can", "do", "and", "says", "so"]
    text = " ".join(reversed(words))
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words[i:] + words[:i]) for i in range(len(words))] * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = library.SentencePieceProcessor(model_proto=model.getvalue())
    ids = processor.encode(text)
    back = processor.decode(ids)
    back = op(back) if op else back
    if back != text or not 0 < len(ids) <= len(text):
        raise Wrong(f"SentencePiece decodes {back!r} from the encoding of {text!r}")
    return Finding(f"a sentence comes back from {len(ids)} tokens", {"tokens": len(ids)})


def einops(device: str, op: Op | None = None) -> Finding:
    """Patches of a picture, by einops and by torch's own permute. `op` stands in for einops.rearrange."""
    import torch
    from einops import rearrange

    seed = fresh_seed()
    x = torch.randn(2, 3, 8, 12, generator=generator(device, seed), device=device)
    ours = x.reshape(2, 3, 2, 4, 3, 4).permute(0, 2, 4, 3, 5, 1).reshape(2, 6, 48)
    theirs = (op or rearrange)(x, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
    if not torch.equal(ours, theirs):
        raise Wrong("einops.rearrange puts values elsewhere than torch's permute")
    return Finding("rearrange equals permute", {"seed": seed})


def _tolerance(device: str) -> float:
    """For float32 models a few layers deep; on a GPU convolutions use TF32 unless a program forbids it."""
    return bound(EPS_FLOAT32, 256) * 4 if device == "cpu" else bound(EPS_TF32, 64)
