"""The tables of a report hold what was measured, and a dash where nothing was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import ATTENTION, COMPILE, START_UP, STREAMS, activity, benchmark, peak, report_of, variant

from healthcheck.report import benchmarks as tables
from healthcheck.report.benchmarks import Table
from healthcheck.report.model import Benchmark


def row(table: Table, first: str) -> dict[str, str]:
    """The row that begins with `first`, by column."""
    (found,) = [each for each in table.rows if each[0] == first]
    return dict(zip(table.columns, found, strict=True))


def attention(length: int, kind: str, **medians: float) -> Benchmark:
    """One case of the attention matrix: 1 TFLOP by each backend."""
    ran = [variant(n, ms, throughput={"value": 1e3 / ms, "unit": "TFLOP/s"}) for n, ms in medians.items()]
    return benchmark(*ran, workload=f"B=1 H=32 L={length} D=128 {kind}", case=f"{length} {kind}")


MATRIX = (
    attention(512, "bf16 causal forward", math=4.0, flash=1.0, cudnn=2.0),
    attention(8192, "bf16 causal forward", math=4.0, flash=2.0, cudnn=1.6),
    attention(512, "fp16 full backward", math=4.0, efficient=3.2),
)


def test_which_backend_wins_where_lies_over_length_direction_mask_and_format() -> None:
    table = tables.winners(MATRIX)
    assert table.columns == ("fastest", "L=512", "L=8192")
    assert table.rows == (
        ("forward causal bf16", "flash", "cudnn"),
        ("  TFLOP/s", "1,000", "625"),
        ("backward full fp16", "efficient", "-"),
        ("  TFLOP/s", "312", "-"),
    )


def test_a_wrong_backend_wins_nowhere() -> None:
    wrong = variant("flash", 0.1, correct=False, status="fail")
    found = benchmark(variant("math", 4.0), wrong, workload="B=1 L=512 bf16 causal forward")
    assert tables.winners([found]).rows == (("forward causal bf16", "math"),)


def test_the_baseline_may_win() -> None:
    found = benchmark(variant("math", 1.0), variant("flash", 2.0), workload="L=512 bf16 causal forward")
    assert tables.winners([found]).rows == (("forward causal bf16", "math"),)


def test_workloads_that_tell_no_length_have_no_winners() -> None:
    assert tables.winners([COMPILE]).rows == ()


def test_each_step_of_the_ladder_has_its_own_gain_and_what_compiling_costs() -> None:
    steps = benchmark(
        variant("eager", 12.0),
        variant("compiled", 6.0, compile_seconds=30.0, compile_warm_seconds=4.0, pays_after_calls=5000),
        variant("half", 4.0, compile_seconds=20.0, pays_after_calls=2500),
        variant("graphs", None, status="skip", correct=None, reason="no"),
        case="b64",
    )
    table = tables.ladder([steps])
    assert table.rows == (
        ("b64", "eager", "12", "-", "1.00x", "-", "-", "-"),
        ("b64", "compiled", "6", "2.00x", "2.00x", "30", "4", "5,000 calls"),
        ("b64", "half", "4", "1.50x", "3.00x", "20", "-", "2,500 calls"),
    )


def test_results_show_every_variant_and_leave_empty_columns_out() -> None:
    found = benchmark(
        variant("a", 2.0, q1_ms=1.9, q3_ms=2.1, throughput={"value": 5.0, "unit": "GB/s"}),
        variant("b", None, status="skip", correct=None),
        variant("c", 1.0),
        variant("d", 0.5, part=True),
        case="one",
    )
    table = tables.results([found])
    assert table.columns == ("case", "variant", "ms", "middle half", "gain", "step", "throughput")
    assert table.rows == (
        ("one", "a", "2", "1.9..2.1", "1.00x", "-", "5 GB/s"),
        ("one", "b", "not run", "-", "-", "-", "-"),
        ("one", "c", "1", "-", "2.00x", "2.00x", "-"),
        ("one", "(d)", "0.5", "-", "-", "-", "-"),
    )


def test_numbers_stay_flush_right_where_columns_are_left_out() -> None:
    table = tables.results([benchmark(variant("a", peak_vram_bytes=1 << 30))])
    assert [table.columns[i] for i in sorted(table.numbers)] == ["ms", "gain"]


def test_a_case_whose_baseline_was_not_measured_says_so() -> None:
    found = benchmark(variant("a", None, status="skip", correct=None), variant("b"), case="one")
    (only,) = tables.summary(report_of(benchmarks=(found,))).rows
    assert only == ("attention one", "not run", "-", "b", "1", "-", "-")


def test_parts_are_no_rivals() -> None:
    assert [v.name for v in tables.measured(STREAMS)] == ["serial", "overlapped"]
    part = benchmark(variant("serial", 3.0), variant("copy", 1.0, part=True))
    assert tables.best(part) is None


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"datasheet": 0.5, "measured": 0.6}, "50 % peak"),
        ({"datasheet": 0.5, "bound": 0.9}, "90 % bound"),
        ({"measured": 0.6}, "60 % roofline"),
        ({}, "-"),
    ],
)
def test_the_share_of_a_limit_says_whose_limit_it_is(kinds: dict[str, float], said: str) -> None:
    limits = [peak(share, kind=kind) for kind, share in kinds.items()]
    assert tables.of_limit(variant("a", limits=limits)) == said


def test_limits_are_side_by_side_with_what_was_achieved() -> None:
    table = tables.limits([ATTENTION])
    assert table.rows == (
        ("attention L2048", "SDPA flash", "bf16 peak", "85.3 TFLOP/s", "147 TFLOP/s", "58 %", "datasheet"),
    )


def test_lenses_lie_over_cases_and_one_that_saw_nothing_is_left_out() -> None:
    found = (
        benchmark(variant("a", activity=activity(busy=97.4, sm_activity=None), peak_vram_bytes=3 << 30)),
        benchmark(variant("a", activity=activity(busy=None, sm_activity=None)), scenario="streams"),
    )
    table = tables.activity(found)
    assert table.columns == ("utilisation, best form", "attention", "streams")
    assert table.rows == (
        ("NVML busy (any kernel ran)", "97 %", "-"),
        ("VRAM peak (torch allocated)", "3 GiB", "-"),
    )
    assert tables.unseen(found) == "sm-activity: not measured: GPM is not supported"
    assert ("busy", "NVML: share of time in which any kernel ran", "measured") in tables.lenses(found).rows


def test_a_measured_zero_is_a_zero_and_not_a_dash() -> None:
    found = benchmark(variant("a", activity=activity(busy=0.0)))
    assert row(tables.activity([found]), "NVML busy (any kernel ran)")["attention"] == "0 %"


def test_nothing_of_the_cpu_is_called_utilisation_of_a_gpu() -> None:
    assert tables.activity([benchmark(variant("a"), device="cpu")]).rows == ()


def test_conditions_are_those_that_all_benchmarks_share() -> None:
    gpu = {"power_limit_w": 700.0, "mig": None, "throttle_reasons": ("SW Power Cap",)}
    shared: dict[str, Any] = {"torch": "2.8.0", "memory_bytes": 25_757_220_864, "gpu": gpu}
    found = tuple(benchmark(variant("a"), conditions={**shared, "seed": seed}) for seed in (1, 2))
    table = dict(tables.conditions(report_of(benchmarks=found)).rows)
    assert table == {
        "torch": "2.8.0",
        "memory_bytes": "25,757,220,864",
        "GPU: power limit w": "700.0",
        "GPU: mig": "unknown",
        "GPU: throttle reasons": "SW Power Cap",
        "clocks held down by": "nothing seen",
    }


def test_a_self_test_holds_what_it_measured_against_the_claims_too() -> None:
    verdicts = {c.id: c.verdict for c in tables.judged(report_of(benchmarks=START_UP))}
    assert verdicts["compile-b64-ratio"] == "not comparable"


def test_the_table_of_claims_has_all_of_them_or_only_what_a_scenario_measures() -> None:
    report = report_of(benchmarks=START_UP)
    everything = [r[0] for r in tables.claimed(report).rows]
    here = [r[0] for r in tables.claimed(report, everything=False).rows]
    assert set(everything) - set(here) >= {"ResNet-50 training: epoch, plain"}
    assert "ResNet-50 b64: eager" in here


def test_a_reason_that_the_benchmark_gives_is_not_given_again() -> None:
    broken = variant("a", None, label="A", status="fail", correct=False, reason="wrong result")
    found = benchmark(broken, status="fail", reason="a: wrong result", case="one")
    assert list(tables.remarks([found])) == ["attention one: fail: a: wrong result"]


def test_what_holds_for_many_cases_is_said_once() -> None:
    absent = variant("x", None, label="xFormers", status="skip", correct=None, reason="not here")
    found = [benchmark(variant("a"), absent, case=f"c{i}") for i in range(5)]
    assert list(tables.remarks(found)) == [
        "attention c0, attention c1 and 3 more: xFormers: skip: not here",
    ]


def test_of_many_cases_the_summary_shows_the_least_and_the_greatest_gain() -> None:
    found = [benchmark(variant("a", 10.0), variant("b", 5.0 - i / 4), case=f"c{i}") for i in range(9)]
    table = tables.summary(report_of(benchmarks=tuple(found)))
    assert [r[0] for r in table.rows] == ["attention c0", "attention c8"]
    assert list(tables.remarks(found)) == [
        "attention: of 9 cases those of the least and of the greatest gain"
    ]
    assert len(tables.summary(report_of(benchmarks=tuple(found[:8]))).rows) == 8


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.08571, "0.0857"), (3.527, "3.53"), (112.7, "113"), (9876.5, "9,876"), (None, "-")],
)
def test_figures_have_three_digits(value: float | None, said: str) -> None:
    assert tables.digits(value) == said


@given(st.lists(st.lists(st.floats(0.001, 1e6) | st.none(), min_size=1, max_size=4), max_size=4))
def test_every_row_has_a_cell_for_every_column(cases: list[list[float | None]]) -> None:
    found = [
        benchmark(*(variant(f"v{i}", ms, activity=activity(busy=ms)) for i, ms in enumerate(medians)))
        for medians in cases
    ]
    report = report_of(benchmarks=tuple(found))
    made = [
        *(tables.summary(report), tables.claimed(report), tables.conditions(report)),
        *(table(found) for table in (tables.results, tables.limits, tables.ladder, tables.winners)),
        *(table(found) for table in (tables.activity, tables.lenses)),
    ]
    assert all(len(cells) == len(table.columns) for table in made for cells in table.rows)
    assert all(max(table.numbers, default=0) < len(table.columns) for table in made)
