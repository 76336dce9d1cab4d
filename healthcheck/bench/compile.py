"""Inference of ResNet-50, step by step from eager to the fastest form: what each step gains, and costs.

Compile times are those of the first call: *cold* with an empty cache of compiled kernels, *warm* when what is
in memory is forgotten and the cache on disk is kept, as a new process finds it on a volume. Loading the
compiler itself is in neither: a small function is compiled before.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from healthcheck.measure import flops
from healthcheck.measure.compare import EPS_FLOAT32, EPS_TF32, bound, generator
from healthcheck.recipes import graphed

_REFERENCE_IMAGES = 4  # images do not influence one another, and float64 is slow on most GPUs
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_AMPERE = 8  # first generation with TF32


@dataclass(frozen=True)
class Form:
    """What runs ("resnet50", "bottlenecks" or "pointwise") on images of `channels` x `size` x `size`.

    `blocks` is how often the block is repeated. ResNet-50 has 16 of them.
    """

    kind: str
    blocks: int
    channels: int
    size: int


@dataclass(frozen=True)
class Step:
    """How far a variant goes beyond eager fp32; all of them compile."""

    channels_last: bool = False
    half: bool = False
    graph: bool = False
    autotune: bool = False


@dataclass(frozen=True)
class Inputs:
    """`images` (batch, channels, size, size) and `model`, both fp32; `flops` of one call with them."""

    model: Any
    images: Any
    flops: float


def cases(machine: Machine) -> tuple[Case, ...]:
    """ResNet-50 at length on a GPU. The short forms are a few blocks, since compiling takes their time."""
    if machine.on_gpu and not machine.short:
        form = Form("resnet50", 16, 3, 224)
        return tuple(Case(f"b{batch}", batch, (_EAGER, *_LADDER), form) for batch in (64, 128))
    kept = Variant("compiled", "torch.compile", _compiled_with_kept_cache)
    if machine.on_gpu:
        return (Case("bottlenecks", 64, (_EAGER, kept), Form("bottlenecks", 2, 256, 56)),)
    if machine.short:
        return (Case("pointwise", 8, (_EAGER, kept), Form("pointwise", 1, 64, 56)),)
    return (Case("bottlenecks", 8, (_EAGER, *_LADDER[:2]), Form("bottlenecks", 2, 128, 28)),)


def _workload(setup: Setup) -> str:
    form: Form = setup.form
    what = {
        "resnet50": "ResNet-50",
        "bottlenecks": f"{form.blocks} ResNet bottleneck blocks",
        "pointwise": "normalisation, GELU and shortcut",
    }[form.kind]
    return f"{what}, b{setup.batch} {form.channels}x{form.size}x{form.size} inference"


def _inputs(setup: Setup) -> Inputs:
    import torch

    form: Form = setup.form
    torch.manual_seed(setup.seed)
    makers = {"resnet50": lambda form: _resnet50(), "bottlenecks": _bottlenecks, "pointwise": _pointwise}
    model = makers[form.kind](form).eval().to(setup.device)
    draw = generator(setup.device, setup.seed)
    images = torch.randn(
        setup.batch, form.channels, form.size, form.size, generator=draw, device=setup.device
    )
    with torch.no_grad():
        one = flops.counted(lambda: model(images[:1]))
    return Inputs(model, images, one * setup.batch)


def _resnet50() -> Any:
    if importlib.util.find_spec("torchvision") is None:
        raise Unavailable("needs torchvision, which is not part of this environment")
    from torchvision.models import resnet50

    return resnet50(weights=None)


def _bottlenecks(form: Form) -> Any:
    """ResNet-50's bottleneck: 1x1, 3x3 and 1x1 convolutions, each normalised, and a shortcut."""
    import torch
    from torch import nn

    channels, narrow = form.channels, form.channels // 4

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

    return nn.Sequential(*(Bottleneck() for _ in range(form.blocks)))


def _pointwise(form: Form) -> Any:
    """What follows a convolution: eager passes over memory once an operation, compiled once in all."""
    import torch
    from torch import nn

    class Pointwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(form.channels)

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.gelu(self.norm(x), approximate="tanh") + x

    return nn.Sequential(*(Pointwise() for _ in range(form.blocks)))


def _reference(setup: Setup, inputs: Inputs) -> Any:
    import torch

    with torch.inference_mode():
        return copy.deepcopy(inputs.model).double()(inputs.images[:_REFERENCE_IMAGES].double())


def _tolerance(setup: Setup) -> float:
    """Errors of the layers add up like a random walk's. fp16 is as fine as TF32, which convolutions use."""
    depth: int = 3 * setup.form.blocks
    return bound(EPS_TF32, 1) * math.sqrt(depth) if setup.on_gpu else bound(EPS_FLOAT32, 576) * depth


def _eager(setup: Setup, inputs: Inputs) -> Prepared:
    return Prepared(
        functools.partial(_infer, inputs.model, inputs.images),
        notes=_precision(setup),
        cost=_cost(setup, inputs, Step()),
    )


def _compiled(step: Step, setup: Setup, inputs: Inputs) -> Prepared:
    """A rung of the ladder: compiled with an empty cache of its own, and again with what it left there."""
    model, images = _converted(step, inputs)
    _load_compiler(setup)
    with _empty_cache():
        cold, _ = _first_call(setup, functools.partial(_make, step, setup, model, images))
        warm, call = _first_call(setup, functools.partial(_make, step, setup, model, images))
    return Prepared(
        call,
        notes=() if step.half else _precision(setup),
        compilation=Compilation(cold_seconds=cold, warm_seconds=warm),
        cost=_cost(setup, inputs, step),
    )


def _compiled_with_kept_cache(setup: Setup, inputs: Inputs) -> Prepared:
    """With the cache that the caller has, so that it pays only once where the cache is on a volume."""
    make = functools.partial(_make, Step(), setup, inputs.model, inputs.images)
    seconds, call = _first_call(setup, make)
    first = f"first call {seconds:.1f} s, with the cache of compiled kernels as it was found"
    return Prepared(call, notes=(first, *_precision(setup)), cost=_cost(setup, inputs, Step()))


def _converted(step: Step, inputs: Inputs) -> tuple[Any, Any]:
    """Model and images in the step's layout and format."""
    import torch

    layout = {"memory_format": torch.channels_last} if step.channels_last else {}
    dtype = torch.float16 if step.half else torch.float32
    return copy.deepcopy(inputs.model).to(dtype=dtype, **layout), inputs.images.to(dtype=dtype, **layout)


def _make(step: Step, setup: Setup, model: Any, images: Any) -> Callable[[], Any]:
    """The step's call; what is compiled is so in its first one, or here where it is captured in a graph."""
    import torch

    tuned = {"mode": "max-autotune-no-cudagraphs"} if step.autotune else {"options": _options(setup)}
    compiled = torch.compile(model, fullgraph=True, dynamic=False, **tuned)
    if not step.graph:
        return functools.partial(_infer, compiled, images)
    return functools.partial(graphed(functools.partial(_infer, compiled), images), images)


def _infer(model: Any, images: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(images)


def _first_call(setup: Setup, make: Callable[[], Callable[[], Any]]) -> tuple[float, Callable[[], Any]]:
    """Seconds until the first result is there with nothing compiled in memory, and the call."""
    _forget()
    began = time.perf_counter()
    call = make()
    call()
    if setup.on_gpu:
        import torch

        torch.cuda.synchronize()
    return time.perf_counter() - began, call


def _forget() -> None:
    """Empty every cache in memory, as a new process has them."""
    import torch
    from torch._inductor import utils

    torch._dynamo.reset()
    clear = getattr(utils, "clear_caches", None) or utils.clear_inductor_caches
    clear()


def _load_compiler(setup: Setup) -> None:
    """Compile something, so that no step is charged with importing the compiler and starting processes."""
    import torch

    one = torch.ones(1, device=setup.device)
    torch.compile(torch.sin, options=_options(setup))(one)


@contextlib.contextmanager
def _empty_cache() -> Iterator[None]:
    """Compile into a new directory beside the usual one, where compiled code may surely be executed."""
    usual = os.environ.get(_CACHES[0])
    beside = Path(usual).parent if usual else Path(tempfile.gettempdir())
    found = {name: os.environ.get(name) for name in _CACHES}
    with tempfile.TemporaryDirectory(prefix="dyno-compile-", dir=beside, ignore_cleanup_errors=True) as cache:
        os.environ.update({name: str(Path(cache) / name.lower()) for name in _CACHES})
        try:
            yield
        finally:
            for name, value in found.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _options(setup: Setup) -> dict[str, Any]:
    """Few kernels do not repay the precompiled header of C++ code: 137 MB of cache and many seconds."""
    import torch._inductor.config

    name = "cpp_cache_precompile_headers"
    return {name: False} if not setup.on_gpu and hasattr(torch._inductor.config, name) else {}


def _cost(setup: Setup, inputs: Inputs, step: Step) -> Cost | None:
    """By the engine that convolutions run on; nothing where there are none to count."""
    if not inputs.flops:
        return None
    tf32 = setup.on_gpu and _convolutions_in_tf32()
    return Cost(flops=inputs.flops, engine="fp16" if step.half else "tf32" if tf32 else "fp32")


def _precision(setup: Setup) -> tuple[str, ...]:
    """In what fp32 is computed, which is torch's own default: neither the article nor we change it."""
    import torch

    if not setup.on_gpu:
        return ()
    products = "off" if torch.get_float32_matmul_precision() == "highest" else "on"
    convolutions = "on" if _convolutions_in_tf32() else "off"
    return (f"TF32: {convolutions} for convolutions, {products} for matrix products (torch's own settings)",)


def _convolutions_in_tf32() -> bool:
    """Whether this GPU has TF32, and cuDNN may use it.

    torch warns of the older flag, and refuses it where somebody has set the newer ones alone.
    """
    import torch

    if torch.cuda.get_device_capability()[0] < _AMPERE:
        return False
    cudnn: Any = torch.backends.cudnn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(cudnn.allow_tf32)
        except RuntimeError:
            return str(cudnn.conv.fp32_precision) == "tf32"


_EAGER = Variant("eager", "eager fp32", _eager)
_LADDER = tuple(
    Variant(name, label, functools.partial(_compiled, step))
    for name, label, step in (
        ("compiled", "torch.compile", Step()),
        ("channels-last", "+ channels_last", Step(channels_last=True)),
        ("half", "+ fp16", Step(channels_last=True, half=True)),
        ("graphs", "+ CUDA graph", Step(channels_last=True, half=True, graph=True)),
        ("max-autotune", "+ max-autotune", Step(channels_last=True, half=True, graph=True, autotune=True)),
    )
)

SCENARIO = Scenario(
    name="compile",
    title="Compilation: eager, torch.compile, and the best recipe",
    has_cpu_form=True,
    at_start=True,
    cases=cases,
    workload=_workload,
    inputs=_inputs,
    reference=_reference,
    tolerance=_tolerance,
    throughput=lambda setup, inputs: Throughput(float(setup.batch), "images/s"),
    compared=lambda setup, result: result[:_REFERENCE_IMAGES],
)
