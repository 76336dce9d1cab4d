"""The runner, with scenarios made up to be wrong, absent or too large; then the real ones in short form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import SCENARIOS, load  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import (  # noqa: E402
    Bound,
    Case,
    Compilation,
    Control,
    Cost,
    Prepared,
    Scenario,
    Setup,
    Throughput,
    Unavailable,
    Variant,
)
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = pytest.mark.cpu
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
NUMBERS = 8


def prepared(change: Any = lambda x: x, **more: Any) -> Any:
    return lambda setup, inputs: Prepared(lambda: change(inputs + inputs), **more)


def raises(error: Exception) -> Any:
    def prepare(setup: Setup, inputs: Any) -> Prepared:
        raise error

    return prepare


def variants(*prepares: Any) -> tuple[Variant, ...]:
    return tuple(Variant(f"v{i}", f"variant {i}", p) for i, p in enumerate(prepares))


def scenario(*cases: Case, **changes: Any) -> Scenario:
    """Doubling a random vector of `batch` numbers."""
    plain = Scenario(
        name="made-up",
        title="Made up",
        has_cpu_form=True,
        cases=lambda machine: cases,
        workload=lambda setup: f"{setup.batch} numbers",
        inputs=lambda setup: torch.rand(setup.batch) + 1,
        reference=lambda setup, inputs: inputs.double() * 2,
        tolerance=lambda setup: 1e-6,
        throughput=lambda setup, inputs: Throughput(setup.batch, "numbers/s"),
        cost=lambda setup, inputs: Cost(flops=float(setup.batch), engine="fp32"),
    )
    return replace(plain, **changes)


def doubling(*prepares: Any, **more: Any) -> Case:
    return Case("doubling", more.pop("batch", NUMBERS), variants(*prepares), **more)


def run_all(made_up: Scenario, **tools: Any) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    events: list[Mapping[str, Any]] = []
    return run(made_up, "cpu", True, Tools(emit=events.append, **{"plan": PLAN, **tools})), events


def run_it(*prepares: Any, case: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The answer of one case with these variants."""
    (answer,), _ = run_all(scenario(doubling(*prepares, **(case or {})), **changes))
    return answer


def test_events_come_in_order_and_figures_come_from_the_samples() -> None:
    (answer,), events = run_all(scenario(doubling(prepared(), prepared(label="better", notes=("a note",)))))
    assert [e["event"] for e in events] == [
        "start",
        "plan",
        "progress",
        "variant",
        "progress",
        "variant",
        "case",
        "end",
    ]
    assert events[1]["variants"] == 2
    first, second = answer["variants"]
    assert (answer["status"], first["baseline"], second["baseline"]) == ("ok", True, False)
    assert (second["label"], second["notes"][0]) == ("better", "a note")
    for variant in (first, second):
        assert len(variant["samples_ms"]) == 3
        assert variant["median_ms"] == sorted(variant["samples_ms"])[1]
        assert variant["speedup"] == first["median_ms"] / variant["median_ms"]
        assert variant["throughput"]["value"] == pytest.approx(8e3 / variant["median_ms"])
        assert variant["cost"] == {"flops": 8.0, "engine": "fp32", "bytes": None, "channel": None}
    assert (first["step_gain"], second["step_gain"]) == (None, second["speedup"])


def test_each_case_has_an_answer_of_its_own() -> None:
    small = doubling(prepared(), prepared(), batch=2)
    answers, events = run_all(scenario(replace(small, name="small"), doubling(prepared(), prepared())))
    assert [(a["case"], a["workload"]) for a in answers] == [
        ("small", "2 numbers"),
        ("doubling", "8 numbers"),
    ]
    assert [e["event"] for e in events].count("case") == 2
    assert events[1]["variants"] == 4


def test_each_step_is_held_against_the_last_that_is_right() -> None:
    answer = run_it(prepared(), prepared(lambda x: x * 2), prepared(), prepared())
    first, wrong, third, fourth = answer["variants"]
    assert wrong["step_gain"] is None
    assert third["step_gain"] == first["median_ms"] / third["median_ms"]
    assert fourth["step_gain"] == third["median_ms"] / fourth["median_ms"]


@pytest.mark.parametrize("change", [lambda x: x * 1.001, lambda x: x * math.nan, lambda x: x[:-1]])
def test_a_wrong_variant_fails_and_has_neither_times_nor_speedup(change: Any) -> None:
    answer = run_it(prepared(), prepared(change))
    right, wrong = answer["variants"]
    assert (answer["status"], right["status"], right["correct"]) == ("fail", "ok", True)
    assert (wrong["status"], wrong["correct"], wrong["speedup"], wrong["samples_ms"]) == (
        "fail",
        False,
        None,
        [],
    )
    assert "wrong result" in wrong["reason"]
    assert "v1: wrong result" in answer["reason"]


def test_a_wrong_baseline_leaves_the_others_without_speedup() -> None:
    answer = run_it(prepared(lambda x: x + 1), prepared())
    assert answer["variants"][1]["status"] == "ok"
    assert answer["variants"][1]["speedup"] is None


def test_a_variant_that_goes_wrong_under_load_fails() -> None:
    calls = []

    def only_at_first(x: Any) -> Any:
        calls.append(1)
        return x if len(calls) == 1 else x * 0

    late = run_it(prepared(), prepared(only_at_first))["variants"][1]
    assert (late["status"], late["speedup"]) == ("fail", None)
    assert "after repeated calls" in late["reason"]


def test_only_what_is_comparable_is_judged() -> None:
    """The reference knows the first half; a wrong second half is beyond it, a wrong first half is not."""

    def half_wrong(x: Any) -> Any:
        x[NUMBERS // 2 :] = 0
        return x

    halves: Mapping[str, Any] = {
        "reference": lambda setup, inputs: inputs[: NUMBERS // 2].double() * 2,
        "compared": lambda setup, result: result[: NUMBERS // 2],
    }
    assert run_it(prepared(), prepared(half_wrong), **halves)["status"] == "ok"
    assert run_it(prepared(), prepared(lambda x: x * 0), **halves)["status"] == "fail"


def test_a_variant_in_another_format_brings_its_own_tolerance_and_cost() -> None:
    half = Cost(flops=8.0, engine="fp16")
    rounded = prepared(lambda x: x.half().float(), tolerance=1e-3, cost=half)
    answer = run_it(prepared(), rounded, prepared(lambda x: x.half().float()))
    assert [v["status"] for v in answer["variants"]] == ["ok", "ok", "fail"]
    assert answer["variants"][1]["cost"]["engine"] == "fp16"


def too_large_above(limit: int) -> Any:
    def prepare(setup: Setup, inputs: Any) -> Prepared:
        if setup.batch > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024 GiB")
        return Prepared(lambda: inputs + inputs)

    return prepare


def test_out_of_memory_halves_the_batch_of_all_variants_and_says_so() -> None:
    answer = run_it(prepared(), too_large_above(2))
    assert (answer["status"], answer["workload"], answer["conditions"]["batch"]) == ("ok", "2 numbers", 2)
    for variant in answer["variants"]:
        assert variant["notes"][0] == "batch halved from 8 to 2: out of memory"


def test_out_of_memory_with_the_smallest_batch_skips_the_variant_alone() -> None:
    right, large = run_it(prepared(), too_large_above(0))["variants"]
    assert (right["status"], large["status"]) == ("ok", "skip")
    assert "out of memory" in large["reason"]


def test_inputs_that_never_fit_end_in_a_skip() -> None:
    def inputs(setup: Setup) -> Any:
        raise MemoryError("64 GiB of inputs")

    answer = run_it(prepared(), inputs=inputs)
    assert (answer["status"], answer["variants"]) == ("skip", [])
    assert "out of memory" in answer["reason"]


def test_inputs_that_need_what_is_absent_skip_the_case_and_broken_ones_fail_it() -> None:
    def absent(setup: Setup) -> Any:
        raise Unavailable("torchvision is not part of this environment")

    def broken(setup: Setup) -> Any:
        raise KeyError("weights")

    skipped, failed = run_it(prepared(), inputs=absent), run_it(prepared(), inputs=broken)
    assert (skipped["status"], skipped["reason"]) == ("skip", "torchvision is not part of this environment")
    assert (failed["status"], failed["reason"]) == ("fail", "the inputs cannot be made: KeyError: 'weights'")


def test_an_absent_library_skips_its_variant_with_the_reason() -> None:
    answer = run_it(prepared(), raises(Unavailable("flash-attn is not part of this environment")))
    assert answer["status"] == "ok"
    assert answer["variants"][1]["status"] == "skip"
    assert "flash-attn" in answer["variants"][1]["reason"]


def test_a_crash_of_one_variant_leaves_the_others() -> None:
    answer = run_it(raises(RuntimeError("boom")), prepared())
    assert [v["status"] for v in answer["variants"]] == ["fail", "ok"]
    assert "RuntimeError: boom" in answer["reason"]


def test_a_used_up_time_budget_skips_what_is_left() -> None:
    """One look at the clock every 100 s: the case begins within 350 s, its second variant does not."""
    clock = iter(range(0, 10_000, 100))
    made_up = scenario(doubling(prepared(), prepared()), replace(doubling(prepared()), name="never"))
    (first, never), _ = run_all(made_up, now=lambda: float(next(clock)), budget=350.0)
    assert [v["status"] for v in first["variants"]] == ["ok", "skip"]
    assert "time budget of 350 s" in first["variants"][1]["reason"]
    assert (never["status"], never["variants"]) == ("skip", [])
    assert "time budget of 350 s" in never["reason"]


class Timed:
    """A stopwatch whose samples are these milliseconds, one figure for each variant in turn."""

    def __init__(self, *milliseconds: float) -> None:
        self.left = iter(milliseconds)

    def __call__(self, device: str, side_streams: Any) -> Any:
        return _Fixed(next(self.left))


class _Fixed:
    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def sample(self, call: Any) -> float:
        call()
        return self.milliseconds


def test_compiling_pays_after_its_seconds_over_those_saved_by_a_call() -> None:
    """3 s of compiling, 10 ms -> 4 ms: 500 calls. Slower than the baseline: never."""
    compiled = prepared(compilation=Compilation(cold_seconds=3.0, warm_seconds=1.0))
    made_up = scenario(doubling(prepared(), compiled, compiled))
    (answer,), _ = run_all(made_up, stopwatch=Timed(10.0, 4.0, 20.0))
    assert [v["pays_after_calls"] for v in answer["variants"]] == [None, 500, None]
    assert [v["speedup"] for v in answer["variants"]] == [1.0, 2.5, 0.5]
    assert answer["variants"][1]["compile_seconds"] == 3.0
    assert answer["variants"][1]["compile_warm_seconds"] == 1.0


def test_parts_make_the_bound_and_are_no_rivals() -> None:
    bound = Bound("max(copy, compute)", lambda ms: max(ms["v2"], ms["v3"]))
    serial, overlapped, copy, compute = variants(prepared(), prepared(), prepared(), prepared())
    parts = (serial, overlapped, replace(copy, part=True), replace(compute, part=True))
    made_up = scenario(Case("doubling", NUMBERS, parts, bound=bound))
    (answer,), _ = run_all(made_up, stopwatch=Timed(10.0, 6.0, 4.0, 5.0))
    assert answer["bound"] == {"name": "max(copy, compute)", "ms": 5.0}
    assert [v["speedup"] for v in answer["variants"]] == [1.0, pytest.approx(10 / 6), None, None]
    assert [v["part"] for v in answer["variants"]] == [False, False, True, True]


@pytest.mark.parametrize(("second", "holds"), [(9.8, True), (8.0, False), (11.0, False)])
def test_a_control_holds_only_within_its_range(second: float, holds: bool) -> None:
    control = Control(0.95, 1.05, "the GPU is full already")
    made_up = scenario(doubling(prepared(), prepared(), control=control))
    (answer,), _ = run_all(made_up, stopwatch=Timed(10.0, second))
    assert answer["control"] == {"low": 0.95, "high": 1.05, "why": "the GPU is full already", "holds": holds}


def test_a_control_that_was_not_measured_neither_holds_nor_fails() -> None:
    answer = run_it(prepared(), raises(Unavailable("absent")), case={"control": Control(0.95, 1.05, "full")})
    assert answer["control"]["holds"] is None


def test_a_scenario_without_a_cpu_form_is_skipped_with_the_reason() -> None:
    (answer,), events = run_all(scenario(doubling(prepared()), has_cpu_form=False))
    assert (answer["status"], answer["reason"], answer["variants"]) == ("skip", "needs a GPU", [])
    assert [e["event"] for e in events] == ["start", "plan", "case", "end"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible: nothing to fail on")
def test_a_missing_gpu_is_a_failure_in_words() -> None:
    answers = run(load("attention"), "cuda", True, Tools(emit=lambda event: None, plan=PLAN))
    for answer in answers:
        assert (answer["status"], answer["variants"]) == ("fail", [])
        assert "torch cannot use the GPU" in answer["reason"]


@pytest.mark.parametrize("name", [name for name, info in SCENARIOS.items() if info.has_cpu_form])
def test_the_short_form_is_right_on_the_cpu(name: str) -> None:
    answers, _ = run_all(load(name))
    assert answers
    for answer in answers:
        assert answer["status"] == "ok", answer["reason"]
        measured = [v for v in answer["variants"] if v["status"] == "ok"]
        assert measured
        assert all(v["correct"] is True and v["median_ms"] > 0 for v in measured)
