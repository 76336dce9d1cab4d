"""The report says what is wrong and how to fix it, in 80 columns, and never breaks a line to copy."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta, timezone
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import HEALTHY, NO_GPU, with_, with_gpu

from healthcheck import children, verify
from healthcheck.checks import registry
from healthcheck.facts.collect import Facts
from healthcheck.facts.utilisation import Utilisation
from healthcheck.report import junit, terminal
from healthcheck.report.model import Benchmark, Report, Variant
from healthcheck.result import Exit, Result, Status

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def report_of(
    facts: Facts = HEALTHY,
    *results: Result,
    required: tuple[str, ...] = (),
    benchmarks: tuple[Benchmark, ...] = (),
) -> Report:
    found = verify.Verification(
        facts, "cuda", "", results or tuple(registry.judge(facts)), benchmarks=benchmarks
    )
    report = verify.assemble("verify", found, deadline=children.Deadline(60), required=required)
    return report.model_copy(update={"created": NOW})


def text_of(report: Report) -> str:
    out = io.StringIO()
    terminal.render(report, terminal.console(out))
    return out.getvalue()


def benchmark(*variants: Variant, **fields: object) -> Benchmark:
    return Benchmark.model_validate(
        {
            "scenario": "attention",
            "title": "attention",
            "device": "cuda",
            "device_name": "NVIDIA GeForce RTX 4090 D",
            "status": "ok",
            "variants": variants,
            **fields,
        }
    )


MATH = Variant(name="math", label="SDPA math", baseline=True, status="ok", correct=True, median_ms=3.42)
FLASH = Variant(name="flash", label="flash-attn", status="ok", correct=True, median_ms=0.18, speedup=19.0)


def test_a_healthy_report_is_short_and_names_gpu_and_the_four_versions() -> None:
    text = text_of(report_of())
    for said in (
        "RTX 4090 D, capability 8.9",
        "24.0 GiB, 512 MiB in use",
        "550.90.07",
        "12.4\n",
        "12.8\n",
        "12.4.131",
    ):
        assert said in text
    assert "exit code 0" in text
    assert len(text.splitlines()) < 24


def test_every_complaint_has_its_code_and_its_remedy_on_a_line_of_its_own() -> None:
    report = report_of(NO_GPU)
    lines = text_of(report).splitlines()
    complaints = [r for r in report.results if r.status in (Status.FAIL, Status.WARN, Status.UNKNOWN)]
    assert complaints
    for result in complaints:
        assert any(result.code in line for line in lines)
        for remedy in result.remedy.splitlines():
            assert f"  {remedy}" in lines


def test_a_remedy_longer_than_the_line_is_not_broken() -> None:
    remedy = "docker run " + " ".join(f"-e VARIABLE_{i}=value" for i in range(20))
    text = text_of(report_of(HEALTHY, Result("DYN-X-001", "x", Status.FAIL, "broken", remedy)))
    assert f"  {remedy}\n" in text


@pytest.mark.parametrize("facts", [HEALTHY, NO_GPU, with_gpu(name=None, memory_total=None, memory_used=None)])
def test_all_other_lines_fit_80_columns(facts: Facts) -> None:
    copied = {f"  {line}" for r in registry.judge(facts) for line in r.remedy.splitlines()}
    assert all(len(line) <= 80 for line in text_of(report_of(facts)).splitlines() if line not in copied)


def test_outside_a_terminal_there_is_neither_colour_nor_anything_but_ascii() -> None:
    text = text_of(report_of(NO_GPU, benchmarks=(benchmark(MATH, FLASH),)))
    assert "\x1b" not in text
    assert text.isascii()


def test_square_brackets_of_a_message_are_text_and_not_markup() -> None:
    text = text_of(
        report_of(HEALTHY, Result("DYN-X-001", "x", Status.FAIL, "found [N/A] [/red]", "fix [it]"))
    )
    assert "found [N/A] [/red]" in text and "fix [it]" in text


def test_skips_are_named_under_their_reason() -> None:
    results = [
        Result(f"DYN-LIB-00{i}", n, Status.SKIP, "needs a GPU") for i, n in enumerate(("cuFFT", "cuBLAS"))
    ]
    assert "skipped  cuFFT, cuBLAS: needs a GPU" in text_of(report_of(HEALTHY, *results))


def test_a_required_skip_is_told_in_full_and_fails() -> None:
    skip = Result("DYN-LIB-001", "cuFFT", Status.SKIP, "needs a GPU")
    report = report_of(HEALTHY, skip, required=("DYN-LIB-001", "DYN-NONE-001"))
    text = text_of(report)
    assert report.exit_code is Exit.FAILED
    assert "SKIP DYN-LIB-001 cuFFT (required)" in text
    assert "DYN-NONE-001 was required, but no check of that code ran" in text


def test_the_benchmark_table_shows_baseline_best_gain_and_correctness() -> None:
    text = text_of(report_of(benchmarks=(benchmark(MATH, FLASH),)))
    (row,) = [line for line in text.splitlines() if line.startswith("attention ")]
    assert row.split() == ["attention", "SDPA", "math", "3.42", "flash-attn", "0.18", "19.00x", "yes"]


def test_a_wrong_variant_is_never_the_best() -> None:
    wrong = Variant(name="w", label="wrong", status="fail", correct=False, median_ms=0.01, reason="error 0.5")
    found = benchmark(MATH, wrong, FLASH)
    assert terminal.fastest(found) == FLASH
    text = text_of(report_of(benchmarks=(found,)))
    assert " NO" in text and "wrong: fail: error 0.5" in text


def test_utilisation_names_its_lens_or_says_that_it_was_not_measured() -> None:
    assert "utilisation: not measured" in text_of(report_of(benchmarks=(benchmark(MATH),)))
    measured = benchmark(MATH, utilisation=Utilisation(gpu_percent=97.0, memory_percent=None, samples=5))
    text = text_of(report_of(benchmarks=(measured,)))
    assert "GPU busy 97 % (NVML: share of time in which any kernel ran" in text
    assert "memory busy not measured" in text


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (timedelta(seconds=30), "30 seconds ago"),
        (timedelta(hours=5), "5 hours ago"),
        (-timedelta(1), "0 seconds ago"),
    ],
)
def test_a_kept_result_shows_its_age(age: timedelta, said: str) -> None:
    assert said in text_of(report_of(benchmarks=(benchmark(MATH, cached=True, measured=NOW - age),)))


def test_the_report_survives_json_with_unknown_as_null() -> None:
    report = report_of(with_(NO_GPU, "container", shm_bytes=None), benchmarks=(benchmark(MATH, FLASH),))
    text = report.model_dump_json()
    assert Report.model_validate_json(text) == report
    content = json.loads(text)
    assert content["schema_version"] == 1
    assert content["facts"]["container"]["shm_bytes"] is None
    assert content["exit_code"] == 3


def test_the_json_schema_can_be_made() -> None:
    assert "results" in Report.model_json_schema()["properties"]


def test_facts_are_shown_without_a_judgement() -> None:
    out = io.StringIO()
    terminal.facts(NO_GPU, terminal.console(out))
    assert "none visible" in out.getvalue()
    assert "docker run" not in out.getvalue()


def test_junit_has_one_case_for_each_check_and_counts_them() -> None:
    report = report_of(NO_GPU, required=("DYN-GPU-003", "DYN-NONE-001"))
    suite = ElementTree.fromstring(junit.render(report)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    failed = [c.get("name", "") for c in cases if c.find("failure") is not None]
    assert len(cases) == int(suite.get("tests", "0")) == len(report.results) + 1
    assert len(failed) == int(suite.get("failures", "0"))
    assert [name.split()[0] for name in failed] == ["DYN-GPU-001", "DYN-GPU-003", "DYN-NONE-001"]


@settings(deadline=None)
@given(st.text(), st.text(), st.sampled_from(list(Status)))
def test_whatever_a_child_says_both_forms_hold_it(summary: str, remedy: str, status: Status) -> None:
    result = Result("DYN-X-001", summary, status, summary, remedy)
    report = report_of(HEALTHY, result)
    assert ElementTree.fromstring(junit.render(report)).find("testsuite/testcase") is not None
    assert "exit code" in text_of(report)


def test_dyno_is_named_with_its_build() -> None:
    assert "build 0123456789abcdef" in text_of(report_of())
