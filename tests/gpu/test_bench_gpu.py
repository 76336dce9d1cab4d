"""Runner and timer on a real GPU: right results, and wrong ones caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import SCENARIOS, load  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Case, Machine, Prepared, Scenario, Setup, Variant  # noqa: E402
from healthcheck.measure.stats import summarise  # noqa: E402
from healthcheck.measure.timer import CudaStopwatch, Plan, measure  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
QUICK = Plan(warmup_seconds=0, seconds=0, least=3, most=3)


def run_it(scenario: Scenario, plan: Plan | None = None) -> list[dict[str, Any]]:
    return run(scenario, "cuda", True, Tools(emit=lambda event: None, plan=plan, steady_seconds=0.05))


def with_variants(real: Scenario, change: Any) -> Scenario:
    """`real` with `change` (variants -> variants) made to each case."""

    def cases(machine: Machine) -> tuple[Case, ...]:
        return tuple(replace(c, variants=change(c.variants), bound=None) for c in real.cases(machine))

    return replace(real, cases=cases)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_the_short_form_is_right(name: str) -> None:
    answers = run_it(load(name))
    assert answers
    for answer in answers:
        assert answer["status"] == "ok", answer["reason"]
        assert answer["variants"][0]["status"] == "ok", "the baseline needs nothing that can be absent"
        for variant in answer["variants"]:
            if variant["status"] == "skip":
                assert variant["reason"]
                continue
            assert variant["correct"] is True
            assert variant["peak_vram_bytes"] > 0
            assert variant["steady"]["calls"] > 0
            assert variant["part"] or variant["speedup"] > 0


def unwritten_like(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(unwritten_like(part) for part in result)
    return torch.empty(result.shape, dtype=result.dtype, device="cuda")


def on_no_device(result: Any) -> Any:
    """Shapes and formats of `result` without its memory."""
    if isinstance(result, tuple):
        return tuple(on_no_device(part) for part in result)
    return torch.empty(result.shape, dtype=result.dtype, device="meta")


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_variant_that_never_writes_its_result_fails(name: str) -> None:
    """Its memory may still hold the right answer of the variant before: the runner overwrites it first."""

    def beside(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
        def unwritten(setup: Setup, inputs: Any) -> Prepared:
            ready = variants[0].prepare(setup, inputs)
            with ready.context():
                shapes = on_no_device(ready.call())
            return Prepared(lambda: unwritten_like(shapes))

        return (variants[0], Variant("unwritten", "unwritten", unwritten))

    for answer in run_it(with_variants(load(name), beside), QUICK):
        first, second = answer["variants"]
        assert first["status"] == "ok", first["reason"]
        assert (second["status"], second["correct"], second["speedup"]) == ("fail", False, None)


def doubling(*prepares: Any) -> Scenario:
    variants = tuple(Variant(f"v{i}", f"variant {i}", p) for i, p in enumerate(prepares))
    return Scenario(
        name="made-up",
        title="Made up",
        has_cpu_form=False,
        cases=lambda machine: (Case("doubling", 8, variants),),
        workload=lambda setup: f"{setup.batch} numbers",
        inputs=lambda setup: torch.rand(setup.batch, device="cuda") + 1,
        reference=lambda setup, inputs: inputs.double() * 2,
        tolerance=lambda setup: 1e-6,
    )


def test_out_of_memory_halves_the_batch_and_leaves_no_memory_behind() -> None:
    _, total = torch.cuda.mem_get_info()

    def greedy(setup: Setup, inputs: Any) -> Prepared:
        if setup.batch > 2:
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        return Prepared(lambda: inputs + inputs)

    (answer,) = run_it(doubling(lambda setup, inputs: Prepared(lambda: inputs * 2), greedy), QUICK)
    assert answer["status"] == "ok", answer["reason"]
    assert answer["conditions"]["batch"] == 2
    assert "batch halved from 8 to 2" in answer["variants"][0]["notes"][0]
    assert torch.cuda.memory_allocated() < total / 100


def test_a_copy_that_is_read_before_it_arrives_fails() -> None:
    """The side stream is kept busy, so the copy is late, and nothing makes the reader wait for it."""

    def racing(setup: Setup, inputs: Any) -> Prepared:
        side = torch.cuda.Stream()
        pinned = inputs.cpu().pin_memory()

        def call() -> Any:
            target = torch.zeros_like(inputs)
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                target.copy_(pinned, non_blocking=True)
            result = target + target
            target.record_stream(side)
            return result

        return Prepared(call, side_streams=(side,))

    (answer,) = run_it(doubling(lambda setup, inputs: Prepared(lambda: inputs * 2), racing), QUICK)
    assert [v["status"] for v in answer["variants"]] == ["ok", "fail"]


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
