"""The self-test keeps benchmark results and nothing else, and says in time what it could not finish."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from samples import HEALTHY, NO_GPU, STACK, with_, with_gpu, with_manifest

from healthcheck import output, selftest
from healthcheck.drive import budget, exercises
from healthcheck.facts.snapshot import Facts
from healthcheck.report.model import Benchmark, Variant
from healthcheck.result import Result, Status
from healthcheck.verify import Verification

CPU = dataclasses.replace(NO_GPU, device="cpu")


@pytest.fixture(autouse=True)
def no_exercises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exercises have tests of their own; here they would only cost time."""
    monkeypatch.setattr(exercises, "listed", tuple)


class Bench:
    """Measures at once, and keeps in mind what it was asked for."""

    def __init__(
        self, status: str = "ok", correct: bool = True, reason: str = "", disturbed: str = "", **more: Any
    ) -> None:
        self.status, self.correct, self.reason, self.disturbed = status, correct, reason, disturbed
        self.batch, self.second = more.get("batch", 8), more.get("second")
        self.measured: list[str] = []

    def __call__(self, names: Sequence[str], found: Verification) -> tuple[Benchmark, ...]:
        self.measured += names
        return tuple(self._one(name, found) for name in names)

    def _one(self, name: str, found: Verification) -> Benchmark:
        variant = Variant(
            name="a",
            label="a",
            status="ok" if self.correct else "fail",
            correct=self.correct,
            samples_ms=[1.0],
        )
        return Benchmark.model_validate(
            {
                "scenario": name,
                "title": name,
                "device": found.device,
                "status": self.status,
                "reason": self.reason,
                "disturbed": self.disturbed,
                "variants": [variant, *([self.second] if self.second else [])],
                "conditions": {"batch": self.batch, "batch_asked": 8},
                "measured": datetime.now(timezone.utc),
            }
        )


def run(cache: Path, bench: Bench, facts: Facts = HEALTHY, mode: str = "full") -> Verification:
    return selftest.run(facts, mode, budget.Deadline(60), lambda text: None, cache=cache, measure=bench)


def by_code(found: Verification) -> dict[str, Result]:
    return {r.code: r for r in found.results}


NAMES = ["attention", "compile", "streams"]


def test_a_second_start_shows_the_kept_results_and_measures_nothing(tmp_path: Path) -> None:
    bench = Bench()
    first, second = run(tmp_path / "c", bench), run(tmp_path / "c", bench)
    assert bench.measured == NAMES
    assert [b.cached for b in first.benchmarks] == [False] * 3
    assert [b.cached for b in second.benchmarks] == [True] * 3
    assert second.benchmarks[0].measured == first.benchmarks[0].measured


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    bench = Bench()
    run(tmp_path / "c", bench)
    (streams,) = (tmp_path / "c").glob("*-streams.json")
    streams.unlink()
    found = run(tmp_path / "c", bench)
    assert bench.measured == [*NAMES, "streams"]
    assert {b.scenario: b.cached for b in found.benchmarks} == {
        "attention": True,
        "compile": True,
        "streams": False,
    }


def test_checks_are_live_even_where_benchmarks_are_kept(tmp_path: Path) -> None:
    bench = Bench()
    run(tmp_path / "c", bench)
    found = run(tmp_path / "c", bench, with_(HEALTHY, "container", shm_bytes=1))
    assert by_code(found)["DYN-WORK-006"].status is Status.WARN


@pytest.mark.parametrize(
    "bench",
    [
        Bench(status="fail"),
        Bench(status="skip"),
        Bench(correct=False),
        Bench(disturbed="another process used the GPU"),
        Bench(batch=4),
        Bench(second=Variant(name="b", label="b", status="skip", reason="the time budget was used up")),
    ],
    ids=["failed", "skipped", "wrong", "disturbed", "halved", "in part"],
)
def test_only_good_results_are_kept(tmp_path: Path, bench: Bench) -> None:
    run(tmp_path / "c", bench)
    run(tmp_path / "c", bench)
    assert bench.measured == NAMES * 2


def test_a_variant_that_this_stack_has_not_keeps_no_result_from_being_kept(tmp_path: Path) -> None:
    absent = Variant(name="b", label="b", status="skip", reason="flash-attn is not here", absent=True)
    bench = Bench(second=absent)
    run(tmp_path / "c", bench)
    run(tmp_path / "c", bench)
    assert bench.measured == NAMES


def test_what_another_code_measured_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = selftest.key(HEALTHY, "cuda")
    assert selftest.key(HEALTHY, "cuda") == before
    monkeypatch.setattr(selftest.scenarios, "method_digest", lambda: "another")
    assert selftest.key(HEALTHY, "cuda") != before


def changed() -> Iterator[Facts]:
    yield with_gpu(uuid="GPU-2")
    yield with_(HEALTHY, "gpu", driver="570.1")
    yield with_manifest(HEALTHY, build_id="another")
    yield with_(HEALTHY, "stack", distributions={**STACK, "triton": "3.5.0"})


@pytest.mark.parametrize("facts", list(changed()))
def test_another_gpu_driver_build_or_torch_is_measured_anew(facts: Facts) -> None:
    assert selftest.key(facts, "cuda") != selftest.key(HEALTHY, "cuda")


def test_an_unrelated_package_does_not_void_what_was_kept() -> None:
    facts = with_(HEALTHY, "stack", distributions={**STACK, "pandas": "3.0"})
    assert selftest.key(facts, "cuda") == selftest.key(HEALTHY, "cuda")


def test_a_damaged_file_is_measured_anew(tmp_path: Path) -> None:
    bench = Bench()
    run(tmp_path / "c", bench)
    for file in (tmp_path / "c").iterdir():
        file.write_text("{")
    run(tmp_path / "c", bench)
    assert bench.measured == NAMES * 2


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    found = run(tmp_path / "not/there", Bench())
    assert by_code(found)["DYN-BENCH-ATTENTION"].status is Status.PASS


def test_without_a_gpu_nothing_is_measured_unless_cpu_use_is_declared(tmp_path: Path) -> None:
    bench = Bench()
    assert run(tmp_path / "c", bench, NO_GPU).benchmarks == ()
    assert bench.measured == []
    assert {b.device for b in run(tmp_path / "c", bench, CPU).benchmarks} == {"cpu"}


def test_benchmarks_that_cannot_be_run_at_all_are_a_failure_and_no_traceback(tmp_path: Path) -> None:
    def broken(names: Sequence[str], found: Verification) -> tuple[Benchmark, ...]:
        raise ImportError("no module named bench")

    found = selftest.run(
        HEALTHY, "full", budget.Deadline(60), lambda text: None, cache=tmp_path, measure=broken
    )
    assert by_code(found)["DYN-BENCH-000"].status is Status.FAIL
    assert "no module named bench" in by_code(found)["DYN-BENCH-000"].summary


def test_the_mode_verify_measures_nothing(tmp_path: Path) -> None:
    assert run(tmp_path / "c", Bench(), mode="verify").benchmarks == ()


def test_what_the_time_limit_cut_off_is_named(tmp_path: Path) -> None:
    bench = Bench(status="fail", reason="the process did not finish within 20 s and was ended")
    found = by_code(run(tmp_path / "c", bench))["DYN-SELFTEST-001"]
    assert found.status is Status.FAIL
    assert "benchmark attention" in found.summary
    assert "SELFTEST_TIMEOUT=" in found.remedy


def test_a_self_test_that_finished_says_so(tmp_path: Path) -> None:
    assert by_code(run(tmp_path / "c", Bench()))["DYN-SELFTEST-001"].status is Status.PASS


def test_the_deadline_lies_before_the_entrypoints() -> None:
    assert selftest.settings({"SELFTEST_TIMEOUT": "100"}).limit == 95
    assert 0 < selftest.settings({"SELFTEST_TIMEOUT": "5"}).limit < 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SELFTEST_TIMEOUT", "abc"),
        ("SELFTEST_TIMEOUT", "-1"),
        ("SELFTEST_TIMEOUT", "nan"),
        ("SELFTEST", "on"),
        ("SELFTEST_POLICY", "lenient"),
    ],
)
def test_nonsense_in_the_environment_is_one_line_with_name_and_value(name: str, value: str) -> None:
    with pytest.raises(output.Stop, match=f"{name}={value}") as stopped:
        selftest.settings({name: value})
    assert stopped.value.code == 2
    assert "\n" not in str(stopped.value)


def test_empty_variables_mean_the_defaults() -> None:
    empty = dict.fromkeys(("SELFTEST", "SELFTEST_POLICY", "SELFTEST_TIMEOUT"), "")
    assert selftest.settings(empty) == selftest.settings({})
