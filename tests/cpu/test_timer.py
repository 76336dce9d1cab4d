"""The timer reads what a clock on the wall would."""

from __future__ import annotations

import time

import pytest

from healthcheck.measure.stats import summarise
from healthcheck.measure.timer import Plan, measure, stopwatch

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("count", [3, 10, 30])
def test_a_sleep_of_10_ms_reads_10_ms_however_often_it_is_measured(count: int) -> None:
    plan = Plan(warmup_seconds=0.02, seconds=0, least=count, most=count)
    samples = measure(lambda: time.sleep(0.010), stopwatch("cpu"), plan)
    assert len(samples) == count
    assert min(samples) >= 10.0
    assert summarise(samples).q1 <= 12.0
