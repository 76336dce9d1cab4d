"""Inference of a convolutional network: eager against torch.compile, everything else as torch has it."""

from __future__ import annotations

import copy
import importlib.util
import time
import warnings
from dataclasses import dataclass
from typing import Any

from healthcheck.bench.scenario import Prepared, Scenario, Setup, Throughput, Unavailable, Variant
from healthcheck.exercise.compare import EPS_FLOAT32, EPS_TF32, bound, generator

_REFERENCE_IMAGES = 4  # images do not influence one another, and float64 is slow on most GPUs


@dataclass(frozen=True)
class Form:
    """What runs ("resnet50", "bottlenecks" or "pointwise") on `batch` images of `channels` x `size` x `size`.

    `blocks` is how often the block is repeated. ResNet-50 has 16 of them.
    """

    kind: str
    blocks: int
    channels: int
    size: int
    batch: int


@dataclass(frozen=True)
class Inputs:
    """`images` (batch, channels, size, size); models in float32 are made of `model` by copying."""

    model: Any
    images: Any


def form(device: str, short: bool) -> Form:
    """The short forms are small because compiling takes the time: a CPU takes seconds for each kernel."""
    if device == "cuda":
        return Form("bottlenecks", 2, 256, 56, 64) if short else Form("resnet50", 16, 3, 224, 64)
    return Form("pointwise", 1, 64, 56, 8) if short else Form("bottlenecks", 2, 128, 28, 8)


def _workload(setup: Setup) -> str:
    f = form(setup.device, setup.short)
    what = {
        "resnet50": "ResNet-50",
        "bottlenecks": f"{f.blocks} ResNet bottleneck blocks",
        "pointwise": "normalisation, GELU and shortcut",
    }[f.kind]
    return f"{what}, b{setup.batch} {f.channels}x{f.size}x{f.size} fp32 inference"


def _inputs(setup: Setup) -> Inputs:
    import torch

    f = form(setup.device, setup.short)
    torch.manual_seed(setup.seed)
    makers = {"resnet50": lambda f: _resnet50(), "bottlenecks": _bottlenecks, "pointwise": _pointwise}
    model = makers[f.kind](f)
    draw = generator(setup.device, setup.seed)
    images = torch.randn(setup.batch, f.channels, f.size, f.size, generator=draw, device=setup.device)
    return Inputs(model.eval().to(setup.device), images)


def _resnet50() -> Any:
    if importlib.util.find_spec("torchvision") is None:
        raise Unavailable("needs torchvision, which is not part of this environment")
    from torchvision.models import resnet50

    return resnet50(weights=None)


def _bottlenecks(f: Form) -> Any:
    """ResNet-50's bottleneck: 1x1, 3x3 and 1x1 convolutions, each normalised, and a shortcut."""
    import torch
    from torch import nn

    channels, narrow = f.channels, f.channels // 4

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, narrow, 1, bias=False),
                nn.BatchNorm2d(narrow),
                nn.ReLU(),
                nn.Conv2d(narrow, narrow, 3, padding=1, bias=False),
                nn.BatchNorm2d(narrow),
                nn.ReLU(),
                nn.Conv2d(narrow, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
            )

        def forward(self, x: Any) -> Any:
            return torch.relu(self.body(x) + x)

    return nn.Sequential(*(Bottleneck() for _ in range(f.blocks)))


def _pointwise(f: Form) -> Any:
    """What follows a convolution: eager passes over memory once an operation, compiled once in all."""
    import torch
    from torch import nn

    class Pointwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(f.channels)

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.gelu(self.norm(x), approximate="tanh") + x

    return nn.Sequential(*(Pointwise() for _ in range(f.blocks)))


def _reference(setup: Setup, inputs: Inputs) -> Any:
    import torch

    with torch.inference_mode():
        return copy.deepcopy(inputs.model).double()(inputs.images[:_REFERENCE_IMAGES].double())


def _tolerance(setup: Setup) -> float:
    """On a GPU convolutions are in TF32 unless a program forbids it; errors add up over the layers."""
    depth = 3 * form(setup.device, setup.short).blocks
    return bound(EPS_TF32, 1) * depth**0.5 if setup.on_gpu else bound(EPS_FLOAT32, 576) * depth


def _throughput(setup: Setup, inputs: Inputs) -> Throughput:
    return Throughput(float(setup.batch), "images/s")


def _eager(setup: Setup, inputs: Inputs) -> Prepared:
    return Prepared(_call(inputs.model, inputs.images), notes=_precision_notes(setup))


def _compiled(setup: Setup, inputs: Inputs) -> Prepared:
    import torch

    torch._dynamo.reset()
    options = _options(setup)
    call = _call(torch.compile(inputs.model, fullgraph=True, options=options), inputs.images)
    began = time.perf_counter()
    call()
    if setup.on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    notes = ("compile time is that of the first call; kernels cached by an earlier run shorten it",)
    return Prepared(call, compile_seconds=seconds, notes=(*notes, *_precision_notes(setup)))


def _options(setup: Setup) -> dict[str, Any]:
    """Few kernels do not repay the precompiled header of C++ code: 137 MB of cache and many seconds."""
    import torch._inductor.config

    name = "cpp_cache_precompile_headers"
    few = not setup.on_gpu and setup.short and hasattr(torch._inductor.config, name)
    return {name: False} if few else {}


def _call(model: Any, images: Any) -> Any:
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return model(images)

    return call


def _precision_notes(setup: Setup) -> tuple[str, ...]:
    import torch

    if not setup.on_gpu:
        return ()
    products = "off" if torch.get_float32_matmul_precision() == "highest" else "on"
    return (f"TF32: {_conv_tf32()} for convolutions, {products} for matrix products (torch's own settings)",)


def _conv_tf32() -> str:
    """Newer releases of torch warn of this property, and refuse it where the newer one was set."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "on" if torch.backends.cudnn.allow_tf32 else "off"
        except RuntimeError:
            return "unknown"


SCENARIO = Scenario(
    name="compile",
    title="Compilation: eager against torch.compile",
    has_cpu_form=True,
    variants=(Variant("eager", "eager", _eager), Variant("compiled", "torch.compile", _compiled)),
    batch=lambda device, short: form(device, short).batch,
    workload=_workload,
    inputs=_inputs,
    reference=_reference,
    compared=lambda result: result[:_REFERENCE_IMAGES],
    tolerance=_tolerance,
    throughput=_throughput,
)
