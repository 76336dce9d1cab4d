"""One time budget for a command, handed down to whatever it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


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
