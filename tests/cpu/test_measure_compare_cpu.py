"""What may pass for the right answer, and what never may."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.exercise.base import Wrong, check  # noqa: E402
from healthcheck.measure.compare import EPS_TF32, bound, compare, eps_of  # noqa: E402

pytestmark = pytest.mark.cpu


@pytest.fixture
def ref() -> Any:
    return torch.randn(30, 20, dtype=torch.float64)


def test_rounding_to_the_format_is_within_its_bound(ref: Any) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert compare(ref.to(dtype), ref, bound(eps_of(dtype))).ok


def test_the_error_is_relative_to_the_size_of_the_reference(ref: Any) -> None:
    assert compare(ref * 1.01, ref, 1).error == pytest.approx(0.01)
    assert compare(ref * 1.01e6, ref * 1e6, 1).error == pytest.approx(0.01)


def test_a_single_wrong_value_among_many_is_seen_in_float32(ref: Any) -> None:
    out = ref.float()
    out[7, 7] += 1.0
    assert not compare(out, ref, bound(eps_of(torch.float32), 1000)).ok


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_never_passes(ref: Any, bad: float) -> None:
    out = ref.clone()
    out[3, 3] = bad
    got = compare(out, ref, math.inf)
    assert not got.ok
    assert "1 of 600" in got.sentence


def test_an_unwritten_output_never_passes(ref: Any) -> None:
    assert not compare(torch.full_like(ref, math.nan), ref, math.inf).ok
    assert compare(torch.zeros_like(ref), ref, 0.5).error == pytest.approx(1.0)


def test_another_shape_never_passes(ref: Any) -> None:
    got = compare(ref.T, ref, math.inf)
    assert not got.ok
    assert "(20, 30), expected (30, 20)" in got.sentence


def test_a_reference_that_proves_nothing_is_refused(ref: Any) -> None:
    assert "all zeros" in compare(ref * 0, ref * 0, math.inf).sentence
    assert "not finite" in compare(ref, ref * math.nan, math.inf).sentence


def test_complex_results_are_compared_whole(ref: Any) -> None:
    right = torch.complex(ref, ref)
    assert compare(right.to(torch.complex64), right, bound(eps_of(torch.complex64))).ok
    assert not compare(right.conj().resolve_conj(), right, 0.1).ok


def test_check_names_what_is_wrong(ref: Any) -> None:
    with pytest.raises(Wrong, match=r"matmul gives a wrong result: relative error 1, allowed 0\.1"):
        check("matmul", ref * 2, ref, 0.1)


def test_tf32_would_not_pass_for_float32() -> None:
    assert bound(eps_of(torch.float32), 512) < EPS_TF32 / 4
