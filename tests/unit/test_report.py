"""The report says what is wrong and how to fix it, in 80 columns, and never breaks a line to copy."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import (
    ATTENTION,
    COMPILE,
    HEALTHY,
    NO_GPU,
    NOW,
    START_UP,
    STREAMS,
    activity,
    benchmark,
    report_of,
    variant,
    with_,
    with_gpu,
)

from healthcheck.checks import registry
from healthcheck.facts.snapshot import Facts
from healthcheck.report import junit, terminal
from healthcheck.report.model import Benchmark, Report
from healthcheck.result import Exit, Result, Status


def text_of(facts: Facts = HEALTHY, *results: Result, **fields: object) -> str:
    return terminal.text(report_of(facts, *results, **fields))  # type: ignore[arg-type]


def flat(text: str) -> str:
    """Without the breaks of lines."""
    return " ".join(text.split())


def rows_of(text: str) -> list[str]:
    """Each line with its columns one blank apart."""
    return [" ".join(line.split()) for line in text.splitlines()]


# -- the machine and the checks ----------------------------------------------------------------------------


def test_a_healthy_report_is_short_and_names_gpu_and_the_four_versions() -> None:
    text = flat(text_of())
    for said in (
        "RTX 4090 D, capability 8.9",
        "24.0 GiB, 512 MiB in use",
        "driver 550.90.07 driver's CUDA 12.4 torch's CUDA 12.8 toolkit's CUDA 12.4.131",
        "exit code 0",
    ):
        assert said in text
    assert len(text_of().splitlines()) < 16


def test_groups_share_a_line_where_both_are_short_and_keep_their_order() -> None:
    results = [
        *(Result(f"DYN-{g}-001", g, Status.PASS, "fine") for g in ("GPU", "DRIVER", "CUDA")),
        Result("DYN-LIB-001", "cuFFT", Status.SKIP, "needs a GPU"),
        Result("DYN-LIB-002", "cuBLAS", Status.FAIL, "broken", "fix"),
        Result("DYN-WORK-001", "shm", Status.PASS, "fine"),
    ]
    lines = [line.rstrip() for line in text_of(HEALTHY, *results).splitlines()]
    at = lines.index("pass    GPU         1 of 1 passed       pass    driver      1 of 1 passed")
    assert lines[at + 1 : at + 4] == [
        "pass    CUDA        1 of 1 passed",
        "fail    libraries   0 of 2 passed, 1 failed, 1 skipped",
        "pass    workspace   1 of 1 passed",
    ]


def test_every_complaint_has_its_code_and_its_remedy_on_a_line_of_its_own() -> None:
    report = report_of(NO_GPU)
    lines = terminal.text(report).splitlines()
    complaints = [r for r in report.results if r.status in (Status.FAIL, Status.WARN, Status.UNKNOWN)]
    assert complaints
    for result in complaints:
        assert any(result.code in line for line in lines)
        for remedy in result.remedy.splitlines():
            assert f"  {remedy}" in lines


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.PASS, "All checks that apply have passed."),
        (Status.SKIP, "All checks that apply have passed."),
        (Status.WARN, "Nothing that was checked is wrong; 1 to look at."),
        (Status.UNKNOWN, "Nothing that was checked is wrong; 1 unknown."),
        (Status.FAIL, "Something that was checked is wrong."),
    ],
)
def test_the_closing_line_says_no_more_than_the_results(status: Status, said: str) -> None:
    results = (
        Result("DYN-WORK-001", "one", Status.PASS, "fine"),
        Result("DYN-WORK-002", "two", status, "said", "cure"),
    )
    closing = text_of(HEALTHY, *results).splitlines()[-2]
    assert closing.startswith(f"{said} ")


def test_failures_with_one_cure_are_one_paragraph() -> None:
    same = [Result(f"DYN-LIB-00{i}", f"library {i}", Status.FAIL, "no kernel", "cure") for i in (1, 2)]
    other = Result("DYN-LIB-003", "library 3", Status.FAIL, "broken too", "cure")
    lines = text_of(HEALTHY, same[0], other, same[1]).splitlines()
    at = lines.index("FAIL DYN-LIB-001 library 1")
    assert lines[at : at + 6] == [
        "FAIL DYN-LIB-001 library 1",
        "FAIL DYN-LIB-002 library 2",
        "no kernel",
        "FAIL DYN-LIB-003 library 3",
        "broken too",
        "  cure",
    ]


def test_failures_without_a_cure_stay_apart() -> None:
    text = text_of(HEALTHY, *(Result(f"DYN-X-00{i}", "x", Status.FAIL, f"broken {i}") for i in (1, 2)))
    assert "FAIL DYN-X-001 x\nbroken 1\n\nFAIL DYN-X-002 x\nbroken 2\n" in text


def test_a_remedy_longer_than_the_line_is_not_broken() -> None:
    remedy = "docker run " + " ".join(f"-e VARIABLE_{i}=value" for i in range(20))
    text = text_of(HEALTHY, Result("DYN-X-001", "x", Status.FAIL, "broken", remedy))
    assert f"  {remedy}\n" in text


@pytest.mark.parametrize("facts", [HEALTHY, NO_GPU, with_gpu(name=None, memory_total=None, memory_used=None)])
def test_all_other_lines_fit_80_columns(facts: Facts) -> None:
    copied = {f"  {line}" for r in registry.judge(facts) for line in r.remedy.splitlines()}
    assert all(len(line) <= 80 for line in text_of(facts).splitlines() if line not in copied)


def test_outside_a_terminal_there_is_neither_colour_nor_anything_but_ascii() -> None:
    text = text_of(NO_GPU, benchmarks=START_UP)
    assert "\x1b" not in text
    assert text.isascii()


def test_square_brackets_of_a_message_are_text_and_not_markup() -> None:
    text = text_of(HEALTHY, Result("DYN-X-001", "x", Status.FAIL, "found [N/A] [/red]", "fix [it]"))
    assert "found [N/A] [/red]" in text and "fix [it]" in text


def test_skips_are_named_under_their_reason() -> None:
    results = [
        Result(f"DYN-LIB-00{i}", n, Status.SKIP, "needs a GPU") for i, n in enumerate(("cuFFT", "cuBLAS"))
    ]
    assert "skipped  cuFFT, cuBLAS: needs a GPU" in text_of(HEALTHY, *results)


def test_a_required_skip_is_told_in_full_and_fails() -> None:
    skip = Result("DYN-LIB-001", "cuFFT", Status.SKIP, "needs a GPU")
    report = report_of(HEALTHY, skip, required=("DYN-LIB-001", "DYN-NONE-001"))
    text = terminal.text(report)
    assert report.exit_code is Exit.FAILED
    assert "SKIP DYN-LIB-001 cuFFT (required)" in text
    assert "DYN-NONE-001 was required, but no check of that code ran" in text


def test_dyno_is_named_with_its_build() -> None:
    assert "build 0123456789abcdef" in text_of()


def test_facts_are_shown_without_a_judgement() -> None:
    out = io.StringIO()
    terminal.facts(NO_GPU, terminal.console(out))
    assert "none visible" in out.getvalue()
    assert "docker run" not in out.getvalue()


# -- the start-up report -----------------------------------------------------------------------------------


def test_a_start_where_all_is_well_fills_one_screen() -> None:
    text = text_of(benchmarks=START_UP, command="selftest")
    assert len(text.splitlines()) <= 24
    assert "Next: bench run  # the benchmarks at length" in text


def test_a_case_has_its_baseline_best_gain_and_share_of_its_limit() -> None:
    rows = rows_of(text_of(benchmarks=START_UP, command="selftest"))
    assert "attention L2048 SDPA math 4 SDPA flash 0.4 10.00x 58 % peak" in rows
    assert "compile blocks eager 3 torch.compile 1.5 2.00x -" in rows
    assert "streams overlap copy, then compute 40 copy beside compute 21 1.90x 95 % bound" in rows


def test_a_short_form_shows_a_claim_only_where_the_workload_is_the_published_one() -> None:
    assert "claimed" not in text_of(benchmarks=START_UP, command="selftest")
    published = benchmark(
        variant("eager", 58.0, label="eager"),
        variant("compiled", 42.0, label="torch.compile"),
        variant("best", 20.0, label="best recipe"),
        scenario="compile",
        case="b64",
        workload="ResNet-50, b64 3x224x224 fp32 inference",
        conditions={"batch": 64},
        short=True,
    )
    rows = rows_of(text_of(benchmarks=(published,), command="selftest"))
    assert "compile b64 eager 58 torch.compile 42 1.38x 1.38x -" in rows
    assert "compile b64 eager 58 best recipe 20 2.90x - -" in rows


def test_utilisation_names_its_lens_and_what_no_lens_saw() -> None:
    text = text_of(benchmarks=START_UP, command="selftest")
    (busy,) = [line for line in text.splitlines() if line.startswith("NVML busy")]
    assert busy.split()[-6:] == ["98", "%"] * 3
    assert (
        "not seen: sm-activity, tensor-activity, dram-activity: not measured: GPM is not supported"
        in flat(text)
    )
    hopper = benchmark(variant("a"), variant("b", 0.5, activity=activity(busy=99.0, sm_activity=61.4)))
    assert "GPM SM active 61 %" in flat(text_of(benchmarks=(hopper,), command="selftest"))
    assert "GPM" not in text_of(benchmarks=(benchmark(variant("a", activity=activity(busy=9.0))),))


def test_vram_is_that_of_the_best_form() -> None:
    assert "VRAM peak (torch allocated) 96 MiB - -" in flat(text_of(benchmarks=START_UP, command="selftest"))


def test_on_the_cpu_there_is_no_utilisation_table() -> None:
    found = benchmark(variant("a"), device="cpu", device_name="a CPU")
    assert "utilisation" not in text_of(NO_GPU, benchmarks=(found,), command="selftest")


def test_a_wrong_variant_is_never_the_best_and_is_named() -> None:
    wrong = variant("w", 0.01, label="wrong", status="fail", correct=False, reason="error 0.5")
    found = ATTENTION.model_copy(
        update={"variants": [*ATTENTION.variants, wrong], "status": "fail", "reason": "w: error 0.5"}
    )
    text = text_of(benchmarks=(found,))
    assert "SDPA flash" in text and "0.01" not in text
    assert "attention L2048: fail: w: error 0.5" in text


def test_a_best_form_that_is_slower_than_the_baseline_is_said_to_be_so() -> None:
    slower = benchmark(variant("a", 1.0, label="plain"), variant("b", 2.5, label="clever"), short=True)
    said = "nothing is faster than the baseline: clever takes 2.50x its time"
    assert said in flat(text_of(benchmarks=(slower,), command="selftest"))
    assert "nothing is faster" not in text_of(benchmarks=START_UP, command="selftest")


@pytest.mark.parametrize(("q3", "said"), [(1.0, True), (0.9, False), (None, False)])
def test_a_gain_within_the_spread_is_said_to_be_so(q3: float | None, said: bool) -> None:
    found = benchmark(variant("a", 1.1, q1_ms=0.95), variant("b", 0.9, q3_ms=q3), short=True)
    text = flat(text_of(benchmarks=(found,), command="selftest"))
    assert ("the gain of 1.22x is within the spread of the samples" in text) == said


def test_what_was_not_run_disturbed_or_out_of_control_is_said() -> None:
    skipped = benchmark(status="skip", reason="has no CPU form", case="one")
    doubtful = STREAMS.model_copy(update={"disturbed": "another process used the GPU"})
    control = benchmark(
        variant("serial"), control={"low": 0.95, "high": 1.05, "why": "it fills the GPU", "holds": False}
    )
    text = flat(text_of(benchmarks=(skipped, doubtful, control)))
    assert "attention one not run" in text and "attention one: skip: has no CPU form" in text
    assert "streams overlap: not to be believed: another process used the GPU" in text
    assert "attention: negative control DOES NOT HOLD (0.95..1.05x): it fills the GPU" in text


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (timedelta(seconds=30), "30 seconds ago"),
        (timedelta(hours=5), "5 hours ago"),
        (-timedelta(1), "0 seconds ago"),
    ],
)
def test_a_kept_result_shows_its_age(age: timedelta, said: str) -> None:
    kept = tuple(
        b.model_copy(update={"cached": True, "measured": NOW - age}) for b in (ATTENTION, COMPILE, COMPILE)
    )
    text = flat(text_of(benchmarks=kept, command="selftest"))
    assert f"attention, compile: measured {said} and kept; anew: bench run attention compile" in text


# -- the report of a benchmark run -------------------------------------------------------------------------


def test_a_benchmark_run_adds_the_ladder_the_winners_and_the_claims() -> None:
    text = text_of(benchmarks=START_UP, command="bench run")
    rows = rows_of(text)
    assert "forward causal bf16 flash" in rows
    assert "blocks torch.compile 1.5 2.00x 2.00x 6 - 4,000 calls" in rows
    assert "ResNet-50 b64: eager 58.3 ms - >= 3.56 ms not comparable" in rows
    assert "epoch" not in text  # no scenario measures it yet


texts = st.text(st.characters(min_codepoint=32, max_codepoint=0x17F, exclude_characters="\x7f"), max_size=200)
figures = st.none() | st.floats(1e-6, 1e9)


@st.composite
def benchmarks(draw: st.DrawFn) -> Benchmark:
    ran = [
        variant(draw(texts), draw(figures), label=draw(texts), reason=draw(texts), status=draw(statuses))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return benchmark(
        *ran,
        scenario=draw(st.sampled_from(["attention", "compile", "streams", "roofline"])),
        case=draw(texts),
        workload=draw(texts),
        reason=draw(texts),
        disturbed=draw(texts),
        status=draw(statuses),
        device_name=draw(texts),
    )


statuses = st.sampled_from(["ok", "skip", "fail"])


@settings(deadline=None, max_examples=50)
@given(st.lists(benchmarks(), max_size=7), st.sampled_from(["selftest", "bench run"]))
def test_no_line_of_any_report_is_wider_than_80_columns(found: list[Benchmark], command: str) -> None:
    passed = Result("DYN-X-001", "x", Status.PASS, "fine")
    text = terminal.text(report_of(HEALTHY, passed, benchmarks=tuple(found), command=command))
    assert [line for line in text.split("\n") if len(line) > 80] == []


# -- the forms for machines --------------------------------------------------------------------------------


def test_the_report_survives_json_with_unknown_as_null() -> None:
    report = report_of(with_(NO_GPU, "container", shm_bytes=None), benchmarks=START_UP)
    text = report.model_dump_json()
    assert Report.model_validate_json(text) == report
    content = json.loads(text)
    assert content["schema_version"] == 2
    assert content["facts"]["container"]["shm_bytes"] is None
    assert content["exit_code"] == 3
    assert content["benchmarks"][0]["variants"][1]["limits"][0]["share"] == 0.58


def test_the_json_schema_can_be_made() -> None:
    assert "results" in Report.model_json_schema()["properties"]


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
    report = report_of(HEALTHY, Result("DYN-X-001", summary, status, summary, remedy))
    assert ElementTree.fromstring(junit.render(report)).find("testsuite/testcase") is not None
    assert "exit code" in terminal.text(report)
