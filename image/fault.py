"""What can be wrong, as a value: found, needed, what to do. Never a traceback for a user's mistake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `python3 -m image`, the same meanings as in the container."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNUSABLE = 3


@dataclass(frozen=True)
class Fault:
    """One thing that stops the work. `exit` is USAGE for a wrong argument, UNUSABLE for an unfit host."""

    found: str
    needed: str
    remedy: str
    exit: Exit = Exit.USAGE

    def __str__(self) -> str:
        return f"found: {self.found}; needed: {self.needed}; do: {self.remedy}"


class Stop(Exception):
    """Ends a command with its faults, all at once."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, self.faults)))

    @property
    def exit(self) -> Exit:
        """The highest code: an unfit host cannot be cured by another argument."""
        return max((fault.exit for fault in self.faults), default=Exit.FAILED)
