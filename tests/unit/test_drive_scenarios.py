"""A benchmark is what its child measured; a child that dies, hangs or lies gives a failed one, never none."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from healthcheck.drive import budget, process, scenarios
from healthcheck.measure.activity import Activity
from healthcheck.report.model import Benchmark
from healthcheck.result import Status

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Info:
    name: str = "attention"
    title: str = "Attention"
    has_cpu_form: bool = True
    at_start: bool = True


def variant(name: str, **fields: Any) -> Event:
    return {
        "name": name,
        "label": name,
        "baseline": name == "math",
        "status": "ok",
        "correct": True,
        "samples_ms": [1.0, 2.0, 3.0],
        "median_ms": 2.0,
        **fields,
    }


def case(*variants: Event, **fields: Any) -> Event:
    return {
        "event": "case",
        "scenario": "attention",
        "case": "one",
        "title": "Attention",
        "workload": "B=1 H=32 L=2048 D=128 bf16 forward",
        "device": "cpu",
        "short": True,
        "status": "ok",
        "variants": list(variants),
        "conditions": {"threads": 2},
        "seconds": 1.5,
        **fields,
    }


def whole(*cases: Event, scenario: str = "attention") -> tuple[Event, ...]:
    """The events of a scenario that came to its end."""
    named = [{**c, "scenario": scenario} for c in cases]
    return ({"event": "start", "scenario": scenario}, *named, {"event": "end", "scenario": scenario})


class Children:
    """Plays the stack's Python: each run answers with the next outcome."""

    def __init__(self, *outcomes: process.Outcome) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[list[str]] = []
        self.limits: list[float] = []

    def __call__(self, module: str, arguments: list[str], **options: Any) -> process.Outcome:
        assert module == "healthcheck.bench"
        self.asked.append(arguments)
        self.limits.append(options["time_limit"])
        outcome = self.outcomes.pop(0)
        for event in outcome.events:
            options["on_event"](event)
        return outcome


def outcome(*events: Event, code: int = 0, timed_out: bool = False, output: str = "") -> process.Outcome:
    return process.Outcome(events, code, timed_out, output, 3.0)


def session(run: Children, **more: Any) -> scenarios.Session:
    return scenarios.Session(
        **{"device": "cpu", "short": True, "deadline": budget.Deadline(60), "run": run, **more}
    )


def measure(*events: Event, **ended: Any) -> tuple[Benchmark, ...]:
    """What is made of one child that was to measure the attention scenario."""
    return scenarios.measure([Info()], session(Children(outcome(*events, **ended))))


def only(*events: Event, **ended: Any) -> Benchmark:
    (found,) = measure(*events, **ended)
    return found


def result(*found: Benchmark) -> Any:
    (answer,) = scenarios.results(found)
    return answer


def test_what_was_measured_is_kept_whole() -> None:
    found = only(*whole(case(variant("math"), variant("flash", speedup=2.0, step_gain=2.0))))
    assert [v.samples_ms for v in found.variants] == [[1.0, 2.0, 3.0]] * 2
    assert (found.variants[1].speedup, found.variants[1].step_gain) == (2.0, 2.0)
    assert found.measured is not None and not found.cached
    assert (result(found).status, result(found).summary) == (Status.PASS, "2 measurements")


def test_cases_of_a_scenario_are_one_check() -> None:
    found = measure(*whole(case(variant("math")), case(variant("math", correct=False), case="two")))
    assert [b.case for b in found] == ["one", "two"]
    assert (result(*found).status, result(*found).summary) == (Status.FAIL, "two: math: wrong result")


def test_fields_of_a_newer_scenario_are_passed_over() -> None:
    found = only(*whole(case(variant("math", colour="blue"), mood="good")))
    assert found.status == "ok" and len(found.variants) == 1


def test_a_dead_child_keeps_what_it_had_finished() -> None:
    here = {"scenario": "attention", "case": "two"}
    first, cut_off = measure(
        {"event": "start", "scenario": "attention"},
        case(variant("math")),
        {"event": "progress", "variant": "math", **here},
        {"event": "variant", **here, **variant("math")},
        {"event": "variant", **here, "name": 5},
        code=-11,
        output="boom\n",
    )
    assert (first.case, first.status) == ("one", "ok")
    assert (cut_off.case, cut_off.status, [v.name for v in cut_off.variants]) == ("two", "fail", ["math"])
    assert cut_off.reason == "the process was ended by SIGSEGV; it last said: boom"
    assert result(first, cut_off).remedy == "bench run attention --device cpu --short"


def test_a_hang_is_a_failure_that_says_so() -> None:
    assert "did not finish within 3 s" in only(timed_out=True).reason


@pytest.mark.parametrize(
    "lie", [{"variants": "none"}, {"status": "fine"}, {"variants": [{"name": "x"}]}, {"device": None}]
)
def test_an_answer_that_is_not_understood_is_a_failure(lie: Event) -> None:
    found = only(*whole(case(variant("math"), **lie)))
    assert found.status == "fail"
    assert "not understood" in found.reason


def test_an_answer_for_another_scenario_is_no_answer() -> None:
    assert only(*whole(case(variant("math")), scenario="streams")).status == "fail"


def test_a_scenario_that_ends_without_an_answer_fails() -> None:
    assert only(*whole()).status == "fail"


def test_a_wrong_result_fails_however_fast_it_is() -> None:
    wrong = variant("fast", status="fail", correct=False, reason="error 0.5 > 0.01")
    found = only(*whole(case(variant("math"), wrong)))
    assert result(found).status is Status.FAIL
    assert "fast: error 0.5 > 0.01" in result(found).summary


def test_a_benchmark_in_which_nothing_was_measured_is_no_pass() -> None:
    found = only(*whole(case(variant("math", status="skip"))))
    assert result(found).status is Status.FAIL


def test_a_broken_control_is_a_warning_in_words() -> None:
    control = {"low": 0.95, "high": 1.05, "why": "one product fills the GPU", "holds": False}
    found = only(*whole(case(variant("serial"), variant("four-streams"), control=control)))
    assert result(found).status is Status.WARN
    assert "outside 0.95..1.05x: one product fills the GPU" in result(found).summary


def test_a_scenario_without_cpu_form_is_skipped_there() -> None:
    (found,) = scenarios.measure([Info(has_cpu_form=False)], session(Children()))
    assert result(found).status is Status.SKIP
    assert found.reason == "has no CPU form"


def test_a_scenario_that_the_time_limit_leaves_no_room_for_fails() -> None:
    late = session(Children(), deadline=budget.Deadline(0.5))
    (found,) = scenarios.measure([Info()], late)
    assert "time limit" in found.reason


TWO = [Info("attention"), Info("streams")]


def test_one_child_measures_what_is_asked_for_together() -> None:
    run = Children(
        outcome(*whole(case(variant("math"))), *whole(case(variant("serial")), scenario="streams"))
    )
    found = scenarios.measure(TWO, session(run))
    assert [[*asked[:4], *asked[6:]] for asked in run.asked] == [
        ["attention", "streams", "--device", "cpu", "--short"]
    ]
    assert [(b.scenario, b.status) for b in found] == [("attention", "ok"), ("streams", "ok")]


@pytest.mark.parametrize(
    ("seconds", "to_come", "limit"),
    [(7200, 1, 7200), (7200, 5, 1440), (3600, 5, 900), (600, 5, 600)],
    ids=["all of it", "an even part", "what one may need", "what is left"],
)
def test_the_time_of_the_command_is_handed_down(seconds: float, to_come: int, limit: float) -> None:
    run = Children(outcome(*whole(case(variant("math")))))
    scenarios.measure([Info()], session(run, deadline=budget.Deadline(seconds), to_come=to_come))
    assert run.limits == [pytest.approx(limit, abs=5)]
    asked = run.asked[0]
    assert float(asked[asked.index("--seconds") + 1]) == pytest.approx(0.9 * limit, abs=5)


def test_after_a_dead_child_the_rest_goes_on_in_a_new_one() -> None:
    died = outcome({"event": "start", "scenario": "attention"}, code=1)
    run = Children(died, outcome(*whole(case(variant("serial")), scenario="streams")))
    found = scenarios.measure(TWO, session(run))
    assert [*run.asked[1][:3], *run.asked[1][5:]] == ["streams", "--device", "cpu", "--short"]
    assert [(b.scenario, b.status) for b in found] == [("attention", "fail"), ("streams", "ok")]


def test_a_child_that_dies_in_the_second_leaves_the_first() -> None:
    begun = {"event": "start", "scenario": "streams"}
    run = Children(outcome(*whole(case(variant("math"))), begun, code=-9))
    found = scenarios.measure(TWO, session(run))
    assert [(b.scenario, b.status) for b in found] == [("attention", "ok"), ("streams", "fail")]


def test_progress_counts_what_has_begun() -> None:
    said: list[str] = []
    progress = {"event": "progress", "scenario": "attention", "case": "one", "variant": "math"}
    plan = {"event": "plan", "scenario": "attention", "variants": 2}
    start, measured, end = whole(case(variant("math")))
    run = Children(outcome(start, plan, progress, progress, measured, end))
    scenarios.measure([Info()], session(run, progress=said.append))
    assert said == ["Attention", "attention one math (1 of 2)", "attention one math (2 of 2)"]


@dataclasses.dataclass(frozen=True)
class Seen:
    max_sm_clock_mhz: int = 1980
    processes: int = 2


class FakeSampler:
    """Knows one figure for each window, so that a test sees which window was asked for."""

    def __init__(self, index: int) -> None:
        assert index == 3

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        yield

    def window(self, begin: float, end: float) -> Activity:
        self.asked = (begin, end)
        return Activity(seconds=end - begin)

    def surroundings(self) -> Seen:
        return Seen()


def test_what_was_seen_from_outside_is_kept_beside_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "Sampler", FakeSampler)
    monkeypatch.setattr(scenarios, "disturbance", lambda seen: f"{seen.processes} processes")
    steady = {"begin": 5.0, "end": 6.5, "calls": 7}
    events = whole(case(variant("math", steady=steady), variant("flash"), device="cuda"))
    (found,) = scenarios.measure([Info()], session(Children(outcome(*events)), device="cuda", gpu_index=3))
    assert found.conditions["gpu"] == {"max_sm_clock_mhz": 1980, "processes": 2}
    assert found.disturbed == "2 processes"
    first, second = found.variants
    assert (first.activity, second.activity) == (Activity(seconds=1.5), None)
    assert result(found).status is Status.WARN and "2 processes" in result(found).summary
