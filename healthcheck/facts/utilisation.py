"""How busy the GPU was while something ran, through NVML's own lens.

NVML's `gpu` is the share of time in which *any* kernel ran: one tiny kernel gives 100. It is no measure of
efficiency, and the name of the lens travels with the figure.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from healthcheck.facts.gpu import session

GPU_LENS = "NVML: share of time in which any kernel ran"
MEMORY_LENS = "NVML: share of time in which device memory was read or written"
_INTERVAL = 0.1  # seconds; NVML itself averages over 1/6 s to 1 s


@dataclass(frozen=True)
class Utilisation:
    """Means in percent over `samples` readings; None = not measured, which is not 0."""

    gpu_percent: float | None = None
    memory_percent: float | None = None
    memory_used_peak: int | None = None
    samples: int = 0
    gpu_lens: str = GPU_LENS
    memory_lens: str = MEMORY_LENS


class Sampler:
    """Reads one GPU's utilisation in a thread. Without NVML there are no samples."""

    def __init__(self, index: int, nvml: Any = None, interval: float = _INTERVAL) -> None:
        self._index = index
        self._nvml = nvml
        self._interval = interval
        self._ended = threading.Event()
        self._busy: list[float] = []
        self._memory: list[float] = []
        self._used: list[int] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[Sampler]:
        """Sample for the length of the block."""
        thread = threading.Thread(target=self._sample, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join(1.0)

    def result(self) -> Utilisation:
        return Utilisation(
            gpu_percent=statistics.fmean(self._busy) if self._busy else None,
            memory_percent=statistics.fmean(self._memory) if self._memory else None,
            memory_used_peak=max(self._used, default=None),
            samples=len(self._busy),
        )

    def _sample(self) -> None:
        with contextlib.suppress(Exception):  # a driver that goes away ends the sampling, not the benchmark
            nvml = self._nvml or importlib.import_module("pynvml")
            with session(nvml):
                handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
                while not self._ended.wait(self._interval):
                    self._one(nvml, handle)

    def _one(self, nvml: Any, handle: Any) -> None:
        with contextlib.suppress(Exception):  # unsupported under MIG and on some boards: stays unmeasured
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            self._busy.append(float(rates.gpu))
            self._memory.append(float(rates.memory))
        with contextlib.suppress(Exception):
            self._used.append(int(nvml.nvmlDeviceGetMemoryInfo(handle).used))


def first_visible(cuda_visible_devices: str | None, uuids: tuple[str | None, ...]) -> int | None:
    """NVML's index of CUDA's first device, None where it cannot be told (MIG, unknown names)."""
    if not uuids:
        return None
    first = (cuda_visible_devices or "0").split(",")[0].strip()
    if first.isdigit():
        return int(first) if int(first) < len(uuids) else None
    matching = [
        i for i, uuid in enumerate(uuids) if uuid and first.startswith("GPU-") and uuid.startswith(first)
    ]
    return matching[0] if len(matching) == 1 else None
