"""Scenarios, timer and recipe on a real GPU: right results, and wrong ones caught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import SCENARIOS, load  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Prepared, Setup, Variant  # noqa: E402
from healthcheck.measure.stats import summarise  # noqa: E402
from healthcheck.measure.timer import CudaStopwatch, Plan, measure  # noqa: E402
from healthcheck.recipes import prefetch_to_device  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
QUICK = Plan(warmup_seconds=0, seconds=0, least=3, most=3)


def run_it(scenario: Any, plan: Plan | None = None) -> dict[str, Any]:
    events: list[Mapping[str, Any]] = []
    return run(scenario, "cuda", True, Tools(emit=events.append, plan=plan))


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_the_short_form_is_right(name: str) -> None:
    event = run_it(load(name))
    assert event["status"] == "ok", event["reason"]
    for variant in event["variants"]:
        assert variant["status"] == "ok", variant
        assert variant["correct"] is True
        assert variant["peak_vram_bytes"] > 0
        assert variant["throughput"]["value"] > 0
        assert variant["speedup"] > 0


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_variant_that_never_writes_its_result_fails(name: str) -> None:
    real = load(name)

    def unwritten(setup: Setup, inputs: Any) -> Prepared:
        right = real.variants[0].prepare(setup, inputs).call()
        shape, dtype = right.shape, right.dtype
        del right
        return Prepared(lambda: torch.empty(shape, dtype=dtype, device="cuda"))

    event = run_it(replace(real, variants=(real.variants[0], Variant("x", "unwritten", unwritten))), QUICK)
    assert event["variants"][0]["status"] == "ok"
    assert event["variants"][1]["status"] == "fail"
    assert event["variants"][1]["speedup"] is None


def test_a_copy_that_is_read_before_it_arrives_fails() -> None:
    """The side stream is kept busy, so the copy is late, and nothing makes the reader wait for it."""
    real = load("streams")

    def racing(setup: Setup, inputs: Any) -> Prepared:
        side = torch.cuda.Stream()

        def call() -> Any:
            results = []
            for chunk in inputs.chunks:
                target = torch.zeros(chunk.shape, dtype=chunk.dtype, device="cuda")
                with torch.cuda.stream(side):
                    torch.cuda._sleep(20_000_000)
                    target.copy_(chunk, non_blocking=True)
                x = target
                for _ in range(inputs.products):
                    x = x @ inputs.weight
                results.append(x[inputs.rows])
                target.record_stream(side)
            out = torch.stack(results)
            torch.cuda.synchronize()
            return out

        return Prepared(call, side_streams=(side,))

    event = run_it(replace(real, variants=(real.variants[0], Variant("racing", "racing", racing))), QUICK)
    assert event["variants"][1]["status"] == "fail"


def test_out_of_memory_halves_the_batch() -> None:
    real = load("streams")
    _, total = torch.cuda.mem_get_info()

    def greedy(setup: Setup, inputs: Any) -> Prepared:
        if setup.batch > 2:
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        return real.variants[1].prepare(setup, inputs)

    event = run_it(replace(real, variants=(real.variants[0], Variant("greedy", "greedy", greedy))), QUICK)
    assert event["status"] == "ok", event["reason"]
    assert event["conditions"]["batch"] == 2
    assert "batch halved from 8 to 2" in event["variants"][0]["notes"][0]


def test_work_on_a_side_stream_is_timed_when_the_timer_is_told_of_it() -> None:
    """Work reads the same on either stream."""
    side = torch.cuda.Stream()
    cycles = 40_000_000

    def beside() -> None:
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)

    plan = Plan(warmup_seconds=0.2, seconds=0, least=5, most=5)
    here = summarise(measure(lambda: torch.cuda._sleep(cycles), CudaStopwatch(), plan)).median
    there = summarise(measure(beside, CudaStopwatch((side,)), plan)).median
    assert 0.5 * here < there < 2 * here


def test_prefetching_brings_every_batch_unchanged() -> None:
    batches = [torch.full((64, 1024, 16), float(i)).pin_memory() for i in range(12)]
    seen = []
    for batch in prefetch_to_device(batches, depth=2):
        torch.cuda._sleep(1_000_000)
        seen.append(batch * 2)
    assert [(float(x.min()), float(x.max())) for x in seen] == [(2.0 * i, 2.0 * i) for i in range(12)]


def test_prefetching_refuses_pageable_memory_and_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"pin_memory\(\)"):
        list(prefetch_to_device([torch.zeros(4)]))


def test_prefetching_refuses_a_depth_of_nothing() -> None:
    with pytest.raises(ValueError, match="depth is 0"):
        list(prefetch_to_device([], depth=0))
