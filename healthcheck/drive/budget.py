"""One time budget for a command, handed down to whatever it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

LEAST = 900.0  # seconds that a scenario at length may need


@dataclass(frozen=True)
class Deadline:
    """A span of `limit` seconds that began at `started` (monotonic)."""

    limit: float
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.limit - self.spent

    def share(self, tasks: int) -> float:
        """Seconds for the first of so many tasks that are still to come.

        An even part of what is left; where that is little for one, up to LEAST at the cost of those after it.
        """
        return max(self.left / max(tasks, 1), min(self.left, LEAST))

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started
