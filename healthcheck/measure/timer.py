"""Time a call, the same way on the CPU and on a GPU; every sample is kept.

On a GPU the call is enclosed in two events on the current stream. Streams of its own begin after the first
event and are joined before the second, and the L2 cache is overwritten between samples, so that no sample is
served from what the one before left there. The overwriting also keeps the GPU busy while the host enqueues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], Any]
_MEGABYTE = 2**20


@dataclass(frozen=True)
class Plan:
    """How long to warm up and to measure, in seconds, and between how many samples.

    `most_seconds` is the limit for slow calls: it outranks `least`, but not the first sample.
    """

    warmup_seconds: float = 0.2
    seconds: float = 1.0
    least: int = 10
    most: int = 200
    most_seconds: float = 20.0


SHORT = Plan(warmup_seconds=0.1, seconds=0.4, least=5, most=50, most_seconds=5.0)


class Stopwatch(Protocol):
    """Takes one sample: runs the call once and returns how long it took, in milliseconds."""

    def sample(self, call: Call) -> float: ...


class CpuStopwatch:
    """Wall time of a call that returns when its work is done."""

    def sample(self, call: Call) -> float:
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3


class CudaStopwatch:
    """GPU time of a call between two events on the current stream; `side_streams` are what else it uses."""

    def __init__(self, side_streams: Sequence[Any] = ()) -> None:
        import torch

        self._torch = torch
        self._side_streams = tuple(side_streams)
        self._flush = torch.empty(flush_bytes(), dtype=torch.uint8, device="cuda")

    def sample(self, call: Call) -> float:
        cuda = self._torch.cuda
        current = cuda.current_stream()
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self._flush.zero_()
        begin.record(current)
        result = joined(call, self._side_streams)
        end.record(current)
        end.synchronize()
        del result  # not before the end event: to free memory is the caller's work, not the workload's
        return float(begin.elapsed_time(end))


def joined(call: Call, side_streams: Sequence[Any]) -> Any:
    """Call with `side_streams` beginning after what is queued on the current stream, and joined to it."""
    if not side_streams:
        return call()
    import torch

    current = torch.cuda.current_stream()
    for stream in side_streams:
        stream.wait_stream(current)
    result = call()
    for stream in side_streams:
        current.wait_stream(stream)
    return result


def flush_bytes() -> int:
    """Bytes to write in order to displace the L2 cache of the current GPU: four times its size."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return 4 * max(int(getattr(properties, "L2_cache_size", 0)), 16 * _MEGABYTE)


def stopwatch(device: str, side_streams: Sequence[Any] = ()) -> Stopwatch:
    """The stopwatch for `device` ("cpu" or "cuda")."""
    return CudaStopwatch(side_streams) if device == "cuda" else CpuStopwatch()


def measure(
    call: Call, watch: Stopwatch, plan: Plan | None = None, now: Callable[[], float] = time.perf_counter
) -> tuple[float, ...]:
    """Warm `call` up for the planned time, then return samples in milliseconds, in the order taken.

    `now` is the clock, in seconds, that the plan's times are held against.
    """
    plan = plan or Plan()
    began = now()
    watch.sample(call)
    while now() - began < plan.warmup_seconds:
        watch.sample(call)
    samples: list[float] = []
    began = now()
    while len(samples) < plan.most:
        samples.append(watch.sample(call))
        spent = now() - began
        if spent >= plan.most_seconds or (spent >= plan.seconds and len(samples) >= plan.least):
            break
    return tuple(samples)
