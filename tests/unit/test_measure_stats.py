"""Statistics of samples: what must hold for any samples at all."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.measure.stats import NOISY, quantile, summarise

times = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=60)


@given(times)
def test_the_median_is_the_standard_librarys(samples: list[float]) -> None:
    assert summarise(samples).median == pytest.approx(statistics.median(samples))


@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=2, max_size=60))
def test_the_quartiles_are_the_standard_librarys(samples: list[float]) -> None:
    q1, _, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    got = summarise(samples)
    assert (got.q1, got.q3) == (pytest.approx(q1), pytest.approx(q3))


@given(times)
def test_quartiles_enclose_the_median_and_lie_within_the_samples(samples: list[float]) -> None:
    got = summarise(samples)
    assert min(samples) <= got.q1 <= got.median <= got.q3 <= max(samples)
    assert got.count == len(samples)


@given(times, st.randoms())
def test_the_order_of_samples_does_not_matter(samples: list[float], order: object) -> None:
    shuffled = list(samples)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summarise(shuffled) == summarise(samples)


@given(times, st.sampled_from([0.5, 2.0, 1024.0]))
def test_another_unit_scales_the_figures_and_not_the_spread(samples: list[float], factor: float) -> None:
    plain, scaled = summarise(samples), summarise([s * factor for s in samples])
    assert scaled.median == pytest.approx(plain.median * factor)
    assert scaled.spread == pytest.approx(plain.spread)


@given(st.floats(min_value=1e-6, max_value=1e6), st.integers(min_value=1, max_value=30))
def test_samples_that_agree_are_not_noisy(value: float, count: int) -> None:
    got = summarise([value] * count)
    assert (got.spread, got.noisy, got.note) == (0.0, False, "")


def test_a_spread_above_a_tenth_is_noisy_and_says_so() -> None:
    got = summarise([1.0, 1.0, 1.0, 1.3, 1.3])
    assert got.spread > NOISY
    assert got.noisy
    assert "30%" in got.note


def test_one_outlier_moves_neither_the_median_nor_the_spread() -> None:
    got = summarise([1.0] * 9 + [1000.0])
    assert (got.median, got.noisy) == (1.0, False)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf], [1.0, -math.inf]])
def test_nothing_and_non_numbers_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="sample"):
        summarise(samples)


def test_a_quantile_is_linear_between_neighbours() -> None:
    assert quantile([10.0, 20.0], 0.25) == 12.5
