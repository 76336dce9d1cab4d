"""What a check is, and the few words to write one in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from healthcheck.result import Result, Status

if TYPE_CHECKING:
    from healthcheck.facts.snapshot import Facts


@dataclass(frozen=True)
class Verdict:
    """A check's answer before its code and title are put on it; see `Result` for the fields."""

    status: Status
    summary: str
    remedy: str = ""
    unusable: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A stable code, a title of a few words, and the function that judges the facts."""

    code: str
    title: str
    judge: Callable[[Facts], Verdict]

    def __call__(self, facts: Facts) -> Result:
        verdict = self.judge(facts)
        return Result(
            self.code,
            self.title,
            verdict.status,
            verdict.summary,
            verdict.remedy,
            verdict.unusable,
            details=verdict.details,
        )


def passed(summary: str, **details: Any) -> Verdict:
    return Verdict(Status.PASS, summary, details=details)


def skipped(reason: str) -> Verdict:
    return Verdict(Status.SKIP, reason)


def warned(summary: str, remedy: str, **details: Any) -> Verdict:
    return Verdict(Status.WARN, summary, remedy, details=details)


def failed(summary: str, remedy: str, **details: Any) -> Verdict:
    return Verdict(Status.FAIL, summary, remedy, details=details)


def unusable(summary: str, remedy: str, **details: Any) -> Verdict:
    """A failure of the environment itself: nothing else can be judged in it (exit code 3)."""
    return Verdict(Status.FAIL, summary, remedy, unusable=True, details=details)


def unknown(summary: str, remedy: str) -> Verdict:
    return Verdict(Status.UNKNOWN, summary, remedy)


def version(text: str | None) -> tuple[int, ...] | None:
    """ "550.90.07" -> (550, 90, 7), None for anything else: versions compare as numbers, never as text."""
    try:
        return tuple(int(part) for part in (text or "").split("."))
    except ValueError:
        return None


def size(count: int) -> str:
    """Bytes in words: 25757220864 -> "24.0 GiB"."""
    unit, factor = ("GiB", 30) if count >= 1 << 30 else ("MiB", 20)
    value = count / (1 << factor)
    return f"{value:.0f} {unit}" if value.is_integer() else f"{value:.1f} {unit}"
