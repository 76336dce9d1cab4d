"""Which work shares a child: lanes of about the same length, no more of them than pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
