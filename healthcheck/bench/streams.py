"""Copying to the GPU and computing: one after the other, or the next copy beside the current computation."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from healthcheck.bench.scenario import Prepared, Scenario, Setup, Throughput, Variant
from healthcheck.exercise.compare import EPS_TF32, bound, generator
from healthcheck.recipes import prefetch_to_device

_WIDTH = 4096
_ROWS_COMPARED = 32
_MOST_PRODUCTS = 64  # more would only appear with a link slower than any PCIe
_CALIBRATION_CALLS = 5


@dataclass(frozen=True)
class Inputs:
    """`chunks`: tensors (width, width) in fp16, pinned; `weight`: the same on the GPU.

    `products` is how often a chunk is multiplied by the weight: so often that computing takes about as long
    as copying, which is where overlapping can win most. `rows` are the rows compared, first and last too.
    """

    chunks: tuple[Any, ...]
    weight: Any
    rows: Any
    products: int


def _bytes() -> int:
    return _WIDTH * _WIDTH * 2


def _workload(setup: Setup) -> str:
    each = f"{_bytes() / 2**20:.0f} MiB"
    return f"{setup.batch} chunks of {each} to the GPU, {_WIDTH}x{_WIDTH} fp16 products on each"


def _inputs(setup: Setup) -> Inputs:
    import torch

    draw = generator("cuda", setup.seed)
    weight = (torch.randn(_WIDTH, _WIDTH, generator=draw, device="cuda") / _WIDTH**0.5).half()
    chunks = tuple(
        torch.randn(_WIDTH, _WIDTH, generator=draw, device="cuda").half().cpu().pin_memory()
        for _ in range(setup.batch)
    )
    inner = torch.randperm(_WIDTH - 2, generator=draw, device="cuda")[: _ROWS_COMPARED - 2] + 1
    ends = torch.tensor([0, _WIDTH - 1], device="cuda")
    return Inputs(chunks, weight, torch.cat([ends, inner]), _balance(chunks[0], weight))


def _balance(chunk: Any, weight: Any) -> int:
    """How many products take as long as one copy."""
    on_gpu = chunk.to("cuda")
    copy = _seconds(lambda: chunk.to("cuda", non_blocking=True))
    product = _seconds(lambda: on_gpu @ weight)
    return max(1, min(_MOST_PRODUCTS, round(copy / product)))


def _seconds(call: Any) -> float:
    """Seconds a call takes when repeated, for balancing only: no figure of the report comes from here."""
    import torch

    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_CALIBRATION_CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / _CALIBRATION_CALLS


def _compute(on_gpu: Iterable[Any], inputs: Inputs) -> Any:
    """The chosen rows of every chunk's result: (chunks, rows, width)."""
    import torch

    results = []
    for chunk in on_gpu:
        x = chunk
        for _ in range(inputs.products):
            x = x @ inputs.weight
        results.append(x[inputs.rows])
    return torch.stack(results)


def _reference(setup: Setup, inputs: Inputs) -> Any:
    """In float64, of the compared rows alone: a row of a product depends on that row of the chunk only."""
    import torch

    weight, rows = inputs.weight.double(), inputs.rows.cpu()
    x = torch.stack([chunk[rows] for chunk in inputs.chunks]).to("cuda").double()
    for _ in range(inputs.products):
        x = x @ weight
    return x


def _tolerance(setup: Setup) -> float:
    """fp16 is as fine as TF32; each product rounds again, and a wrong or half-copied chunk is off by 1."""
    return bound(EPS_TF32, _WIDTH) * 2


def _throughput(setup: Setup, inputs: Inputs) -> Throughput:
    return Throughput(len(inputs.chunks) * _bytes() / 1e9, "GB/s copied")


def _notes(inputs: Inputs) -> tuple[str, ...]:
    return (f"{inputs.products} products a chunk, so that computing takes about as long as copying",)


def _serial(setup: Setup, inputs: Inputs) -> Prepared:
    def call() -> Any:
        return _compute((chunk.to("cuda", non_blocking=True) for chunk in inputs.chunks), inputs)

    return Prepared(call, notes=_notes(inputs))


def _overlapped(setup: Setup, inputs: Inputs) -> Prepared:
    import torch

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def call() -> Any:
        return _compute(prefetch_to_device(inputs.chunks, side), inputs)

    return Prepared(call, notes=_notes(inputs), side_streams=(side,))


SCENARIO = Scenario(
    name="streams",
    title="Streams: copy then compute against both at once",
    has_cpu_form=False,
    variants=(
        Variant("serial", "copy, then compute: one stream", _serial),
        Variant("overlapped", "copy beside compute: two streams", _overlapped),
    ),
    batch=lambda device, short: 8 if short else 32,
    workload=_workload,
    inputs=_inputs,
    reference=_reference,
    tolerance=_tolerance,
    throughput=_throughput,
)
