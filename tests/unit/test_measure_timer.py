"""When the timer warms up, how many samples it takes, and that it keeps them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from healthcheck.measure.timer import Plan, measure


class FakeWatch:
    """A stopwatch on which every call takes `seconds` of a clock that only it moves."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.clock = 0.0
        self.calls = 0

    def sample(self, call: Callable[[], Any]) -> float:
        call()
        self.clock += self.seconds
        self.calls += 1
        return self.calls * 1.0

    def now(self) -> float:
        return self.clock


def run(seconds: float, plan: Plan) -> tuple[tuple[float, ...], FakeWatch]:
    watch = FakeWatch(seconds)
    return measure(lambda: None, watch, plan, watch.now), watch


def test_warming_up_goes_by_time_and_its_samples_are_not_results() -> None:
    samples, watch = run(0.1, Plan(warmup_seconds=0.35, seconds=0.5, least=1, most=100))
    assert samples[0] == 5.0  # the first four were warming up
    assert samples == tuple(float(i) for i in range(5, watch.calls + 1))


def test_a_fast_call_stops_at_the_most_samples() -> None:
    samples, _ = run(1e-6, Plan(warmup_seconds=0, seconds=1, least=5, most=50))
    assert len(samples) == 50


def test_a_slow_call_gets_the_least_samples_beyond_its_time() -> None:
    samples, _ = run(1.0, Plan(warmup_seconds=0, seconds=2, least=6, most=50))
    assert len(samples) == 6


def test_a_very_slow_call_stops_at_the_limit_with_what_there_is() -> None:
    samples, watch = run(30.0, Plan(warmup_seconds=0, seconds=1, least=10, most=50, most_seconds=20))
    assert len(samples) == 1
    assert watch.calls == 2


def test_a_middling_call_is_measured_for_the_planned_time() -> None:
    samples, _ = run(0.125, Plan(warmup_seconds=0, seconds=2, least=2, most=50))
    assert len(samples) == 16
