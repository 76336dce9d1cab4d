"""A benchmark is what its child measured; a child that dies, hangs or lies gives a failed one, never none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from healthcheck import benchmarks, child, children
from healthcheck.report.model import Benchmark
from healthcheck.result import Status


@dataclasses.dataclass(frozen=True)
class Info:
    name: str = "attention"
    title: str = "attention"
    has_cpu_form: bool = True


def variant(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "baseline": name == "math",
        "status": "ok",
        "reason": "",
        "correct": True,
        "error": 1e-3,
        "tolerance": 1e-2,
        "samples_ms": [1.0, 2.0, 3.0],
        "median_ms": 2.0,
        "q1_ms": 1.5,
        "q3_ms": 2.5,
        "speedup": None,
        "throughput": {"value": 10.0, "unit": "TFLOP/s"},
        "peak_vram_bytes": None,
        "compile_seconds": None,
        "notes": [],
        **fields,
    }


def scenario(*variants: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "event": "scenario",
        "scenario": "attention",
        "title": "attention",
        "workload": "B=1 H=32 L=2048 D=128 bf16 forward",
        "device": "cpu",
        "device_name": "a CPU",
        "short": True,
        "torch": "2.8.0",
        "status": "ok",
        "reason": "",
        "variants": list(variants),
        "conditions": {"threads": 2},
        "method_version": 1,
        "seconds": 1.5,
        **fields,
    }


def measure(
    *events: dict[str, Any],
    info: Info = Info(),
    code: int = 0,
    timed_out: bool = False,
    output: str = "",
    limit: float = 60,
) -> Benchmark:
    def run(module: str, arguments: list[str], **options: Any) -> child.Outcome:
        assert module == "healthcheck.bench"
        assert arguments == ["attention", "--device", "cpu", "--short"]
        return child.Outcome(tuple(events), code, timed_out, output, 3.0)

    session = benchmarks.Session("cpu", short=True, deadline=children.Deadline(limit), run=run)
    return benchmarks.measure(info, session)


def test_what_was_measured_is_kept_whole() -> None:
    found = measure({"event": "start"}, scenario(variant("math"), variant("flash", speedup=2.0)))
    assert [v.samples_ms for v in found.variants] == [[1.0, 2.0, 3.0]] * 2
    assert found.variants[1].speedup == 2.0
    assert found.measured is not None and not found.cached
    assert benchmarks.result(found).status is Status.PASS


def test_fields_of_a_newer_scenario_are_passed_over() -> None:
    found = measure(scenario(variant("math", colour="blue"), mood="good"))
    assert found.status == "ok" and len(found.variants) == 1


def test_a_dead_child_keeps_the_variants_it_had_finished() -> None:
    found = measure(
        {"event": "variant", **variant("math")}, {"event": "variant", "name": 5}, code=-11, output="boom\n"
    )
    assert (found.status, [v.name for v in found.variants]) == ("fail", ["math"])
    assert found.reason == "the process was ended by SIGSEGV; it last said: boom"
    assert benchmarks.result(found).remedy == "bench run attention --device cpu --short"


def test_a_hang_is_a_failure_that_says_so() -> None:
    assert "did not finish within 3 s" in measure(timed_out=True).reason


@pytest.mark.parametrize(
    "lie", [{"variants": "none"}, {"status": "fine"}, {"variants": [{"name": "x"}]}, {"device": None}]
)
def test_an_answer_that_is_not_understood_is_a_failure(lie: dict[str, Any]) -> None:
    found = measure(scenario(variant("math"), **lie))
    assert found.status == "fail"
    assert "not understood" in found.reason


def test_an_answer_for_another_scenario_is_no_answer() -> None:
    assert measure(scenario(variant("math"), scenario="streams")).status == "fail"


def test_a_wrong_result_fails_however_fast_it_is() -> None:
    found = measure(
        scenario(variant("math"), variant("fast", status="fail", correct=False, reason="error 0.5 > 0.01"))
    )
    result = benchmarks.result(found)
    assert result.status is Status.FAIL
    assert "fast: error 0.5 > 0.01" in result.summary


def test_a_benchmark_in_which_nothing_was_measured_is_no_pass() -> None:
    assert benchmarks.result(measure(scenario(variant("math", status="skip")))).status is Status.FAIL


def test_a_scenario_without_cpu_form_is_skipped_there() -> None:
    found = measure(info=Info(has_cpu_form=False))
    assert benchmarks.result(found).status is Status.SKIP
    assert found.reason == "has no CPU form"


def test_a_scenario_that_the_time_limit_leaves_no_room_for_fails() -> None:
    assert "time limit" in measure(limit=0.5).reason
