"""The runner with scenarios made up to be wrong, absent or too large; then the real ones in short form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import SCENARIOS, load  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Prepared, Scenario, Setup, Throughput, Unavailable, Variant  # noqa: E402
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = pytest.mark.cpu
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)


def prepared(change: Any = lambda x: x, **more: Any) -> Any:
    return lambda setup, inputs: Prepared(lambda: change(inputs + inputs), **more)


def raises(error: Exception) -> Any:
    def prepare(setup: Setup, inputs: Any) -> Prepared:
        raise error

    return prepare


def scenario(*prepares: Any, batch: int = 8, **changes: Any) -> Scenario:
    """Doubling a random vector of `batch` numbers, by variants v0, v1, ..."""
    plain = Scenario(
        name="made-up",
        title="Made up",
        has_cpu_form=True,
        variants=tuple(Variant(f"v{i}", f"variant {i}", p) for i, p in enumerate(prepares)),
        batch=lambda device, short: batch,
        workload=lambda setup: f"{setup.batch} numbers",
        inputs=lambda setup: torch.rand(setup.batch) + 1,
        reference=lambda setup, inputs: inputs.double() * 2,
        tolerance=lambda setup: 1e-6,
        throughput=lambda setup, inputs: Throughput(setup.batch, "numbers/s"),
    )
    return replace(plain, **changes)


def run_it(made_up: Scenario, **tools: Any) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    events: list[Mapping[str, Any]] = []
    return run(made_up, "cpu", True, Tools(emit=events.append, plan=PLAN, **tools)), events


def test_events_come_in_order_and_figures_come_from_the_samples() -> None:
    event, events = run_it(scenario(prepared(), prepared(label="better", notes=("a note",))))
    assert [e["event"] for e in events] == ["start", "variant", "variant", "scenario"]
    first, second = event["variants"]
    assert (event["status"], first["baseline"], second["baseline"]) == ("ok", True, False)
    assert (second["label"], second["notes"][0]) == ("better", "a note")
    for variant in (first, second):
        assert len(variant["samples_ms"]) == 3
        assert variant["median_ms"] == sorted(variant["samples_ms"])[1]
        assert variant["speedup"] == first["median_ms"] / variant["median_ms"]
        assert variant["throughput"]["value"] == pytest.approx(8e3 / variant["median_ms"])


@pytest.mark.parametrize("change", [lambda x: x * 1.001, lambda x: x * math.nan, lambda x: x[:-1]])
def test_a_wrong_variant_fails_and_has_neither_times_nor_speedup(change: Any) -> None:
    event, _ = run_it(scenario(prepared(), prepared(change)))
    right, wrong = event["variants"]
    assert (event["status"], right["status"], right["correct"]) == ("fail", "ok", True)
    assert (wrong["status"], wrong["correct"], wrong["speedup"], wrong["samples_ms"]) == (
        "fail",
        False,
        None,
        [],
    )
    assert "wrong result" in wrong["reason"]
    assert "v1: wrong result" in event["reason"]


def test_a_wrong_baseline_leaves_the_others_without_speedup() -> None:
    event, _ = run_it(scenario(prepared(lambda x: x + 1), prepared()))
    assert event["variants"][1]["status"] == "ok"
    assert event["variants"][1]["speedup"] is None


def test_a_variant_that_goes_wrong_under_load_fails() -> None:
    calls = []

    def only_at_first(x: Any) -> Any:
        calls.append(1)
        return x if len(calls) == 1 else x * 0

    event, _ = run_it(scenario(prepared(), prepared(only_at_first)))
    assert event["variants"][1]["status"] == "fail"
    assert "after repeated calls" in event["variants"][1]["reason"]
    assert event["variants"][1]["speedup"] is None


def too_large_above(limit: int) -> Any:
    def prepare(setup: Setup, inputs: Any) -> Prepared:
        if setup.batch > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024 GiB")
        return Prepared(lambda: inputs + inputs)

    return prepare


def test_out_of_memory_halves_the_batch_of_all_variants_and_says_so() -> None:
    event, _ = run_it(scenario(prepared(), too_large_above(2)))
    assert (event["status"], event["workload"], event["conditions"]["batch"]) == ("ok", "2 numbers", 2)
    for variant in event["variants"]:
        assert variant["notes"][0] == "batch halved from 8 to 2: out of memory"


def test_out_of_memory_with_the_smallest_batch_skips_the_variant_alone() -> None:
    event, _ = run_it(scenario(prepared(), too_large_above(0)))
    right, large = event["variants"]
    assert (right["status"], large["status"]) == ("ok", "skip")
    assert "out of memory" in large["reason"]


def test_inputs_that_never_fit_end_in_a_skip() -> None:
    def inputs(setup: Setup) -> Any:
        raise MemoryError("64 GiB of inputs")

    event, _ = run_it(scenario(prepared(), inputs=inputs))
    assert (event["status"], event["variants"]) == ("skip", [])
    assert "out of memory" in event["reason"]


def test_an_absent_library_skips_its_variant_with_the_reason() -> None:
    event, _ = run_it(scenario(prepared(), raises(Unavailable("flash-attn is not part of this environment"))))
    assert event["status"] == "ok"
    assert event["variants"][1]["status"] == "skip"
    assert "flash-attn" in event["variants"][1]["reason"]


def test_a_crash_of_one_variant_leaves_the_others() -> None:
    event, _ = run_it(scenario(raises(RuntimeError("boom")), prepared()))
    assert [v["status"] for v in event["variants"]] == ["fail", "ok"]
    assert "RuntimeError: boom" in event["reason"]


def test_a_used_up_time_budget_skips_what_is_left() -> None:
    clock = iter(range(0, 10_000, 100))
    event, _ = run_it(scenario(prepared(), prepared()), now=lambda: float(next(clock)), budget=150.0)
    assert [v["status"] for v in event["variants"]] == ["ok", "skip"]
    assert "time budget" in event["variants"][1]["reason"]


def test_a_scenario_without_a_cpu_form_is_skipped_with_the_reason() -> None:
    event, events = run_it(load("streams"))
    assert (event["status"], event["reason"], event["variants"]) == ("skip", "needs a GPU", [])
    assert [e["event"] for e in events] == ["start", "scenario"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible: nothing to fail on")
def test_a_missing_gpu_is_a_failure_in_words() -> None:
    event = run(load("attention"), "cuda", True, Tools(emit=lambda event: None, plan=PLAN))
    assert (event["status"], event["variants"]) == ("fail", [])
    assert "torch cannot use the GPU" in event["reason"]


@pytest.mark.parametrize("name", [name for name, info in SCENARIOS.items() if info.has_cpu_form])
def test_the_short_form_is_right_on_the_cpu(name: str) -> None:
    event, _ = run_it(load(name))
    assert event["status"] == "ok", event["reason"]
    for variant in event["variants"]:
        assert variant["correct"] is True
        assert variant["speedup"] > 0
    if name == "compile":
        assert event["variants"][1]["compile_seconds"] > 0
