"""Statistics of timing samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NOISY = 0.10  # interquartile range over median


@dataclass(frozen=True)
class Summary:
    """Median and quartiles of `count` samples, in the samples' unit."""

    count: int
    median: float
    q1: float
    q3: float

    @property
    def spread(self) -> float:
        """Interquartile range over median: 0.1 means that the middle half lies within 10 %."""
        return (self.q3 - self.q1) / self.median if self.median else 0.0

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY

    @property
    def note(self) -> str:
        """One sentence when the samples scatter, else nothing."""
        if not self.noisy:
            return ""
        return f"noisy: the middle half of {self.count} samples spans {self.spread:.0%} of the median"


def summarise(samples: Sequence[float]) -> Summary:
    """Return the Summary of `samples` (any unit); ValueError when there is none, or one is not finite."""
    if not samples:
        raise ValueError("no samples to summarise")
    if not all(math.isfinite(s) for s in samples):
        raise ValueError("a sample is not a finite number")
    ordered = sorted(samples)
    return Summary(len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.25), quantile(ordered, 0.75))


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The `fraction` quantile of sorted, non-empty `ordered`, linear between neighbours."""
    at = fraction * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    step = ordered[high] - ordered[low]
    return min(ordered[low] + (at - low) * step, ordered[high])
