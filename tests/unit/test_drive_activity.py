"""Only readings wholly inside the window count, what NVML does not give is None with a reason, and nothing is
left open."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from pydantic import TypeAdapter, ValidationError

from healthcheck.drive.activity import Gpu, Recorder, Sampler
from healthcheck.measure.activity import (
    Activity,
    Reading,
    Surroundings,
    disturbance,
    mean_inside,
    throttle_names,
)

WALL = 1_700_000_000.0  # what the wall-clock shows at second 0 of the monotonic one
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
NO_PERMISSION = pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
NOT_FOUND = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
PERCENT = ("busy", "memory-controller", "sm-activity", "sm-occupancy", "tensor-activity", "dram-activity")


class FakeNvml:
    """A GPU in a world with a clock of its own, `t`; what it answers is set by name, or is an error.

    A GPM sample holds `work`, the integral of SM activity; the other metrics are 1/2, 1/4 and 1/8 of it.
    """

    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t

    def __init__(self, **answers: Any) -> None:
        self.t = 0.0
        self.open = self.ticks = 0
        self.buffer: list[tuple[float, int]] = []  # (second, percent): what the driver holds of utilisation
        self.held: dict[int, tuple[float, float]] = {}  # address of a GPM sample -> (second, work)
        self.work = 0.0
        self.repeats = False  # whether the driver gives samples again that were seen
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMigMode": NOT_SUPPORTED,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1 << 29),
            "nvmlDeviceGetEnforcedPowerLimit": 425_000,
            "nvmlDeviceGetMaxClockInfo": lambda _, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1500, 2: 3000}[kind],
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED,
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call

    def nvmlInit(self) -> None:
        if "nvmlInit" in self.answers:
            raise self.answers["nvmlInit"]
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetSamples(self, handle: Any, kind: int, last: int) -> Any:
        self.ticks += 1
        if "nvmlDeviceGetSamples" in self.answers:
            raise self.answers["nvmlDeviceGetSamples"]
        share = {1: 1, 2: 2}[kind]  # the memory controller is half as busy
        samples = [
            SimpleNamespace(
                timeStamp=round((WALL + at) * 1e6), sampleValue=SimpleNamespace(uiVal=value // share)
            )
            for at, value in self.buffer
        ]
        new = [s for s in samples if s.timeStamp > last or self.repeats]
        if not new:
            raise NOT_FOUND
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, new

    def nvmlGpmSampleAlloc(self) -> Any:
        address = 0x1000 * (len(self.held) + 1)
        self.held[address] = (0.0, 0.0)
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self.held[_address(sample)]

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> None:
        if "nvmlGpmSampleGet" in self.answers:
            raise self.answers["nvmlGpmSampleGet"]
        self.held[_address(sample)] = (self.t, self.work)

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        (began, before), (ended, after) = (self.held[_address(s)] for s in (request.sample1, request.sample2))
        share = {2: 1.0, 3: 0.5, 5: 0.25, 10: 0.125}
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = self.answers.get("gpm", {}).get(metric.metricId, 0)
            metric.value = share[metric.metricId] * (after - before) / (ended - began)


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


def gpu_of(nvml: FakeNvml) -> Gpu:
    return Gpu(nvml, "handle", now=lambda: nvml.t, wall=lambda: WALL + nvml.t)


def record(nvml: FakeNvml, *steps: tuple[float, float]) -> Recorder:
    """Begin at 0, then for each step let the GPU run for (seconds, SM activity) and take a reading."""
    recorder, gpu = Recorder(), gpu_of(nvml)

    def pause(seconds: float) -> bool:
        nvml.t += seconds
        return False

    recorder.begin(gpu, pause)
    recorder.tick(gpu)
    for seconds, activity in steps:
        nvml.t += seconds
        nvml.work += seconds * activity
        recorder.tick(gpu)
    return recorder


def stepped(*values: Any) -> Callable[..., Any]:
    """An answer that is another one at each call; the last stays."""
    left = list(values)
    return lambda *_: left.pop(0) if len(left) > 1 else left[0]


def reasons(activity: Activity, *names: str) -> set[str]:
    found = [activity.figure(name) for name in names]
    assert all(f is not None and f.value is None and f.readings == 0 for f in found)
    return {f.reason for f in found if f}


def test_a_mean_is_weighted_and_leaves_out_what_straddles_an_edge() -> None:
    readings = [
        Reading(0.9, 1.1, 1000.0),
        Reading(1.0, 2.0, 10.0, weight=1.0),
        Reading(2.0, 5.0, 50.0, weight=3.0),
        Reading(4.9, 5.1, 1000.0),
    ]
    assert mean_inside(readings, 1.0, 5.0) == (40.0, 2)  # (10 x 1 + 50 x 3) / 4
    assert mean_inside(readings, 1.5, 4.0) == (None, 0)


def test_gpm_is_the_time_weighted_mean_of_the_intervals_inside_the_window() -> None:
    nvml = FakeNvml()
    # samples at 0, 1, 2, 5 and 6 s; one taken at 1 s may show the GPU as it was at 0.9 s
    recorder = record(nvml, (1.0, 96.0), (1.0, 20.0), (3.0, 60.0), (1.0, 96.0))
    activity = recorder.window(0.9, 5.5)
    assert activity.value("sm-activity") == pytest.approx(50.0)  # (20 x 1 + 60 x 3) / 4
    assert activity.value("sm-occupancy") == pytest.approx(25.0)
    assert activity.value("tensor-activity") == pytest.approx(12.5)
    assert activity.value("dram-activity") == pytest.approx(6.25)
    figure = activity.figure("sm-activity")
    assert figure and (figure.readings, figure.unit, figure.reason) == (2, "%", "")
    assert figure.lens.startswith("GPM: ")
    assert recorder.window(0.95, 5.5).value("sm-activity") == pytest.approx(60.0)  # the lag reaches before


def test_gpm_goes_on_after_a_sample_that_failed_and_bridges_no_gap() -> None:
    nvml = FakeNvml()
    recorder, gpu = record(nvml, (1.0, 40.0)), gpu_of(nvml)
    nvml.answers["nvmlGpmSampleGet"] = pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
    for activity in (100.0, 80.0):
        nvml.t += 1.0
        nvml.work += activity
        recorder.tick(gpu)
        nvml.answers.pop("nvmlGpmSampleGet", None)
    nvml.t += 1.0
    nvml.work += 60.0
    recorder.tick(gpu)
    figure = recorder.window(-1.0, 10.0).figure("sm-activity")
    assert figure and (figure.value, figure.readings) == (pytest.approx(50.0), 2)  # 40 and 60


def test_a_metric_that_gpm_lacks_hides_no_other() -> None:
    activity = record(FakeNvml(gpm={5: 3}), (1.0, 40.0), (1.0, 40.0)).window(-1.0, 3.0)
    assert reasons(activity, "tensor-activity") == {"GPM: NVML error 3"}
    assert activity.value("sm-activity") == pytest.approx(40.0)


def test_busy_comes_from_the_samples_of_the_driver_in_the_window_once_settled() -> None:
    nvml = FakeNvml()
    nvml.buffer = [(9.8, 2), (10.0, 4), (10.1, 6), (10.3, 90), (10.5, 98), (10.7, 100), (11.1, 8)]
    # 10.1 speaks for at least 1/6 s and so for 9.93 s too; 10.7 for 10.5 to 10.7 s; 11.1 ends outside
    activity = record(nvml, (12.0, 0.0)).window(10.0, 11.0)
    busy = activity.figure("busy")
    assert busy and (busy.value, busy.readings) == (pytest.approx(96.0), 3)  # (90 + 98 + 100) / 3
    assert busy.lens == "NVML: share of time in which any kernel ran"
    assert activity.value("memory-controller") == pytest.approx((45 + 49 + 50) / 3)


@pytest.mark.parametrize("repeats", [False, True])
def test_each_sample_of_the_driver_counts_once_however_often_it_is_given(repeats: bool) -> None:
    nvml = FakeNvml()
    nvml.repeats = repeats
    nvml.buffer = [(1.0, 40), (1.2, 40), (1.4, 70)]
    recorder, gpu = record(nvml, (1.5, 0.0), (0.1, 0.0)), gpu_of(nvml)
    nvml.buffer.append((1.8, 100))
    nvml.t = 2.0
    recorder.tick(gpu)
    busy = recorder.window(1.0, 2.0).figure("busy")
    # 0.2 s at 40, 0.2 s at 70, 0.4 s at 100
    assert busy and (busy.value, busy.readings) == (pytest.approx(77.5), 3)


def test_without_the_drivers_samples_busy_is_polled_and_given_a_second_to_settle() -> None:
    rates = [SimpleNamespace(gpu=g, memory=g // 2) for g in (0, 10, 20, 80, 90, 6)]
    nvml = FakeNvml(nvmlDeviceGetSamples=NOT_SUPPORTED, nvmlDeviceGetUtilizationRates=stepped(*rates))
    # one reading is what was there before; then 0 s: 10, 0.5 s: 20, 1.5 s: 80, 2 s: 90, 2.5 s: 6
    recorder = record(nvml, (0.5, 0.0), (1.0, 0.0), (0.5, 0.0), (0.5, 0.0))
    activity = recorder.window(0.4, 2.2)
    assert activity.value("busy") == pytest.approx(85.0)
    assert activity.value("memory-controller") == pytest.approx(42.5)
    too_short = "Not Supported; no reading lies wholly in the window of 0.40 s"
    assert reasons(recorder.window(1.5, 1.9), "busy") == {too_short}


def test_a_driver_with_nothing_new_is_in_no_trouble() -> None:
    reason = "no reading lies wholly in the window of 0.50 s"
    assert reasons(record(FakeNvml(), (2.0, 0.0)).window(1.0, 1.5), "busy") == {reason}


def test_power_is_what_the_energy_counter_says_of_the_window() -> None:
    # millijoules at 0, 1, 2, 4 and 5 s
    energy = stepped(0, 90_000, 390_000, 1_590_000, 1_600_000)
    nvml = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=energy)
    recorder = record(nvml, (1.0, 0.0), (1.0, 0.0), (2.0, 0.0), (1.0, 0.0))
    power = recorder.window(0.8, 4.2).figure("power")
    assert power and (power.value, power.unit) == (pytest.approx(500.0), "W")  # 1,500 J in 3 s
    assert power.lens == "NVML: energy used over time"
    assert recorder.window(0.95, 4.2).value("power") == pytest.approx(600.0)  # the lag reaches before


def test_an_energy_counter_that_starts_over_gives_no_power_for_that_stretch() -> None:
    nvml = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=stepped(5_000_000, 5_200_000, 100_000, 500_000))
    power = record(nvml, (1.0, 0.0), (1.0, 0.0), (1.0, 0.0)).window(-1.0, 4.0).figure("power")
    assert power and (power.value, power.readings) == (pytest.approx(300.0), 2)  # 200 W and 400 W


def test_without_an_energy_counter_power_is_polled() -> None:
    power = record(FakeNvml(), (1.0, 0.0), (1.0, 0.0)).window(0.5, 2.5).figure("power")
    assert power and (power.value, power.readings) == (300.0, 1)
    assert power.lens == "NVML: power, a mean over up to 1 s"


def test_clocks_are_the_mean_of_what_was_read_in_the_window() -> None:
    clock = stepped(*(value for sm in (300, 1400, 1600, 345) for value in (sm, 3000)))
    activity = record(FakeNvml(nvmlDeviceGetClockInfo=clock), *[(1.0, 0.0)] * 3).window(0.5, 2.5)
    assert (activity.value("sm-clock"), activity.value("memory-clock")) == (1500.0, 3000.0)


def test_throttle_reasons_are_those_seen_in_the_window_and_idle_is_none() -> None:
    seen = stepped(0x1, 0x4, 0x4 | 0x40, 0x0, 0x80)
    recorder = record(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=seen), *[(1.0, 0.0)] * 4)
    assert recorder.window(0.5, 2.5).throttle == ("SW Power Cap", "HW Thermal Slowdown")
    assert recorder.window(2.5, 3.5).throttle == ()
    assert recorder.window(-0.5, 0.5).throttle == ()
    outside = recorder.window(0.2, 0.8)
    assert (outside.throttle, outside.throttle_unknown) == (None, "no reading lies in the window")
    assert recorder.surroundings().throttle_reasons == (
        "SW Power Cap",
        "HW Thermal Slowdown",
        "HW Power Brake Slowdown",
    )


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x2 | 0x8, ("Applications Clocks Setting", "HW Slowdown")),
        (0x10 | 0x20, ("Sync Boost", "SW Thermal Slowdown")),
        (0x100 | 0x200 | 0x400, ("Display Clock Setting", "Board Limit", "Reliability")),
        (0x1 | 0x4 | 0x8000, ("SW Power Cap", "reason 0x8000")),
    ],
)
def test_throttle_reasons_have_the_names_that_nvidia_smi_gives(bits: int, names: tuple[str, ...]) -> None:
    assert throttle_names(bits) == names


@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION])
def test_what_nvml_refuses_is_none_with_the_reason_and_all_else_is_measured(error: Exception) -> None:
    refused = (
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetUtilizationRates",
        "nvmlGpmQueryDeviceSupport",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetEnforcedPowerLimit",
    )
    recorder = record(FakeNvml(**dict.fromkeys(refused, error)), (1.0, 50.0), (1.0, 50.0))
    activity, seen = recorder.window(0.0, 2.0), recorder.surroundings()
    assert reasons(activity, *PERCENT) == {str(error)}
    assert (activity.throttle, activity.throttle_unknown) == (None, str(error))
    assert activity.value("sm-clock") == 1500.0
    assert (seen.busy_before, seen.processes_before, seen.processes_most, seen.power_limit_w) == (None,) * 4
    assert (seen.max_sm_clock_mhz, seen.error, disturbance(seen)) == (1980, "", "")


def test_a_gpu_without_gpm_says_what_it_would_need() -> None:
    nvml = FakeNvml(nvmlGpmQueryDeviceSupport=SimpleNamespace(isSupportedDevice=0))
    activity = record(nvml, (1.0, 0.0)).window(-1.0, 2.0)
    assert reasons(activity, "sm-activity") == {"GPM: not supported by this GPU, Hopper or newer has it"}
    assert nvml.held == {}


def test_under_mig_a_figure_of_the_whole_gpu_is_not_the_slices() -> None:
    nvml = FakeNvml(nvmlDeviceGetMigMode=[1, 1], nvmlDeviceGetComputeRunningProcesses=["a", "b"])
    recorder = record(nvml, (2.0, 50.0), (2.0, 50.0))
    activity, seen = recorder.window(0.0, 4.0), recorder.surroundings()
    assert reasons(activity, *PERCENT, "power") == {"MIG is on: NVML gives it for the whole GPU only"}
    assert activity.value("sm-clock") == 1500.0
    assert (seen.mig, seen.processes_before, seen.processes_most, disturbance(seen)) == (True, None, None, "")


def test_the_surroundings_are_those_before_and_while_the_child_ran() -> None:
    processes = stepped([], [], ["ours"], ["ours", "other"], ["ours"])
    nvml = FakeNvml(
        nvmlDeviceGetComputeRunningProcesses=processes, nvmlDeviceGetCurrPcieLinkWidth=stepped(8, 16, 8)
    )
    assert record(nvml, *[(1.0, 0.0)] * 4).surroundings() == Surroundings(
        processes_before=0,
        processes_most=2,
        busy_before=0.0,
        memory_used_before=1 << 29,
        power_limit_w=425.0,
        max_sm_clock_mhz=1980,
        max_memory_clock_mhz=3201,
        pcie_generation=5,
        pcie_width=16,
        throttle_reasons=(),
        mig=None,
        error="",
    )


def test_an_earlier_childs_traces_are_given_time_to_fade() -> None:
    rates = stepped(*(SimpleNamespace(gpu=g, memory=0) for g in (97, 40, 0)))
    nvml = FakeNvml(
        nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetComputeRunningProcesses=stepped(["gone"], [])
    )
    seen = record(nvml).surroundings()
    assert (seen.busy_before, seen.processes_before) == (0.0, 0)
    assert nvml.t == pytest.approx(0.22)  # two pauses, no more than it took


def test_a_gpu_that_stays_busy_is_waited_for_no_longer_than_nvmls_average() -> None:
    rates = stepped(SimpleNamespace(gpu=97, memory=0), SimpleNamespace(gpu=60, memory=0))
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=rates)
    assert record(nvml).surroundings().busy_before == 60.0
    assert 1.2 <= nvml.t < 1.4


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (Surroundings(), ""),
        (Surroundings(processes_before=0, processes_most=1, busy_before=10.0), ""),
        (
            Surroundings(processes_before=1, processes_most=2),
            "another compute process was on the GPU before the benchmark began",
        ),
        (
            Surroundings(processes_before=3),
            "3 other compute processes were on the GPU before the benchmark began",
        ),
        (
            Surroundings(processes_before=0, processes_most=2),
            "2 compute processes were on the GPU at once, and the benchmark is one",
        ),
        (
            Surroundings(processes_before=0, processes_most=0, busy_before=45.2),
            "the GPU was 45 % busy before the benchmark began",
        ),
    ],
)
def test_a_gpu_that_was_not_ours_alone_is_told_in_a_sentence(seen: Surroundings, sentence: str) -> None:
    assert disturbance(seen) == sentence


def sampled(nvml: FakeNvml) -> Sampler:
    """A sampler that has run, for at least three readings where there are any."""
    before = threading.active_count()
    sampler = Sampler(0, nvml, interval=0.0005, wall=lambda: WALL)
    enough = threading.Event()
    with sampler.running():
        while nvml.open and nvml.ticks < 6:  # two of them make a reading
            enough.wait(0.0005)
    assert threading.active_count() == before
    return sampler


def test_a_sampler_leaves_no_thread_no_session_and_no_gpm_sample_behind() -> None:
    nvml = FakeNvml()
    nvml.nvmlGpmMetricsGet = lambda request: None  # the fake's clock stands still
    sampler = sampled(nvml)
    assert (nvml.open, nvml.held) == (0, {})
    seen = sampler.surroundings()
    assert (seen.error, seen.max_sm_clock_mhz, seen.processes_before) == ("", 1980, 0)


def test_a_sampler_sees_the_window_on_the_clock_that_all_processes_share() -> None:
    sampler = sampled(FakeNvml(nvmlGpmSampleGet=NOT_SUPPORTED))
    assert sampler.window(0.0, 1e12).value("sm-clock") == 1500.0
    assert reasons(sampler.window(0.0, 1e-9), "sm-clock") == {
        "no reading lies wholly in the window of 0.00 s"
    }


def test_an_error_in_the_block_ends_the_sampler_too() -> None:
    nvml = FakeNvml(nvmlGpmSampleGet=NOT_SUPPORTED)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), Sampler(0, nvml, interval=0.0005).running():
        raise KeyboardInterrupt
    assert (threading.active_count(), nvml.open, nvml.held) == (before, 0, {})


@pytest.mark.parametrize(
    ("nvml", "error"),
    [
        (FakeNvml(nvmlInit=pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)), "NVML: Driver Not Loaded"),
        (FakeNvml(nvmlDeviceGetHandleByIndex=NO_PERMISSION), "NVML: Insufficient Permissions"),
    ],
)
def test_without_nvml_everything_is_unknown_and_says_why(nvml: FakeNvml, error: str) -> None:
    sampler = sampled(nvml)
    activity = sampler.window(0.0, 1.0)
    assert reasons(activity, *PERCENT, "power", "sm-clock", "memory-clock") == {error}
    assert (activity.throttle, activity.throttle_unknown) == (None, error)
    assert sampler.surroundings() == Surroundings(error=error)
    assert disturbance(sampler.surroundings()) == ""
    assert nvml.open == 0


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    release = threading.Event()
    nvml = FakeNvml(nvmlDeviceGetHandleByIndex=lambda index: release.wait(30))
    sampler = Sampler(0, nvml)
    with sampler.running(time_limit=0.01):
        pass
    assert sampler.surroundings().error == "NVML has not answered"
    assert reasons(sampler.window(0.0, 1.0), "busy") == {"NVML has not answered"}
    release.set()


def test_an_activity_is_the_same_after_its_json() -> None:
    activity = record(FakeNvml(), (1.0, 40.0)).window(-1.0, 2.0)
    adapter = TypeAdapter(Activity)
    assert adapter.validate_json(adapter.dump_json(activity)) == activity
    with pytest.raises(ValidationError, match="colour"):
        adapter.validate_python({"seconds": 1.0, "colour": "red"})
    assert activity.figure("temperature") is None and activity.value("temperature") is None
