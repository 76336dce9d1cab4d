"""What every child of the stack's Python is given: a shared deadline and an import path of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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


def environment() -> dict[str, str]:
    """Variables for a child, on top of the caller's own.

    The package is put on the path and the current directory kept off it: a user's `random.py` or
    `healthcheck/` in the directory of the call must not be what is imported. PCI order makes CUDA's first
    GPU NVML's first, so that figures of both are of the same device.
    """
    package = str(Path(__file__).resolve().parent.parent)
    path = os.environ.get("PYTHONPATH")
    return {
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
