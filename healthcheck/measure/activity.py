"""What the GPU did while a child measured, seen from outside through NVML.

Each lens answers its own question, so its words travel with every figure: NVML's `gpu` counts the time in
which *any* kernel ran, and one tiny kernel gives 100 %; only GPM (Hopper and newer) tells how much of the GPU
took part. A figure that no lens gives is None with the reason, never 0.

A reading speaks for a stretch of time and counts only where all of it lies in the window asked for. Sources:
NVML API reference, "Device Queries" and "GPM Functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

STRICT: dict[str, Any] = {"extra": "forbid"}  # who reads a report again refuses what it does not know
QUIET = 10.0  # percent busy that a desktop may cause
_IDLE = 0x1
_THROTTLES = {  # nvmlClocksEventReasons, as nvidia-smi names them
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x8: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x100: "Display Clock Setting",
    0x200: "Board Limit",
    0x400: "Reliability",
}


@dataclass(frozen=True)
class Figure:
    """The mean of one lens over a window. `value` None = not measured, and `reason` says why."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str
    lens: str
    unit: str
    value: float | None = None
    readings: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Activity:
    """What every lens saw in a window of `seconds`.

    `throttle` are the reasons seen in it that held the clocks down, by nvidia-smi's names; None = unknown,
    and `throttle_unknown` says why. An idle GPU's low clocks are no throttle.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    seconds: float
    figures: tuple[Figure, ...] = ()
    throttle: tuple[str, ...] | None = None
    throttle_unknown: str = ""

    def figure(self, name: str) -> Figure | None:
        """The figure called `name`: busy, memory-controller, sm-activity, sm-occupancy, tensor-activity,
        dram-activity, power, sm-clock or memory-clock."""
        return next((f for f in self.figures if f.name == name), None)

    def value(self, name: str) -> float | None:
        """The value of the figure called `name`, None where it was not measured."""
        found = self.figure(name)
        return found.value if found else None


@dataclass(frozen=True)
class Surroundings:
    """The GPU before the child began and while it ran. None = unknown; `error` = NVML could not be asked.

    Compute processes are those that NVML shows: in a container it may hide those of others. Memory in bytes,
    the driver's own included. `pcie_generation` is the most that GPU and slot can agree on, because an idle
    link is slowed down; `pcie_width` the most seen.
    """

    processes_before: int | None = None
    processes_most: int | None = None
    busy_before: float | None = None
    memory_used_before: int | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    mig: bool | None = None
    error: str = ""


def disturbance(seen: Surroundings) -> str:
    """One sentence when the GPU was not ours alone, else nothing."""
    if seen.processes_before:
        others = seen.processes_before
        who = "another compute process was" if others == 1 else f"{others} other compute processes were"
        return f"{who} on the GPU before the benchmark began"
    if seen.processes_most is not None and seen.processes_most > 1:
        return f"{seen.processes_most} compute processes were on the GPU at once, and the benchmark is one"
    if seen.busy_before is not None and seen.busy_before > QUIET:
        return f"the GPU was {seen.busy_before:.0f} % busy before the benchmark began"
    return ""


def throttle_names(bits: int) -> tuple[str, ...]:
    """NVML's clocks event reasons as nvidia-smi names them, without "gpu idle"; unknown ones as numbers."""
    set_bits = (1 << place for place in range(bits.bit_length()) if bits >> place & 1)
    return tuple(_THROTTLES.get(bit, f"reason {bit:#x}") for bit in set_bits if bit != _IDLE)


@dataclass(frozen=True)
class Reading:
    """A value that speaks for `begin`..`end` (monotonic seconds) and counts by `weight` in a mean."""

    begin: float
    end: float
    value: float
    weight: float = 1.0


def mean_inside(readings: Sequence[Reading], begin: float, end: float) -> tuple[float | None, int]:
    """Weighted mean of the readings that lie wholly in `begin`..`end`, and how many these are."""
    inside = [r for r in readings if begin <= r.begin and r.end <= end]
    if not inside:
        return None, 0
    return sum(r.value * r.weight for r in inside) / sum(r.weight for r in inside), len(inside)
