"""Streams: where they help (copies beside computing, branches of a CUDA graph) and where they cannot.

- overlap: the next batch is copied to the GPU while the current one is computed. It cannot be faster than
  the copies alone, or the computing alone, whichever takes longer; both are measured.
- small-kernels: chains of kernels that each leave most of the GPU idle. Side streams alone leave the host to
  launch them one by one; as branches of a CUDA graph they run side by side.
- saturating: large products, each of which fills the GPU. Streams change nothing: the negative control.
- one-block: a kernel of a single thread block, which tells the lenses of utilisation apart.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from healthcheck.bench.scenario import (
    Bound,
    Case,
    Control,
    Cost,
    Machine,
    Prepared,
    Scenario,
    Setup,
    Throughput,
    Variant,
)
from healthcheck.measure import flops, timer
from healthcheck.measure.compare import EPS_FLOAT32, EPS_TF32, bound, generator
from healthcheck.measure.stats import summarise
from healthcheck.recipes import Branches, cuda_defaults, graphed, prefetch_to_device

STREAMS = 4
_ROWS_COMPARED = 32
_LENS_SECONDS = 3.0  # several of NVML's averaging windows, the longest of which is one second
_TRIAL = timer.Plan(warmup_seconds=0.05, seconds=0.05, least=5, most=20, most_seconds=1.0)
_TRIAL_PRODUCTS = 8  # enough that launching them does not show
_TRIAL_COPIES = 4
_MARGIN = 1.03  # computing is made this much longer than copying, so that no copy is waited for
_MOST_PRODUCTS = 64  # more would only appear with a link slower than any PCIe
_NORM_EPS = 1e-5
_GIB = 2**30


class Form(Protocol):
    """The work of a case, which answers all that the scenario is asked."""

    def workload(self, setup: Setup) -> str: ...
    def inputs(self, setup: Setup) -> Any: ...
    def reference(self, setup: Setup, inputs: Any) -> Any: ...
    def tolerance(self, setup: Setup) -> float: ...
    def throughput(self, setup: Setup, inputs: Any) -> Throughput: ...
    def cost(self, setup: Setup, inputs: Any) -> Cost | None: ...
    def compared(self, setup: Setup, result: Any) -> Any: ...


def rows_compared(rows: int) -> list[int]:
    """Up to 32 row numbers out of `rows`, evenly spaced, the first and the last among them."""
    count = min(rows, _ROWS_COMPARED)
    return [round(i * (rows - 1) / max(1, count - 1)) for i in range(count)]


# Overlap


@dataclass(frozen=True)
class Batches:
    """Host tensors (`rows`, `width`), each multiplied on the device by a matrix (`width`, `width`).

    `products` is how often; None measures so many that computing takes just longer than copying, which is
    where overlapping wins most. fp16 on a GPU, fp32 on the CPU.
    """

    rows: int
    width: int
    products: int | None = None

    def workload(self, setup: Setup) -> str:
        each = f"{self.rows}x{self.width} {'fp16' if setup.on_gpu else 'fp32'}"
        return (
            f"{setup.batch} batches {each} ({self.bytes(setup) / 2**20:.3g} MiB), "
            f"products with {self.width}x{self.width}"
        )

    def bytes(self, setup: Setup) -> int:
        """Bytes of one batch."""
        return self.rows * self.width * (2 if setup.on_gpu else 4)

    def inputs(self, setup: Setup) -> Loaded:
        import torch

        dtype = torch.float16 if setup.on_gpu else torch.float32
        draw = generator(setup.device, setup.seed)

        def drawn(rows: int) -> Any:
            return torch.randn(rows, self.width, generator=draw, device=setup.device)

        weight = (drawn(self.width) / math.sqrt(self.width)).to(dtype)
        batches = []
        for _ in range(setup.batch):
            host = torch.empty(self.rows, self.width, dtype=dtype, pin_memory=setup.on_gpu)
            batches.append(host.copy_(drawn(self.rows)))
        rows = torch.tensor(rows_compared(self.rows), device=setup.device)
        if self.products is not None:
            return Loaded(tuple(batches), weight, rows, self.products)
        products = _balanced(batches[0], weight)
        note = f"{products} products a batch, so that computing takes just longer than copying"
        return Loaded(tuple(batches), weight, rows, products, (note,))

    def reference(self, setup: Setup, inputs: Loaded) -> Any:
        """In float64, of the compared rows: a row of a product depends on that row of the batch alone."""
        import torch

        rows, weight = inputs.rows.cpu(), inputs.weight.double()
        x = torch.stack([batch[rows] for batch in inputs.batches]).to(weight)
        return _multiplied(x, weight, inputs.products)

    def tolerance(self, setup: Setup) -> float:
        """Of one product; `Loaded.tolerance` is of all."""
        return bound(EPS_TF32 if setup.on_gpu else EPS_FLOAT32, self.width)  # fp16 is as fine as TF32

    def throughput(self, setup: Setup, inputs: Loaded) -> Throughput:
        return Throughput(len(inputs.batches), "batches/s")

    def cost(self, setup: Setup, inputs: Loaded) -> Cost:
        """Of both; a part of it says so itself."""
        return Cost(self.flops(inputs), "fp16" if setup.on_gpu else "fp32", self.copied(setup, inputs), "h2d")

    def flops(self, inputs: Loaded) -> float:
        """Operations of one call."""
        products = len(inputs.batches) * inputs.products
        return float(products * flops.matmul(self.rows, self.width, self.width))

    def copied(self, setup: Setup, inputs: Loaded) -> float:
        """Bytes that cross the link to the GPU in one call."""
        return float(len(inputs.batches) * self.bytes(setup))

    def compared(self, setup: Setup, result: Any) -> Any:
        return result.loaded.computed(result) if isinstance(result, Copied) else result


@dataclass(frozen=True)
class Loaded:
    """`batches` on the host, pinned for a GPU; `weight` and the compared `rows` on the device."""

    batches: tuple[Any, ...]
    weight: Any
    rows: Any
    products: int
    notes: tuple[str, ...] = ()

    def computed(self, batches: Iterable[Any]) -> Any:
        """The compared rows of every batch's result: (batches, rows, width)."""
        import torch

        return torch.stack([_multiplied(batch, self.weight, self.products)[self.rows] for batch in batches])

    def tolerance(self, setup: Setup) -> float:
        """Each product rounds anew and keeps the norm, so that errors add up like a random walk's."""
        return float(setup.form.tolerance(setup)) * math.sqrt(self.products)


class Copied(tuple[Any, ...]):
    """Batches on the device. What the other variants return is computed from them after the clock."""

    loaded: Loaded


def _multiplied(x: Any, weight: Any, times: int) -> Any:
    for _ in range(times):
        x = x @ weight
    return x


def _balanced(host: Any, weight: Any) -> int:
    """How many products take just longer than one copy. Measured: no figure of the report comes from here."""
    on_gpu = host.to(weight.device)
    copies = _milliseconds(lambda: [host.to(weight.device, non_blocking=True) for _ in range(_TRIAL_COPIES)])
    products = _milliseconds(lambda: _multiplied(on_gpu, weight, _TRIAL_PRODUCTS))
    return balance(copies / _TRIAL_COPIES, products / _TRIAL_PRODUCTS)


def balance(copy_ms: float, product_ms: float) -> int:
    """The least number of products that take 3 % longer than a copy; at most 64."""
    return max(1, min(_MOST_PRODUCTS, math.ceil(_MARGIN * copy_ms / product_ms)))


def _milliseconds(call: Callable[[], Any]) -> float:
    return summarise(timer.measure(call, timer.stopwatch("cuda"), _TRIAL)).median


def _copy_then_compute(setup: Setup, inputs: Loaded) -> Prepared:
    def call() -> Any:
        return inputs.computed(batch.to(setup.device, non_blocking=True) for batch in inputs.batches)

    return Prepared(call, notes=inputs.notes, tolerance=inputs.tolerance(setup))


def _overlapped(setup: Setup, inputs: Loaded) -> Prepared:
    import torch

    side: Any = torch.cuda.Stream() if setup.on_gpu else None  # type: ignore[no-untyped-call]
    count = len(inputs.batches)
    exposed = (
        f"nothing hides the first of {count} copies: {count / (count + 1):.0%} of the bound at most"
        if setup.on_gpu
        else "on the CPU there is nothing to copy: batches are passed through"
    )

    def call() -> Any:
        return inputs.computed(prefetch_to_device(inputs.batches, setup.device, stream=side))

    return Prepared(
        call,
        notes=(*inputs.notes, exposed),
        side_streams=(side,) if side else (),
        tolerance=inputs.tolerance(setup),
    )


def _copy_alone(setup: Setup, inputs: Loaded) -> Prepared:
    def call() -> Any:
        copied = Copied(batch.to(setup.device, non_blocking=True) for batch in inputs.batches)
        copied.loaded = inputs
        return copied

    cost = Cost(bytes=setup.form.copied(setup, inputs), channel="h2d")
    return Prepared(call, cost=cost, tolerance=inputs.tolerance(setup))


def _compute_alone(setup: Setup, inputs: Loaded) -> Prepared:
    there = [batch.to(setup.device) for batch in inputs.batches]
    cost = Cost(flops=setup.form.flops(inputs), engine="fp16" if setup.on_gpu else "fp32")
    return Prepared(lambda: inputs.computed(there), cost=cost, tolerance=inputs.tolerance(setup))


def longer_part(ms: Mapping[str, float]) -> float | None:
    """max(copy, compute) of the medians in `ms`; None unless both were measured."""
    return max(ms["copy"], ms["compute"]) if "copy" in ms and "compute" in ms else None


# Pieces of work that do not depend on each other


@dataclass(frozen=True)
class Chains:
    """`batch` chains of `steps` layer norms of fp32 tensors (`rows`, `width`), each step after the last.

    A layer norm gives each row one thread block, so a kernel uses at most `rows` multiprocessors.
    """

    steps: int
    rows: int
    width: int

    def workload(self, setup: Setup) -> str:
        return f"{setup.batch} chains of {self.steps} layer norms of {self.rows}x{self.width} fp32"

    def inputs(self, setup: Setup) -> tuple[Chain, ...]:
        return tuple(self._chain(setup, setup.seed + i) for i in range(setup.batch))

    def _chain(self, setup: Setup, seed: int) -> Chain:
        """Signs for weights and small biases: the end of a chain still depends on where it began."""
        import torch

        draw = generator(setup.device, seed)
        x, weight, bias = (
            torch.randn(*shape, generator=draw, device=setup.device)
            for shape in ((self.rows, self.width), (self.width,), (self.width,))
        )
        return Chain(x, weight.sign(), bias / 10)

    def reference(self, setup: Setup, inputs: tuple[Chain, ...]) -> Any:
        """In float64, from the formula."""
        import torch

        results = []
        for chain in inputs:
            x, weight, bias = chain.x.double(), chain.weight.double(), chain.bias.double()
            for _ in range(self.steps):
                x = x - x.mean(-1, keepdim=True)
                x = x / (x.square().mean(-1, keepdim=True) + _NORM_EPS).sqrt() * weight + bias
            results.append(x)
        return torch.stack(results)

    def tolerance(self, setup: Setup) -> float:
        return bound(EPS_FLOAT32, self.width) * math.sqrt(self.steps)

    def throughput(self, setup: Setup, inputs: tuple[Chain, ...]) -> Throughput:
        return Throughput(len(inputs) * self.steps, "kernels/s")

    def cost(self, setup: Setup, inputs: tuple[Chain, ...]) -> None:
        """Neither arithmetic nor memory limits it, but how long one kernel takes after another."""

    def compared(self, setup: Setup, result: Any) -> Any:
        import torch

        return torch.stack(result)

    def pieces(self, setup: Setup, inputs: tuple[Chain, ...]) -> list[Callable[[], Any]]:
        return [functools.partial(chain.run, self.steps) for chain in inputs]

    def context(self, setup: Setup) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Chain:
    """`x` (rows, width), to be normalised again and again with `weight` and `bias` (width)."""

    x: Any
    weight: Any
    bias: Any

    def run(self, steps: int) -> Any:
        import torch

        x = self.x
        for _ in range(steps):
            x = torch.nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, _NORM_EPS)
        return x


@dataclass(frozen=True)
class Squares:
    """`batch` products of fp32 matrices (`width`, `width`), without TF32; the right factor is the same."""

    width: int

    def workload(self, setup: Setup) -> str:
        return f"{setup.batch} independent products of {self.width}x{self.width} fp32, TF32 off"

    def inputs(self, setup: Setup) -> tuple[Any, ...]:
        """The left factors, then the right one."""
        import torch

        draw = generator(setup.device, setup.seed)
        return tuple(
            torch.randn(self.width, self.width, generator=draw, device=setup.device)
            for _ in range(setup.batch + 1)
        )

    def reference(self, setup: Setup, inputs: tuple[Any, ...]) -> Any:
        """In float64, of the compared rows."""
        import torch

        *lefts, right = inputs
        rows = rows_compared(self.width)
        return torch.stack([left[rows] for left in lefts]).double() @ right.double()

    def tolerance(self, setup: Setup) -> float:
        return bound(EPS_FLOAT32, self.width)

    def throughput(self, setup: Setup, inputs: tuple[Any, ...]) -> Throughput:
        return Throughput(self.flops(setup) / 1e12, "TFLOP/s")

    def cost(self, setup: Setup, inputs: tuple[Any, ...]) -> Cost:
        return Cost(flops=self.flops(setup), engine="fp32")

    def flops(self, setup: Setup) -> float:
        """Operations of one call."""
        return float(setup.batch * flops.matmul(self.width, self.width, self.width))

    def compared(self, setup: Setup, result: Any) -> Any:
        import torch

        rows = rows_compared(self.width)
        return torch.stack([product[rows] for product in result])

    def pieces(self, setup: Setup, inputs: tuple[Any, ...]) -> list[Callable[[], Any]]:
        import torch

        *lefts, right = inputs
        return [functools.partial(torch.matmul, left, right) for left in lefts]

    def context(self, setup: Setup) -> AbstractContextManager[Any]:
        return cuda_defaults(tf32=False, cudnn_benchmark=None, expandable_segments=None)


def _in_turn(setup: Setup, inputs: Any) -> Prepared:
    pieces = setup.form.pieces(setup, inputs)
    return Prepared(lambda: tuple(piece() for piece in pieces), context=lambda: setup.form.context(setup))


def _on_streams(setup: Setup, inputs: Any) -> Prepared:
    pieces, branches = setup.form.pieces(setup, inputs), Branches(STREAMS, setup.device)
    return Prepared(
        lambda: tuple(branches(pieces)),
        side_streams=branches.streams,
        context=lambda: setup.form.context(setup),
    )


def _serial_graph(setup: Setup, inputs: Any) -> Prepared:
    pieces = setup.form.pieces(setup, inputs)
    return Prepared(graphed(lambda: tuple(piece() for piece in pieces)))


def _graph_branches(setup: Setup, inputs: Any) -> Prepared:
    pieces, branches = setup.form.pieces(setup, inputs), Branches(STREAMS, setup.device)
    return Prepared(graphed(lambda: tuple(branches(pieces))))


# One thread block


@dataclass(frozen=True)
class Row:
    """Softmax of one fp32 row of `width` numbers.

    torch gives each row of a softmax beyond 1024 numbers one thread block (`grid(outer_size)` in its
    SoftMax.cu), so that one row keeps one multiprocessor busy and leaves all others idle. A cumulative sum
    or a reduction of the same row would be spread over many blocks.
    """

    width: int

    def workload(self, setup: Setup) -> str:
        return f"softmax of {setup.batch} row of {self.width} fp32: one thread block"

    def inputs(self, setup: Setup) -> Any:
        import torch

        draw = generator(setup.device, setup.seed)
        return torch.randn(setup.batch, self.width, generator=draw, device=setup.device)

    def reference(self, setup: Setup, inputs: Any) -> Any:
        """In float64, from the formula."""
        powers = inputs.double().exp()
        return powers / powers.sum(-1, keepdim=True)

    def tolerance(self, setup: Setup) -> float:
        return bound(EPS_FLOAT32, self.width)

    def throughput(self, setup: Setup, inputs: Any) -> Throughput:
        return Throughput(self.bytes(setup) / 1e9, "GB/s")

    def cost(self, setup: Setup, inputs: Any) -> Cost:
        return Cost(bytes=self.bytes(setup), channel="memory")

    def bytes(self, setup: Setup) -> float:
        """Bytes read and written at least: each number once."""
        return float(flops.copied_bytes(4 * setup.batch * self.width))

    def compared(self, setup: Setup, result: Any) -> Any:
        return result


def _one_block(setup: Setup, inputs: Any) -> Prepared:
    import torch

    notes: tuple[str, ...] = ()
    if setup.on_gpu:
        count = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        notes = (f"1 of {count} multiprocessors works: busy about 100 %, SM activity about {1 / count:.1%}",)
    return Prepared(lambda: torch.softmax(inputs, -1), notes=notes)


# The scenario

_SERIAL = Variant("serial", "copy, then compute: one stream", _copy_then_compute)
_OVERLAPPED = Variant("overlapped", "copy beside compute: prefetch_to_device", _overlapped)
_PARTS = (
    Variant("copy", "the copies alone", _copy_alone, part=True),
    Variant("compute", "the computing alone", _compute_alone, part=True),
)
_IN_TURN = Variant("serial", "one stream", _in_turn)
_ON_STREAMS = Variant("four-streams", "four streams", _on_streams)


def _overlap(batch: int, form: Batches, plan: timer.Plan | None, steady_seconds: float | None) -> Case:
    return Case(
        "overlap",
        batch,
        (_SERIAL, _OVERLAPPED, *_PARTS),
        form,
        plan=plan,
        steady_seconds=steady_seconds,
        bound=Bound("max(copy, compute)", longer_part),
    )


def cases(machine: Machine) -> tuple[Case, ...]:
    """All four on a GPU, a small overlap in short form, and on the CPU its code at a tiny size."""
    if not machine.on_gpu:
        size = Batches(256, 64, products=2) if machine.short else Batches(1024, 256, products=2)
        return (Case("overlap", 4, (_SERIAL, _OVERLAPPED), size),)
    if machine.short:
        plan = timer.Plan(warmup_seconds=0.05, seconds=0.2, least=5, most=50, most_seconds=2.0)
        return (_overlap(16, Batches(8192, 1024), plan, None),)
    small = machine.memory is not None and machine.memory < 12 * _GIB
    return (
        _overlap(48, Batches(16384, 1024), None, _LENS_SECONDS),
        Case(
            "small-kernels",
            STREAMS,
            (
                _IN_TURN,
                _ON_STREAMS,
                Variant("serial-graph", "one stream, as a CUDA graph: graphed", _serial_graph),
                Variant("branches", "four branches of a CUDA graph: Branches, graphed", _graph_branches),
            ),
            Chains(steps=25, rows=32, width=8192),
        ),
        Case(
            "saturating",
            4,
            (_IN_TURN, _ON_STREAMS),
            Squares(4096 if small else 10_000),
            steady_seconds=_LENS_SECONDS,
            control=Control(0.95, 1.05, "one product fills the GPU, so a second beside it cannot be faster"),
        ),
        Case(
            "one-block",
            1,
            (Variant("one-block", "softmax of one row", _one_block),),
            Row(4 * 2**20),
            steady_seconds=_LENS_SECONDS,
        ),
    )


def _form(setup: Setup) -> Form:
    form: Form = setup.form
    return form


SCENARIO = Scenario(
    name="streams",
    title="Streams: copy beside compute, graph branches, and where they do not help",
    has_cpu_form=True,
    at_start=True,
    cases=cases,
    workload=lambda setup: _form(setup).workload(setup),
    inputs=lambda setup: _form(setup).inputs(setup),
    reference=lambda setup, inputs: _form(setup).reference(setup, inputs),
    tolerance=lambda setup: _form(setup).tolerance(setup),
    throughput=lambda setup, inputs: _form(setup).throughput(setup, inputs),
    cost=lambda setup, inputs: _form(setup).cost(setup, inputs),
    compared=lambda setup, result: _form(setup).compared(setup, result),
)
