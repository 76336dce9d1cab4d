"""What this GPU reaches at most: large matrix products, and copies within and to and from its memory.

These are the ceilings that other scenarios' figures are held against, beside the datasheet's.
"""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from healthcheck.bench.scenario import Case, Cost, Machine, Prepared, Scenario, Setup, Throughput, Variant
from healthcheck.measure import flops
from healthcheck.measure.compare import (
    EPS_BFLOAT16,
    EPS_FLOAT32,
    EPS_TF32,
    bound,
    generator,
)
from healthcheck.recipes import cuda_defaults

_GIB = 2**30
_ROWS_COMPARED = 32
_SAMPLED = 127  # every so manieth number of a copy is compared; a prime, so that no block is passed over
_EPS = {"fp32": EPS_FLOAT32, "tf32": EPS_TF32, "fp16": EPS_TF32, "bf16": EPS_BFLOAT16}
_DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Form(Protocol):
    """The work of a case, which answers all that the scenario is asked."""

    def workload(self, setup: Setup) -> str: ...
    def inputs(self, setup: Setup) -> Any: ...
    def reference(self, setup: Setup, inputs: Any) -> Any: ...
    def tolerance(self, setup: Setup) -> float: ...
    def throughput(self, setup: Setup) -> Throughput: ...
    def cost(self, setup: Setup) -> Cost: ...
    def compared(self, setup: Setup, result: Any) -> Any: ...


@dataclass(frozen=True)
class Product:
    """A matrix product (`width`, `width`) x (`width`, `width`) by `engine`: fp32, tf32, fp16 or bf16."""

    engine: str
    width: int

    def workload(self, setup: Setup) -> str:
        precision = {"fp32": "fp32, TF32 off", "tf32": "fp32 by TF32"}.get(self.engine, self.engine)
        return f"matrix product {self.width}x{self.width} by {self.width}x{self.width}, {precision}"

    def inputs(self, setup: Setup) -> tuple[Any, Any]:
        import torch

        draw = generator(setup.device, setup.seed)
        dtype = getattr(torch, _DTYPES[self.engine])
        a, b = (
            torch.randn(self.width, self.width, generator=draw, device=setup.device).to(dtype)
            for _ in range(2)
        )
        return a, b

    def reference(self, setup: Setup, inputs: tuple[Any, Any]) -> Any:
        """The compared rows, in float64."""
        a, b = inputs
        return self.compared(setup, a).double() @ b.double()

    def tolerance(self, setup: Setup) -> float:
        return bound(_EPS[self.engine], self.width)

    def throughput(self, setup: Setup) -> Throughput:
        return Throughput(flops.matmul(self.width, self.width, self.width) / 1e12, "TFLOP/s")

    def cost(self, setup: Setup) -> Cost:
        return Cost(flops=float(flops.matmul(self.width, self.width, self.width)), engine=self.engine)

    def compared(self, setup: Setup, result: Any) -> Any:
        return result[:: max(1, self.width // _ROWS_COMPARED)]

    def context(self, setup: Setup) -> AbstractContextManager[Any]:
        if not setup.on_gpu:
            return contextlib.nullcontext()
        return cuda_defaults(tf32=self.engine == "tf32", cudnn_benchmark=None, expandable_segments=None)


def _product(setup: Setup, inputs: tuple[Any, Any]) -> Prepared:
    a, b = inputs
    return Prepared(lambda: a @ b, context=lambda: setup.form.context(setup))


@dataclass(frozen=True)
class Copy:
    """A copy of `size` bytes over `channel`: "memory" (within the device's), "h2d" or "d2h"."""

    channel: str
    size: int

    def workload(self, setup: Setup) -> str:
        where = {"memory": "within memory", "h2d": "host to device", "d2h": "device to host"}[self.channel]
        return f"copy of {self.size / 2**20:.0f} MiB, {where}"

    def inputs(self, setup: Setup) -> Any:
        """The source: float32 numbers in pageable host memory for h2d, else on the device."""
        import torch

        draw = generator(setup.device, setup.seed)
        numbers = torch.randn(self.size // 4, generator=draw, device=setup.device)
        return numbers.cpu() if self.channel == "h2d" else numbers

    def reference(self, setup: Setup, inputs: Any) -> Any:
        return self.compared(setup, inputs).double()

    def tolerance(self, setup: Setup) -> float:
        """A copy is a copy."""
        return 0.0

    def throughput(self, setup: Setup) -> Throughput:
        return Throughput(self.moved / 1e9, "GB/s")

    def cost(self, setup: Setup) -> Cost:
        return Cost(bytes=self.moved, channel=self.channel)

    @property
    def moved(self) -> float:
        """Bytes that cross the channel: within memory each is read and written."""
        return float(flops.copied_bytes(self.size) if self.channel == "memory" else self.size)

    def compared(self, setup: Setup, result: Any) -> Any:
        """A sample of all of it, once it has arrived."""
        if setup.on_gpu:
            import torch

            torch.cuda.synchronize()
        return result[::_SAMPLED]


def _copied_within(setup: Setup, inputs: Any) -> Prepared:
    import torch

    target = torch.empty_like(inputs)
    return Prepared(lambda: target.copy_(inputs))


def _copied_across(pinned: bool, setup: Setup, inputs: Any) -> Prepared:
    """Pageable memory goes through a pinned buffer of the driver's, piece by piece."""
    import torch

    to_device = setup.form.channel == "h2d"
    if to_device:
        source = inputs.pin_memory() if pinned else inputs
        target = torch.empty(inputs.shape, dtype=inputs.dtype, device=setup.device)
    else:
        source = inputs
        target = torch.empty(inputs.shape, dtype=inputs.dtype, pin_memory=pinned)
    return Prepared(lambda: target.copy_(source, non_blocking=True))


_PRODUCT = (Variant("cublas", "cuBLAS", _product),)
_ON_CPU = (Variant("blas", "BLAS", _product),)
_WITHIN = (Variant("copy", "copy within memory", _copied_within),)
_ACROSS = (
    Variant("pageable", "pageable host memory", functools.partial(_copied_across, False)),
    Variant("pinned", "pinned host memory", functools.partial(_copied_across, True)),
)


def cases(machine: Machine) -> tuple[Case, ...]:
    """Products of 8192 and copies of 1 GiB where the GPU has room; less in short form and on a CPU."""
    if not machine.on_gpu:
        width, size = (512, 16 * 2**20) if machine.short else (2048, 256 * 2**20)
        return (
            Case("matmul-fp32", 1, _ON_CPU, Product("fp32", width)),
            Case("copy-memory", 1, _WITHIN, Copy("memory", size)),
        )
    small = machine.short or (machine.memory is not None and machine.memory < 8 * _GIB)
    width, size = (4096, 256 * 2**20) if small else (8192, _GIB)
    return (
        *(Case(f"matmul-{engine}", 1, _PRODUCT, Product(engine, width)) for engine in _EPS),
        Case("copy-memory", 1, _WITHIN, Copy("memory", size)),
        Case("copy-h2d", 1, _ACROSS, Copy("h2d", size // 4)),
        Case("copy-d2h", 1, _ACROSS, Copy("d2h", size // 4)),
    )


def _form(setup: Setup) -> Form:
    form: Form = setup.form
    return form


SCENARIO = Scenario(
    name="roofline",
    title="Roofline: the most that products and copies reach here",
    has_cpu_form=True,
    cases=cases,
    workload=lambda setup: _form(setup).workload(setup),
    inputs=lambda setup: _form(setup).inputs(setup),
    reference=lambda setup, inputs: _form(setup).reference(setup, inputs),
    tolerance=lambda setup: _form(setup).tolerance(setup),
    throughput=lambda setup, inputs: _form(setup).throughput(setup),
    cost=lambda setup, inputs: _form(setup).cost(setup),
    compared=lambda setup, result: _form(setup).compared(setup, result),
)
