"""What was achieved stands beside what is possible; what is above the possible fails the benchmark."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import benchmark, variant

from healthcheck.drive import scenarios
from healthcheck.judge import limits
from healthcheck.report.model import Benchmark, Variant
from healthcheck.result import Status

GPU = {"conditions": {"multiprocessors": 114}}  # the RTX 4090 D
BF16 = {"flops": 1e12, "engine": "bf16"}
READ = {"bytes": 1e9, "channel": "memory"}
MHZ = 3105.0
GEN4 = (4, 16)


def held(*found: Benchmark, mhz: float | None = MHZ, link: tuple[int, int] | None = GEN4) -> list[Benchmark]:
    return list(limits.with_limits(found, mhz, link))


def one(ran: Variant, **fields: Any) -> Benchmark:
    (found,) = held(benchmark(ran, **{**GPU, **fields}))
    return found


def shares(found: Benchmark, index: int = 0) -> dict[str, float]:
    return {limit.kind: limit.share for limit in found.variants[index].limits}


def test_a_rate_is_held_against_the_datasheet() -> None:
    found = one(variant("a", 10.0, cost=BF16))  # 1 TFLOP in 10 ms: 100 TFLOP/s of 147.1
    (limit,) = found.variants[0].limits
    assert (limit.kind, limit.name, limit.unit) == ("datasheet", "bf16, datasheet", "TFLOP/s")
    assert (limit.achieved, limit.limit) == (pytest.approx(100), pytest.approx(147.1, abs=0.1))
    assert limit.share == pytest.approx(100 / limit.limit)
    assert limit.source
    assert found.status == "ok"


def test_bytes_are_held_against_memory_and_link() -> None:
    memory = one(variant("a", 2.0, cost=READ)).variants[0].limits  # 500 GB/s of 1008
    assert [(x.name, x.achieved, x.limit) for x in memory] == [("memory bandwidth, datasheet", 500.0, 1008.0)]
    (copy,) = one(variant("a", 50.0, cost={"bytes": 1e9, "channel": "h2d"})).variants[0].limits
    assert copy.limit == pytest.approx(31.508, abs=1e-3)  # 16 lanes, 16 GT/s, 128 of 130 bits
    assert copy.share == pytest.approx(20 / 31.508, abs=1e-4)
    assert copy.source == "PCIe 4.0 x16, before packet headers"


def test_work_of_two_kinds_has_two_limits() -> None:
    both = one(variant("a", 10.0, cost={**BF16, "bytes": 1e8, "channel": "h2d"}))
    assert [x.name for x in both.variants[0].limits] == ["bf16, datasheet", "copy to the GPU, datasheet"]


def test_the_roofline_of_the_run_is_the_measured_ceiling_of_the_others() -> None:
    roofline = benchmark(
        variant("small", 20.0, cost=BF16), variant("large", 8.0, cost=BF16), scenario="roofline", **GPU
    )
    first, second = held(roofline, benchmark(variant("a", 10.0, cost=BF16), **GPU))
    assert shares(second)["measured"] == pytest.approx(0.8)  # 100 of 125 TFLOP/s
    assert "measured" not in shares(first)


def test_a_wrong_or_failed_roofline_is_no_ceiling() -> None:
    roofline = benchmark(variant("a", 1.0, cost=BF16, correct=False), scenario="roofline", **GPU)
    assert "measured" not in shares(held(roofline, benchmark(variant("a", 10.0, cost=BF16), **GPU))[1])


def test_a_bound_is_held_against_the_time() -> None:
    overlap = benchmark(
        variant("serial", 40.0),
        variant("overlapped", 25.0),
        variant("copy", 20.0, part=True),
        bound={"name": "max(copy, compute)", "ms": 20.0},
        **GPU,
    )
    (found,) = held(overlap)
    assert [shares(found, i).get("bound") for i in range(3)] == [0.5, 0.8, None]


def test_a_result_above_the_peak_fails_the_benchmark() -> None:
    found = one(variant("a", 1.0, cost=BF16, label="A"), case="one")  # 1000 TFLOP/s
    assert found.status == "fail"
    assert found.reason.startswith("a: DYN-LIMIT-001: 1,000 TFLOP/s (bf16) are above the 181 that the NVIDIA")
    assert found.variants[0].status == "fail" and found.variants[0].speedup is None
    assert found.variants[0].median_ms == 1.0
    assert shares(found)["datasheet"] > 6
    (result,) = scenarios.results([found])
    assert result.status is Status.FAIL and "DYN-LIMIT-001" in result.summary


def test_above_the_datasheet_and_below_the_highest_clock_is_possible() -> None:
    found = one(variant("a", 6.0, cost=BF16))  # 166.7 TFLOP/s; 114 SMs x 512 a clock x 3105 MHz are 181.2
    assert found.status == "ok"
    assert shares(found)["datasheet"] == pytest.approx(1.133, abs=1e-3)


@pytest.mark.parametrize(("channel", "ms"), [("memory", 0.9), ("h2d", 30.0), ("d2h", 30.0)])
def test_more_bytes_than_memory_or_link_can_carry_fail_too(channel: str, ms: float) -> None:
    assert one(variant("a", ms, cost={"bytes": 1e9, "channel": channel})).status == "fail"


def test_another_reason_to_fail_stays() -> None:
    found = one(variant("a", 1.0, cost=BF16), status="fail", reason="b: wrong result")
    assert found.reason.startswith("b: wrong result; a: DYN-LIMIT-001")


@pytest.mark.parametrize(
    "fields",
    [
        {"device": "cpu"},
        {"device_name": "NVIDIA of tomorrow"},
        {"device_name": None},
        {"conditions": {"multiprocessors": 14}},  # a slice of one
    ],
)
def test_without_known_peaks_nothing_is_held_and_nothing_fails(fields: dict[str, Any]) -> None:
    found = one(variant("a", 1e-6, cost=BF16), **fields)
    assert found.status == "ok" and found.variants[0].limits == []


@pytest.mark.parametrize("cost", [None, {}, {"flops": 1e12}, {"flops": 1e12, "engine": "fp64"}])
def test_work_that_was_not_counted_or_has_no_peak_has_no_limit(cost: dict[str, Any] | None) -> None:
    assert one(variant("a", 1.0, cost=cost)).variants[0].limits == []


@pytest.mark.parametrize("link", [None, (9, 16), (4, 7)])
def test_a_link_that_is_unknown_or_impossible_has_no_limit(link: tuple[int, int] | None) -> None:
    copy = benchmark(variant("a", 1e-3, cost={"bytes": 1e9, "channel": "h2d"}), **GPU)
    assert held(copy, link=link)[0].variants[0].limits == []


@given(st.floats(1e-4, 1e4), st.sampled_from(["bf16", "fp16", "tf32", "fp32"]), st.none() | st.just(MHZ))
def test_whatever_passes_is_within_the_hard_limit(ms: float, engine: str, mhz: float | None) -> None:
    (found,) = held(benchmark(variant("a", ms, cost={"flops": 1e12, "engine": engine}), **GPU), mhz=mhz)
    (limit,) = found.variants[0].limits
    assert limit.achieved == pytest.approx(1e3 / ms)
    if found.status == "ok":
        assert limit.share <= 1.3 * limits.MARGIN
    else:
        assert limit.share > 1


def test_limits_come_from_what_the_sampler_saw_of_clock_and_link() -> None:
    seen = {"max_sm_clock_mhz": MHZ, "pcie_generation": 4, "pcie_width": 16}
    found = benchmark(
        variant("a", 50.0, cost={"bytes": 1e9, "channel": "h2d"}),
        conditions={"multiprocessors": 114, "gpu": seen},
    )
    assert scenarios.judged([found])[0].variants[0].limits[0].limit == pytest.approx(31.508, abs=1e-3)
