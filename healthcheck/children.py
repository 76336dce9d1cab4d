"""What every child of the stack's Python is given: a shared deadline, an import path of its own, its work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from healthcheck import child

Run = Callable[..., child.Outcome]  # the signature of child.run; tests give their own
Progress = Callable[[str], None]  # told what runs now, in a few words


@dataclass(frozen=True)
class Deadline:
    """A span of `limit` seconds that began at `started` (monotonic)."""

    limit: float
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.limit - self.spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started


@dataclass(frozen=True)
class Task:
    """Work for a child: `seconds` on its own, and `extra` more for the first such task in each child."""

    name: str
    seconds: float
    extra: float = 0.0


# What one more child has to save, in seconds of the whole. Its own start (importing torch and opening CUDA,
# two to five seconds) runs beside the others' and delays none of them on a core of its own; disk, memory and
# the driver's lock are shared, so it is not free.
START = 1.5


def spread(tasks: Sequence[Task], most: int) -> tuple[tuple[str, ...], ...]:
    """The names of `tasks` in at most `most` lanes, one for each child; no more lanes than pay.

    The heaviest task goes first, each to the lane that it makes least long (Graham's longest-processing-time
    rule). That is tried with every number of lanes, and the one is taken whose longest lane and starts, at
    `START` each, make the least sum. In a lane the heaviest comes first; equal ones keep their order.
    """
    choices = [_lanes(tasks, number) for number in range(1, max(1, most) + 1)]
    best = min(choices, key=lambda lanes: max(map(_length, lanes), default=0.0) + START * len(lanes))
    return tuple(tuple(task.name for task in lane) for lane in best)


def _lanes(tasks: Sequence[Task], number: int) -> list[list[Task]]:
    lanes: list[list[Task]] = [[] for _ in range(number)]
    for task in sorted(tasks, key=lambda t: t.seconds + t.extra, reverse=True):
        min(lanes, key=lambda lane: _length([*lane, task])).append(task)
    return [lane for lane in lanes if lane]


def _length(lane: Sequence[Task]) -> float:
    return sum(task.seconds for task in lane) + max(task.extra for task in lane)


def environment(threads: int | None = None) -> dict[str, str]:
    """Variables for a child, on top of the caller's own. `threads` is its share of the cores, None for all.

    The package is put on the path and the current directory kept off it: a user's `random.py` or
    `healthcheck/` in the directory of the call must not be what is imported. PCI order makes CUDA's first
    GPU NVML's first, so that figures of both are of the same device.
    """
    package = str(Path(__file__).resolve().parent.parent)
    path = os.environ.get("PYTHONPATH")
    # Pools as wide as the machine, one in each of several children, would only wait for one another.
    share = {} if threads is None or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    return {
        **share,
        "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package,
        "PYTHONSAFEPATH": "1",
        # A user's wish for errors instead of warnings is for the user's code, not for the libraries' own.
        "PYTHONWARNINGS": "",
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    }


def last_words(outcome: child.Outcome) -> str:
    """The last line that a child printed, for a summary; "" when it said nothing."""
    lines = [line.strip() for line in outcome.output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def number(value: Any) -> float | None:
    """A number as a float, None for all else; True is not a number here."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
