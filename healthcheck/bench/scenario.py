"""What a scenario is made of. Importable without torch.

A scenario is one file: a `SCENARIO` that names its cases (workloads), each with variants of which the first
is the baseline. The runner does all the rest: correctness, timing, memory, activity, out of memory, time
budget.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from healthcheck.measure.timer import Plan


class Unavailable(Exception):
    """Raised by a variant or by the inputs when something they need is absent; says what."""


@dataclass(frozen=True)
class Machine:
    """What decides the size of workloads. `memory` is the GPU's in bytes, None on the CPU."""

    device: str
    short: bool = False
    memory: int | None = None

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class Cost:
    """What one call has to do at least, which is what a peak can be held against.

    `flops` floating-point operations by `engine` (a rate of peaks.toml: fp32, tf32, fp16, bf16, fp8, int8);
    `bytes` moved over `channel`: "memory" (device memory, read plus written), "h2d" or "d2h".
    """

    flops: float | None = None
    engine: str | None = None
    bytes: float | None = None
    channel: str | None = None


@dataclass(frozen=True)
class Throughput:
    """Work done by one call: `amount` divided by its seconds is a figure in `unit`."""

    amount: float
    unit: str


@dataclass(frozen=True)
class Compilation:
    """Seconds of the first call, with an empty cache and again with a filled one; None = not measured."""

    cold_seconds: float | None = None
    warm_seconds: float | None = None


@dataclass(frozen=True)
class Prepared:
    """A variant, ready to run.

    `call` does the work once and returns its result, a tensor or a tuple of them. `context` is entered around
    everything that is called. `side_streams` are the CUDA streams that it uses besides the current one.
    `cost` and `tolerance` stand in for the scenario's where this variant computes in another format.
    """

    call: Callable[[], Any]
    label: str = ""
    notes: tuple[str, ...] = ()
    compilation: Compilation | None = None
    side_streams: tuple[Any, ...] = ()
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    cost: Cost | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Bound:
    """The shortest time that the measured parts allow: `of` takes medians by variant name, in ms."""

    name: str
    of: Callable[[Mapping[str, float]], float | None]


@dataclass(frozen=True)
class Control:
    """A negative control: a gain outside `low`..`high` says that the measurement cannot be believed."""

    low: float
    high: float
    why: str


@dataclass(frozen=True)
class Variant:
    """One way to do the work. `prepare` takes setup and inputs, and may raise Unavailable.

    A `part` is measured for a bound (the copy alone, say): it is no rival of the others.
    """

    name: str
    label: str
    prepare: Callable[[Setup, Any], Prepared]
    part: bool = False


@dataclass(frozen=True)
class Case:
    """One workload of a scenario. `form` holds the scenario's own sizes, `batch` what is halved when memory
    runs out.

    `plan` and `steady_seconds` (how long it runs back to back for the activity lenses; 0 leaves them out)
    stand in for the runner's own.
    """

    name: str
    batch: int
    variants: tuple[Variant, ...]
    form: Any = None
    plan: Plan | None = None
    steady_seconds: float | None = None
    bound: Bound | None = None
    control: Control | None = None


@dataclass(frozen=True)
class Setup:
    """How a case is run. `batch` is the case's until it is halved; `seed` makes the inputs."""

    device: str
    short: bool
    case: Case
    batch: int
    seed: int

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def form(self) -> Any:
        return self.case.form

    def halved(self) -> Setup:
        return replace(self, batch=self.batch // 2)


def _all_of_it(setup: Setup, result: Any) -> Any:
    return result


def _unknown(setup: Setup, inputs: Any) -> None:
    return None


@dataclass(frozen=True)
class Scenario:
    """Cases, and how to make, check and count the work of each.

    `inputs` makes what all variants of a case share; `reference` computes the right answer from it another
    way, in float64 or float32, for that part of a result which `compared` takes; `tolerance` is the relative
    error that rounding explains; `throughput` and `cost` are the work of one call. `at_start`: its short form
    is part of a container's self-test.
    """

    name: str
    title: str
    has_cpu_form: bool
    cases: Callable[[Machine], tuple[Case, ...]]
    workload: Callable[[Setup], str]
    inputs: Callable[[Setup], Any]
    reference: Callable[[Setup, Any], Any]
    tolerance: Callable[[Setup], float]
    throughput: Callable[[Setup, Any], Throughput | None] = _unknown
    cost: Callable[[Setup, Any], Cost | None] = _unknown
    compared: Callable[[Setup, Any], Any] = _all_of_it
    at_start: bool = False
