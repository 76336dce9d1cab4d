"""What a check says: one frozen value, the same in the terminal, in JSON and in JUnit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any


class Status(str, Enum):
    """How a check ended. `unknown`: it could not be found out, which is never the same as a pass."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Exit(IntEnum):
    """Exit codes of every command. 3 outranks 1: nothing else can be judged in an unusable environment.

    The last three are the shell's for a command that a signal ended.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    UNUSABLE = 3
    SLOWER = 4
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Result:
    """One check's answer.

    `code` is stable (`DYN-DRIVER-002`) and belongs to the check, not to the outcome. `summary` says in one
    sentence what was found and what was needed. `remedy` is the exact line that fixes it; every result that
    is not a pass or a skip has one. `unusable` marks a failure of the environment itself (no GPU, driver too
    old, output not writable), which ends in exit code 3.
    """

    code: str
    title: str
    status: Status
    summary: str
    remedy: str = ""
    unusable: bool = False
    seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def exit_code(results: Iterable[Result], required: Iterable[str] = ()) -> Exit:
    """Return the exit code for `results`.

    Warnings, skips and unknowns are fine unless their code is in `required`. A required code that no result
    carries fails too: a check that never ran must not look like one that passed.
    """
    results = tuple(results)
    required = frozenset(required)
    if any(r.status is Status.FAIL and r.unusable for r in results):
        return Exit.UNUSABLE
    absent = required - {r.code for r in results}
    unmet = any(r.code in required and r.status is not Status.PASS for r in results)
    if absent or unmet or any(r.status is Status.FAIL for r in results):
        return Exit.FAILED
    return Exit.OK
