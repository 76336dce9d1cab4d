"""Watches the GPU through NVML, from a thread of the parent, while a child measures."""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from healthcheck.facts.gpu import TIME_LIMIT, session
from healthcheck.measure.activity import Activity, Figure, Reading, Surroundings, mean_inside, throttle_names

T = TypeVar("T")
Clock = Callable[[], float]

INTERVAL = 0.11  # seconds between readings; GPM wants more than 0.1
_REFRESH = 0.1  # seconds that a counter of GPM or energy may lag behind
_SHORTEST, _LONGEST = 1 / 6, 1.0  # seconds over which NVML averages utilisation, by product
_SETTLE = 1.2  # seconds after which NVML's averages hold nothing of an earlier child
_LEVELS = ((1, "busy"), (2, "memory-controller"))  # nvmlSamplingType_t -> name
_SAYS = {
    "busy": "NVML: share of time in which any kernel ran",
    "memory-controller": "NVML: share of time in which device memory was read or written",
}
_GPM = (  # nvmlGpmMetricId_t, name, lens
    (2, "sm-activity", "GPM: share of the multiprocessors that were busy"),
    (3, "sm-occupancy", "GPM: active warps over the most that the multiprocessors can hold"),
    (5, "tensor-activity", "GPM: share of time in which the multiprocessors ran tensor operations"),
    (10, "dram-activity", "GPM: memory bandwidth used over the most possible"),
)
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
_NOT_FOUND = 6
_MIG = "MIG is on: NVML gives it for the whole GPU only"


@dataclass(frozen=True)
class Gpu:
    """An open device: the NVML module, its handle, and the clocks (monotonic and wall-clock seconds)."""

    nvml: Any
    handle: Any
    now: Clock = time.monotonic
    wall: Clock = time.time


class _Lens:
    """What one lens has seen; `trouble` is why its last call gave nothing."""

    def __init__(self, name: str, says: str, unit: str = "%") -> None:
        self.name, self._says, self._unit = name, says, unit
        self.trouble = ""
        self._readings: list[Reading] = []

    def saw(self, reading: Reading) -> None:
        self._readings.append(reading)
        self.trouble = ""

    def figure(self, begin: float, end: float) -> Figure:
        value, count = mean_inside(tuple(self._readings), begin, end)
        reason = self.trouble or f"no reading lies wholly in the window of {end - begin:.2f} s"
        return Figure(
            name=self.name,
            lens=self._says,
            unit=self._unit,
            value=value,
            readings=count,
            reason="" if count else reason,
        )


class _Source:
    """Lenses that one call of NVML serves. `per_slice` False: under MIG it would show other slices too."""

    per_slice = False

    def __init__(self, *lenses: _Lens) -> None:
        self.lenses = lenses

    def tick(self, gpu: Gpu) -> None:
        """Take a reading; whatever NVML says instead is the lenses' trouble and nobody else's."""
        try:
            self._read(gpu)
        except Exception as error:
            self.fail(_words(error))

    def fail(self, trouble: str) -> None:
        for lens in self.lenses:
            lens.trouble = trouble

    def close(self, gpu: Gpu) -> None:
        """Give back what NVML lent."""

    def _read(self, gpu: Gpu) -> None:
        raise NotImplementedError


class _Levels(_Source):
    """Utilisation from the driver's own buffer, whose samples say when they were taken.

    Each is a mean over the time since the one before, which is 1/6 s to 1 s.
    """

    def __init__(self, kind: int, lens: _Lens) -> None:
        super().__init__(lens)
        self._kind = kind
        self._last = 0  # microseconds of wall-clock

    def _read(self, gpu: Gpu) -> None:
        ahead = gpu.wall() - gpu.now()
        try:
            value_type, samples = gpu.nvml.nvmlDeviceGetSamples(gpu.handle, self._kind, self._last)
        except Exception as error:
            if getattr(error, "value", None) == _NOT_FOUND:
                return  # nothing new
            raise
        for sample in sorted(samples, key=lambda s: int(s.timeStamp)):
            stamp = int(sample.timeStamp)
            if stamp <= self._last:
                continue
            period = min(max((stamp - self._last) / 1e6, _SHORTEST), _LONGEST)
            self._last = stamp
            end = stamp / 1e6 - ahead
            value = float(getattr(sample.sampleValue, _VALUE_FIELDS[value_type]))
            self.lenses[0].saw(Reading(end - period, end, value, period))


class _Rates(_Source):
    """Utilisation as polled, for drivers without the buffer: when the value was made is not known."""

    def _read(self, gpu: Gpu) -> None:
        rates = gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle)
        now = gpu.now()
        for lens, value in zip(self.lenses, (rates.gpu, rates.memory), strict=True):
            lens.saw(Reading(now - _LONGEST, now, float(value)))


class _Energy(_Source):
    """Mean power from the energy counter (Volta and newer): of just the stretch between two readings."""

    def __init__(self, lens: _Lens) -> None:
        super().__init__(lens)
        self._earlier: tuple[float, int] | None = None

    def _read(self, gpu: Gpu) -> None:
        millijoules = int(gpu.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle))
        now, earlier = gpu.now(), self._earlier
        self._earlier = (now, millijoules)
        if earlier is None or now <= earlier[0] or millijoules < earlier[1]:
            return
        seconds = now - earlier[0]
        watts = (millijoules - earlier[1]) / 1e3 / seconds
        self.lenses[0].saw(Reading(earlier[0] - _REFRESH, now, watts, seconds))


class _Power(_Source):
    """Power as polled: milliwatts, on newer GPUs a mean over 1 s."""

    def _read(self, gpu: Gpu) -> None:
        watts = gpu.nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1e3
        now = gpu.now()
        self.lenses[0].saw(Reading(now - _LONGEST, now, watts))


class _ClockRate(_Source):
    """A clock at the moment it is read; all slices share it."""

    per_slice = True

    def __init__(self, kind: int, lens: _Lens) -> None:
        super().__init__(lens)
        self._kind = kind

    def _read(self, gpu: Gpu) -> None:
        megahertz = float(gpu.nvml.nvmlDeviceGetClockInfo(gpu.handle, self._kind))
        now = gpu.now()
        self.lenses[0].saw(Reading(now, now, megahertz))


class _Gpm(_Source):
    """GPM's means between one sample and the next. Two buffers take turns."""

    def __init__(self) -> None:
        super().__init__(*(_Lens(name, says) for _, name, says in _GPM))
        self._buffers: list[Any] = []
        self._earlier: tuple[float, float] | None = None  # before and after the last sample was taken
        self._supported: bool | None = None

    def _read(self, gpu: Gpu) -> None:
        if not self._ready(gpu):
            return
        older, newer = self._buffers
        earlier, self._earlier = self._earlier, None  # a sample that fails leaves no interval behind
        before = gpu.now()
        gpu.nvml.nvmlGpmSampleGet(gpu.handle, newer)
        after = gpu.now()
        self._buffers.reverse()
        self._earlier = (before, after)
        if earlier is not None:
            self._between(gpu, older, newer, earlier, after)

    def _between(self, gpu: Gpu, older: Any, newer: Any, earlier: tuple[float, float], now: float) -> None:
        request = gpu.nvml.c_nvmlGpmMetricsGet_t()
        request.version = gpu.nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM)
        request.sample1, request.sample2 = older, newer
        for place, (metric, _, _) in enumerate(_GPM):
            request.metrics[place].metricId = metric
        gpu.nvml.nvmlGpmMetricsGet(request)
        for place, lens in enumerate(self.lenses):
            found = request.metrics[place]
            if found.nvmlReturn:
                lens.trouble = f"GPM: NVML error {found.nvmlReturn}"
            elif not math.isfinite(found.value) or now <= earlier[1]:
                lens.trouble = "GPM: no number for this stretch of time"
            else:
                lens.saw(Reading(earlier[0] - _REFRESH, now, float(found.value), now - earlier[1]))

    def _ready(self, gpu: Gpu) -> bool:
        if self._supported is None:
            self._supported = bool(gpu.nvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice)
        if not self._supported:
            self.fail("GPM: not supported by this GPU, Hopper or newer has it")
            return False
        while len(self._buffers) < 2:
            self._buffers.append(gpu.nvml.nvmlGpmSampleAlloc())
        return True

    def close(self, gpu: Gpu) -> None:
        while self._buffers:
            with contextlib.suppress(Exception):
                gpu.nvml.nvmlGpmSampleFree(self._buffers.pop())


def _sources() -> tuple[_Source, ...]:
    """Every source. Of two lenses of one name the first that saw the window counts."""
    return (
        *(_Levels(kind, _Lens(name, _SAYS[name])) for kind, name in _LEVELS),
        _Rates(*(_Lens(name, says) for name, says in _SAYS.items())),
        _Gpm(),
        _Energy(_Lens("power", "NVML: energy used over time", "W")),
        _Power(_Lens("power", "NVML: power, a mean over up to 1 s", "W")),
        _ClockRate(_SM_CLOCK, _Lens("sm-clock", "NVML: clock of the multiprocessors when read", "MHz")),
        _ClockRate(_MEMORY_CLOCK, _Lens("memory-clock", "NVML: clock of the memory when read", "MHz")),
    )


class Recorder:
    """All that is seen of one GPU. `begin`, `tick` and `end` ask NVML; the rest looks at what they saw."""

    def __init__(self) -> None:
        self.error = "NVML has not answered"
        self._sources = _sources()
        self._static: dict[str, Any] = {}
        self._processes: list[int] = []
        self._widths: list[int] = []
        self._throttles: list[tuple[float, int]] = []
        self._throttle_trouble = ""
        self._mig = False

    def begin(self, gpu: Gpu, pause: Callable[[float], bool]) -> None:
        """Note what is there before the child begins. `pause` waits so many seconds; True = stop waiting."""
        nvml, handle = gpu.nvml, gpu.handle
        mig = _or_none(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
        self._mig = bool(mig)
        busy, processes = self._before(gpu, pause)
        limit = _or_none(lambda: float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)))
        self._static = {
            "mig": mig,
            "busy_before": busy,
            "processes_before": processes,
            "memory_used_before": _or_none(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            "power_limit_w": None if limit is None else limit / 1e3,
            "max_sm_clock_mhz": _or_none(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK))),
            "max_memory_clock_mhz": _or_none(
                lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY_CLOCK))
            ),
            "pcie_generation": _or_none(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        }
        self.error = ""

    def tick(self, gpu: Gpu) -> None:
        """One reading of everything. Never raises."""
        for source in self._sources:
            if self._mig and not source.per_slice:
                source.fail(_MIG)
            else:
                source.tick(gpu)
        self._note_throttle(gpu)
        processes = None if self._mig else _processes(gpu)
        width = _or_none(lambda: int(gpu.nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu.handle)))
        self._processes += [] if processes is None else [processes]
        self._widths += [] if width is None else [width]

    def end(self, gpu: Gpu) -> None:
        """The last reading, for what the driver still has in its buffer; then give everything back."""
        try:
            self.tick(gpu)
        finally:
            for source in self._sources:
                source.close(gpu)

    def window(self, begin: float, end: float) -> Activity:
        """What was seen from `begin` to `end`, in monotonic seconds."""
        candidates: dict[str, list[Figure]] = {}
        for lens in (lens for source in self._sources for lens in source.lenses):
            candidates.setdefault(lens.name, []).append(lens.figure(begin, end))
        seen = [bits for at, bits in tuple(self._throttles) if begin <= at <= end]
        unknown = self.error or self._throttle_trouble or "no reading lies in the window"
        return Activity(
            seconds=end - begin,
            figures=tuple(self._chosen(figures) for figures in candidates.values()),
            throttle=throttle_names(_union(seen)) if seen else None,
            throttle_unknown="" if seen else unknown,
        )

    def surroundings(self) -> Surroundings:
        """The GPU's state before and while the child ran."""
        seen = [bits for _, bits in tuple(self._throttles)]
        return Surroundings(
            **self._static,
            processes_most=max(self._processes, default=None),
            pcie_width=max(self._widths, default=None),
            throttle_reasons=throttle_names(_union(seen)) if seen else None,
            error=self.error,
        )

    def _chosen(self, figures: Sequence[Figure]) -> Figure:
        measured = next((f for f in figures if f.value is not None), None)
        if measured is not None:
            return measured
        reasons = [self.error] if self.error else [f.reason for f in figures]
        return replace(figures[0], reason="; ".join(dict.fromkeys(reasons)))

    def _before(self, gpu: Gpu, pause: Callable[[float], bool]) -> tuple[float | None, int | None]:
        """The least busy and the fewest processes within _SETTLE, when an earlier child's traces are gone."""
        if self._mig:
            return None, None
        until = gpu.now() + _SETTLE
        busy: list[float] = []
        processes: list[int] = []
        while True:
            percent, count = _or_none(lambda: _busy(gpu)), _processes(gpu)
            busy += [] if percent is None else [percent]
            processes += [] if count is None else [count]
            still = min(busy, default=0.0) > 0 or min(processes, default=0) > 0
            if not still or gpu.now() >= until or pause(INTERVAL):
                return min(busy, default=None), min(processes, default=None)

    def _note_throttle(self, gpu: Gpu) -> None:
        try:
            bits = int(gpu.nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle))
            self._throttles.append((gpu.now(), bits))
            self._throttle_trouble = ""
        except Exception as error:
            self._throttle_trouble = _words(error)


class Sampler:
    """Watches one GPU from a thread while a child measures; `index` is NVML's. Without NVML all is unknown.

    `nvml`, `now` and `wall` stand in for the pynvml module and the clocks. One sampler serves one run.
    """

    def __init__(
        self,
        index: int,
        nvml: Any = None,
        interval: float = INTERVAL,
        now: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._index, self._nvml, self._interval = index, nvml, interval
        self._now, self._wall = now, wall
        self._recorder = Recorder()
        self._begun, self._ended = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def running(self, time_limit: float = TIME_LIMIT) -> Iterator[Sampler]:
        """Sample for the length of the block, which begins once the GPU's state before it is known.

        A driver in trouble can hold a call for ever: after `time_limit` seconds it is not waited for.
        """
        thread = threading.Thread(target=self._sample, name="activity", daemon=True)
        thread.start()
        try:
            self._begun.wait(time_limit)
            yield self
        finally:
            self._ended.set()
            thread.join(time_limit)

    def window(self, begin: float, end: float) -> Activity:
        """What was seen from `begin` to `end`, in seconds of time.monotonic, which all processes share."""
        return self._recorder.window(begin, end)

    def surroundings(self) -> Surroundings:
        """The GPU's state before and while the child ran."""
        return self._recorder.surroundings()

    def _sample(self) -> None:
        try:
            nvml = self._nvml or importlib.import_module("pynvml")
            with session(nvml):
                handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
                self._watch(Gpu(nvml, handle, self._now, self._wall))
        except Exception as error:  # without NVML the benchmark still counts
            self._recorder.error = f"NVML: {_words(error)}"
        finally:
            self._begun.set()

    def _watch(self, gpu: Gpu) -> None:
        self._recorder.begin(gpu, self._ended.wait)
        self._begun.set()
        try:
            while not self._ended.wait(self._interval):
                self._recorder.tick(gpu)
        finally:
            self._recorder.end(gpu)


def _busy(gpu: Gpu) -> float:
    return float(gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu)


def _processes(gpu: Gpu) -> int | None:
    return _or_none(lambda: len(gpu.nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)))


def _union(seen: Sequence[int]) -> int:
    bits = 0
    for reasons in seen:
        bits |= reasons
    return bits


def _or_none(read: Callable[[], T]) -> T | None:
    """The value, or None: what one GPU does not support must not hide the rest."""
    try:
        return read()
    except Exception:
        return None


def _words(error: Exception) -> str:
    return f"{error}".strip() or type(error).__name__
