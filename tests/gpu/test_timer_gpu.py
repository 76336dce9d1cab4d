"""The timer against the hardware: a kernel that reads the GPU's own clock until its time is up."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from healthcheck.measure.timer import CudaStopwatch, Plan, measure  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]


@pytest.mark.parametrize("nanoseconds", [100_000, 1_000_000, 10_000_000])
def test_a_kernel_is_never_timed_shorter_than_it_sleeps(nanoseconds: int) -> None:
    """One per mille of leave: events and %globaltimer are two clocks."""
    from tests.gpu.sleep_kernel import sleep

    plan = Plan(warmup_seconds=0.05, seconds=0, least=20, most=20)
    samples = measure(lambda: sleep(nanoseconds), CudaStopwatch(), plan)
    assert len(samples) == 20, "every sample is kept"
    assert min(samples) >= nanoseconds / 1e6 * 0.999


def test_two_streams_sleep_side_by_side_and_one_after_the_other() -> None:
    """Joined streams: two sleeps of 5 ms beside each other last 5 ms at least, in turn 10 ms at least."""
    from tests.gpu.sleep_kernel import sleep

    side = torch.cuda.Stream()
    plan = Plan(warmup_seconds=0.05, seconds=0, least=5, most=5)

    def beside() -> None:
        sleep(5_000_000)
        with torch.cuda.stream(side):
            sleep(5_000_000)

    def in_turn() -> None:
        sleep(5_000_000)
        sleep(5_000_000)

    assert min(measure(beside, CudaStopwatch((side,)), plan)) >= 5 * 0.999
    assert min(measure(in_turn, CudaStopwatch(), plan)) >= 10 * 0.999
