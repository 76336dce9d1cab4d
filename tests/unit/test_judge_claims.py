"""A published figure gets the one verdict that the measurement, the physics and its own gaps allow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SEEN, activity, benchmark, peak, variant

from healthcheck.judge import claims
from healthcheck.judge.claims import Bound, Claims, Finding, Published, Sum
from healthcheck.report.model import Benchmark, Claim

HOME = "NVIDIA GeForce RTX 4090 D"
RATIO = Published("r", "r", "ratio", 1.4, "x", "compile", "compiled", case="b64", batch=64, baseline="eager")
TIME = Published("t", "t", "time", 40.0, "ms", "compile", "compiled", case="b64", batch=64)
ALL = claims.load()


def judged(claim: Published, *benchmarks: Benchmark) -> Claim:
    (found,) = claims.judge(Claims(HOME, (claim,), ()), benchmarks)
    return found


def compiled(eager: float, fast: float, **fields: Any) -> Benchmark:
    given_fields = {
        "scenario": "compile",
        "case": "b64",
        "workload": "ResNet-50, b64",
        "conditions": {"batch": 64},
    }
    return benchmark(variant("eager", eager), variant("compiled", fast), **{**given_fields, **fields})


@pytest.mark.parametrize(
    ("eager", "verdict"),
    [
        (56.0, "reproduced"),  # 1.40
        (53.2, "reproduced"),  # 1.33: 5 % less
        (58.8, "reproduced"),  # 1.47: 5 % more
        (53.1, "not reproduced"),
        (58.9, "exceeded"),
    ],
)
def test_a_ratio_is_reproduced_within_five_percent(eager: float, verdict: str) -> None:
    assert judged(RATIO, compiled(eager, 40.0)).verdict == verdict


@pytest.mark.parametrize(
    ("measured", "verdict"), [(40.0, "reproduced"), (30.0, "exceeded"), (50.0, "not reproduced")]
)
def test_a_time_is_better_when_it_is_less(measured: float, verdict: str) -> None:
    assert judged(TIME, compiled(60.0, measured)).verdict == verdict


def test_a_baseline_is_never_exceeded() -> None:
    published = Published("t", "t", "time", 40.0, "ms", "compile", "eager", case="b64", batch=64)
    found = judged(published, compiled(20.0, 10.0))
    assert found.verdict == "not reproduced"
    assert found.why == "50 % less than published: the baseline is better than that"


def test_on_another_gpu_ratios_are_judged_and_say_so() -> None:
    found = judged(RATIO, compiled(9.0, 5.0, device_name="NVIDIA H200"))
    assert (found.verdict, found.measured) == ("exceeded", "1.80x (H200)")
    assert found.why == "29 % more than published on H200, not RTX 4090 D"


def test_on_another_gpu_a_time_is_shown_and_not_judged() -> None:
    found = judged(TIME, compiled(9.0, 5.0, device_name="NVIDIA H200"))
    assert (found.verdict, found.measured) == ("not comparable", "5 ms (H200)")
    assert "RTX 4090 D" in found.why


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"device": "cpu"}, "measured on a CPU"),
        ({"case": "blocks", "workload": "2 blocks"}, "another workload was measured: 2 blocks"),
        ({"conditions": {"batch": 32}}, "batch 32 instead of 64"),
        ({"disturbed": "another process used the GPU"}, "another process used the GPU"),
        (
            {"control": {"low": 0.95, "high": 1.05, "why": "w", "holds": False}},
            "the negative control of this run does not hold",
        ),
    ],
)
def test_what_is_not_the_same_work_or_not_to_be_believed_is_not_comparable(
    fields: dict[str, Any], why: str
) -> None:
    found = judged(RATIO, compiled(56.0, 40.0, **fields))
    assert (found.verdict, found.why) == ("not comparable", why)


def test_a_case_of_the_same_name_with_other_work_is_not_comparable() -> None:
    published = Published("r", "r", "ratio", 1.4, "x", "compile", "compiled", "b64", workload="ResNet-50")
    assert judged(published, compiled(56.0, 40.0, workload="2 blocks")).verdict == "not comparable"


def test_the_short_form_counts_where_the_work_is_the_same() -> None:
    assert judged(RATIO, compiled(56.0, 40.0, short=True)).verdict == "reproduced"


def test_the_case_itself_has_the_last_word_on_why_it_was_not_run() -> None:
    other = compiled(1.0, 1.0, case="b128")
    for order in ((other, compiled(1, 1, status="skip", reason="no torchvision")), (compiled(1, 1), other)):
        assert judged(RATIO, *order).why in ("no torchvision", "29 % less than published")


@pytest.mark.parametrize(
    ("benchmarks", "why"),
    [
        ((), "the scenario compile was not run"),
        ((compiled(1.0, 1.0, status="fail", reason="wrong result"),), "wrong result"),
        ((compiled(1.0, 1.0, variants=[variant("eager")]),), "this run has no variant compiled"),
    ],
)
def test_without_a_right_result_it_is_not_run(benchmarks: tuple[Benchmark, ...], why: str) -> None:
    assert (judged(RATIO, *benchmarks).verdict, judged(RATIO, *benchmarks).why) == ("not run", why)


def test_a_variant_that_was_skipped_gives_its_reason() -> None:
    skipped = variant("compiled", None, label="torch.compile", status="skip", correct=None, reason="no gcc")
    found = compiled(1.0, 1.0, variants=[variant("eager", baseline=True), skipped])
    assert judged(RATIO, found).why == "torch.compile: no gcc"


def test_a_figure_beyond_the_limit_is_impossible_whatever_was_measured() -> None:
    published = Published(
        "t", "t", "time", 3.0, "ms", "compile", "compiled", bound=Bound(3.56, True, "physics")
    )
    found = judged(published, compiled(56.0, 40.0))
    assert (found.verdict, found.limit, found.why) == ("impossible", ">= 3.56 ms", "physics")
    most = Published("m", "m", "rate", 90, "tok/s", "llm", "int8", bound=Bound(77.5, False, "bandwidth"))
    assert (judged(most).verdict, judged(most).limit) == ("impossible", "<= 77.5 tok/s")


def test_under_specified_shows_what_was_measured_and_does_not_judge_it() -> None:
    published = Published(
        "t", "t", "time", 40.0, "ms", "compile", "compiled", "b64", unspecified="how many is not said"
    )
    found = judged(published, compiled(56.0, 40.0))
    assert (found.verdict, found.measured, found.why) == ("under-specified", "40 ms", "how many is not said")


def test_what_no_scenario_measures_is_not_run() -> None:
    published = Published("t", "t", "time", 8.2, "min", "train", "fp32", planned=True)
    assert (judged(published).verdict, judged(published).why) == ("not run", "no scenario measures it yet")


def busy(four: float | None) -> Benchmark:
    return benchmark(
        variant("serial", activity=activity(busy=100.0)),
        variant("four-streams", activity=activity(busy=four)),
        scenario="streams",
        case="saturating",
    )


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (92.0, "reproduced"),
        (87.0, "reproduced"),
        (86.9, "not reproduced"),
        (99.0, "exceeded"),
        (None, "not run"),
    ],
)
def test_a_share_is_reproduced_within_five_points(seen: float | None, verdict: str) -> None:
    published = Published("b", "b", "busy", 92, "%", "streams", "four-streams", "saturating")
    assert judged(published, busy(seen)).verdict == verdict


def test_a_baseline_that_waits_less_than_published_does_not_reproduce_the_waiting() -> None:
    published = Published("b", "b", "busy", 75, "%", "streams", "serial", "saturating")
    found = judged(published, busy(100.0))
    assert found.verdict == "not reproduced" and found.why.startswith("25 points more than published")


@pytest.mark.parametrize(
    ("published", "measured"),
    [
        (Published("m", "m", "memory", 10, "GB", "s", "a"), "20 GB"),
        (Published("m", "m", "memory", 92, "%", "s", "a"), "80 %"),
        (Published("m", "m", "rate", 42, "tok/s", "s", "a"), "40 tok/s"),
        (Published("m", "m", "time", 3.2, "s", "s", "a"), "3 s"),
        (Published("m", "m", "time", 1.0, "min", "s", "a"), "0.05 min"),
    ],
)
def test_every_kind_of_figure_comes_in_the_unit_of_its_claim(published: Published, measured: str) -> None:
    ran = variant(
        "a",
        3000.0,
        peak_vram_reserved_bytes=20_000_000_000,
        throughput={"value": 40.0, "unit": "tok/s"},
        activity=SEEN,
    )
    found = benchmark(ran, scenario="s", conditions={"memory_bytes": 25_000_000_000})
    assert judged(published, found).measured == measured


def test_the_limit_of_a_ratio_is_the_gain_at_the_peak_of_the_gpu_that_was_measured() -> None:
    ran = benchmark(
        variant("eager", 10.0),
        variant("compiled", 5.0, limits=[peak(0.4)]),
        scenario="compile",
        case="b64",
        conditions={"batch": 64},
    )
    assert judged(RATIO, ran).limit == "<= 5.00x (RTX 4090 D)"  # 2.00 / 0.4


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_faster_variant_never_has_a_worse_verdict(first: float, second: float) -> None:
    order = ["not reproduced", "reproduced", "exceeded"]
    slow, fast = max(first, second), min(first, second)
    ranks = [order.index(judged(RATIO, compiled(56.0, ms)).verdict) for ms in (slow, fast)]
    assert ranks == sorted(ranks)


# -- claims.toml -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finding", ALL.findings, ids=lambda finding: finding.title)
def test_the_arithmetic_of_every_finding_is_right(finding: Finding) -> None:
    assert finding.sums
    for each in finding.sums:
        assert each.holds, f"{each.formula} is {claims.compute(each.formula)}, not {each.gives}"


@pytest.mark.parametrize("finding", ALL.findings, ids=lambda finding: finding.title)
def test_every_result_of_a_finding_is_in_its_words(finding: Finding) -> None:
    assert [each.gives for each in finding.sums if each.gives not in finding.title + finding.text] == []


def test_every_published_figure_is_below_its_limit() -> None:
    assert [c.id for c in ALL.published if c.bound and not c.bound.allows(c.value)] == []


def test_the_limits_are_what_a_hand_computes() -> None:
    bounds = {c.id: c.bound.value for c in ALL.published if c.bound}
    assert bounds["compile-b64-eager"] == pytest.approx(3.559, abs=1e-3)  # 0.5235 TFLOP at 147.1 TFLOP/s
    assert bounds["llama-prefill-eager"] == pytest.approx(0.1877, abs=1e-4)
    assert bounds["llama-memory-eager"] == pytest.approx(13.48)
    assert bounds["llm-decode-rate"] == pytest.approx(77.54, abs=1e-2)
    assert bounds["llm-decode-latency"] == pytest.approx(12.90, abs=1e-2)


def test_ids_are_unique_and_every_claim_names_its_conditions_and_what_is_missing() -> None:
    ids = [claim.id for claim in ALL.published]
    assert len(ids) == len(set(ids))
    assert all(claim.conditions and claim.missing for claim in ALL.published)
    assert all(claim.baseline for claim in ALL.published if claim.kind == "ratio")


def test_the_articles_figures_are_all_there() -> None:
    said = {claim.text for claim in ALL.published}
    assert said >= {
        *("1.38x", "1.42x", "58.3 ms", "42.1 ms", "112.7 ms", "79.4 ms", "1.52x", "12.5 s", "8.2 s"),
        *("22.1 GB", "18.3 GB", "75 %", "92 %", "8.2 min", "6.5 min", "68 %", "89 %", "15.2 GB", "13.8 GB"),
        *("42 tok/s", "18 GB", "230 ms", "3.2 s", "2.4 s", "10.1 GB", "8.7 GB", "85-90 %"),
    }


@pytest.mark.parametrize("claim", [c for c in ALL.published if not c.planned], ids=lambda claim: claim.id)
def test_every_claim_names_a_case_and_variants_that_exist_on_the_claimed_gpu(claim: Published) -> None:
    from healthcheck import bench
    from healthcheck.bench.scenario import Machine

    cases = {case.name: case for case in bench.load(claim.scenario).cases(Machine("cuda", memory=24 << 30))}
    names = [v.name for v in cases[claim.case].variants]
    assert claim.variant in names
    assert not claim.baseline or claim.baseline == names[0]
    assert claim.batch in (None, cases[claim.case].batch)


def test_a_report_of_nothing_has_every_claim_and_no_verdict_from_thin_air() -> None:
    found = claims.judge(ALL, ())
    assert [c.id for c in found] == [c.id for c in ALL.published]
    assert {c.verdict for c in found} == {"not run", "under-specified"}
    assert {c.measured for c in found} == {"-"}


@pytest.mark.parametrize(
    ("formula", "value"), [("2 * 3 + 4", 10), ("1 / (0.75 - 0.5)", 4), ("8.18e9", 8.18e9), ("7 - 2 - 1", 4)]
)
def test_formulas_are_computed(formula: str, value: float) -> None:
    assert claims.compute(formula) == pytest.approx(value)


@pytest.mark.parametrize("formula", ["__import__('os')", "a", "2 ** 9", "'a'", "-1", "abs(1)"])
def test_a_formula_is_arithmetic_and_nothing_else(formula: str) -> None:
    with pytest.raises(ValueError, match="arithmetic"):
        claims.compute(formula)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_sum_holds_for_its_own_value_and_not_for_the_next(a: int, b: int) -> None:
    exact = f"{a / b:,.2f}"
    assert Sum(f"{a} / {b}", exact).holds
    assert not Sum(f"{a} / {b}", f"{a / b + 0.02:,.2f}").holds


def test_a_field_that_the_file_does_not_have_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text('gpu = "x"\nfinding = []\n[[claim]]\nid = "a"\ncolour = "blue"\n')
    with pytest.raises(TypeError, match="colour"):
        claims.load(file)


def test_amounts_have_three_digits() -> None:
    assert [claims.amount(v, "ms") for v in (0.0857, 3.527, 112.7, 1098.4)] == [
        "0.0857 ms",
        "3.53 ms",
        "113 ms",
        "1,098 ms",
    ]
    assert claims.amount(1.3848, "x") == "1.38x"
    assert not math.isnan(ALL.published[0].value)
