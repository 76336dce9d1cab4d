"""What a scenario is made of. Importable without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any


class Unavailable(Exception):
    """Raised by a variant or by the inputs when something they need is absent; says what."""


@dataclass(frozen=True)
class Setup:
    """How a scenario is run. `batch` is what is halved when memory runs out; `seed` makes its inputs."""

    device: str
    short: bool
    batch: int
    seed: int

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def halved(self) -> Setup:
        return replace(self, batch=self.batch // 2)


@dataclass(frozen=True)
class Throughput:
    """Work done by one call: `amount` divided by its seconds is a figure in `unit`."""

    amount: float
    unit: str


@dataclass(frozen=True)
class Prepared:
    """A variant, ready to run.

    `call` does the work once and returns its result. `context` is entered around
    everything that is called. `side_streams` are the CUDA streams that it uses besides the current one.
    """

    call: Callable[[], Any]
    label: str = ""
    notes: tuple[str, ...] = ()
    compile_seconds: float | None = None
    side_streams: tuple[Any, ...] = ()
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


@dataclass(frozen=True)
class Variant:
    """One way to do the work. `prepare` takes setup and inputs, and may raise Unavailable."""

    name: str
    label: str
    prepare: Callable[[Setup, Any], Prepared]


def _all_of_it(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Scenario:
    """A workload with variants, the first of them the baseline.

    `batch` gives the batch to start from. `inputs` makes what all variants share; `reference` computes the
    right answer from it another way, in float64, for that part of a call's result which `compared` takes;
    `tolerance` is the relative error that rounding explains; `throughput` is the work of one call.
    """

    name: str
    title: str
    has_cpu_form: bool
    variants: tuple[Variant, ...]
    batch: Callable[[str, bool], int]
    workload: Callable[[Setup], str]
    inputs: Callable[[Setup], Any]
    reference: Callable[[Setup, Any], Any]
    tolerance: Callable[[Setup], float]
    throughput: Callable[[Setup, Any], Throughput | None]
    compared: Callable[[Any], Any] = _all_of_it
