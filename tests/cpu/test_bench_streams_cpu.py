"""The scenario streams at a tiny size on the CPU: right results, and wrong ones caught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import streams  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Case, Prepared, Setup, Variant  # noqa: E402
from healthcheck.bench.streams import Batches, Chains, Row, Squares  # noqa: E402
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = pytest.mark.cpu
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
OVERLAP = Batches(40, 8, products=3)
TINY = {  # every case that needs no graph, with all variants that the CPU can run
    "overlap": Case(
        "overlap",
        3,
        (streams._SERIAL, streams._OVERLAPPED, *streams._PARTS),
        OVERLAP,
        bound=streams.Bound("max(copy, compute)", streams.longer_part),
    ),
    "small-kernels": Case(
        "small-kernels", 3, (streams._IN_TURN, streams._ON_STREAMS), Chains(steps=5, rows=4, width=64)
    ),
    "saturating": Case("saturating", 3, (streams._IN_TURN, streams._ON_STREAMS), Squares(48)),
    "one-block": Case("one-block", 1, (Variant("one-block", "one row", streams._one_block),), Row(5000)),
}


def run_it(*cases: Case) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    events: list[Mapping[str, Any]] = []
    made = replace(streams.SCENARIO, cases=lambda machine: cases)
    return run(made, "cpu", False, Tools(emit=events.append, plan=PLAN)), events


def with_variant(name: str, prepare: Any) -> Case:
    case = TINY[name]
    return replace(case, variants=(case.variants[0], Variant("wrong", "wrong", prepare)))


@pytest.mark.parametrize("name", list(TINY))
def test_every_variant_agrees_with_the_reference(name: str) -> None:
    (answer,), events = run_it(TINY[name])
    assert answer["status"] == "ok", answer["reason"]
    assert [v["name"] for v in answer["variants"]] == [v.name for v in TINY[name].variants]
    for variant in answer["variants"]:
        assert (variant["status"], variant["correct"], len(variant["samples_ms"])) == ("ok", True, 3)
        assert 0 < variant["error"] <= variant["tolerance"] < 1e-4
    assert [e["event"] for e in events].count("variant") == len(TINY[name].variants)


@pytest.mark.parametrize("short", [True, False])
def test_the_cpu_form_runs_serial_and_prefetched(short: bool) -> None:
    events: list[Mapping[str, Any]] = []
    (answer,) = run(streams.SCENARIO, "cpu", short, Tools(emit=events.append, plan=PLAN))
    assert (answer["status"], answer["bound"], answer["control"]) == ("ok", None, None)
    serial, overlapped = answer["variants"]
    assert (serial["baseline"], overlapped["correct"]) == (True, True)
    assert overlapped["speedup"] == serial["median_ms"] / overlapped["median_ms"]
    assert serial["throughput"]["value"] == pytest.approx(4e3 / serial["median_ms"])


def test_the_parts_give_the_bound_and_carry_a_cost_of_their_own() -> None:
    """3 batches of 40 x 8 in fp32: 3840 bytes to copy, 3 x 3 x 2 x 40 x 8 x 8 = 46080 operations."""
    (answer,), _ = run_it(TINY["overlap"])
    serial, _, copy, compute = answer["variants"]
    assert answer["bound"]["ms"] == max(copy["median_ms"], compute["median_ms"])
    assert (copy["part"], copy["speedup"], compute["part"]) == (True, None, True)
    costs = [(v["cost"]["flops"], v["cost"]["bytes"]) for v in (serial, copy, compute)]
    assert costs == [(46080.0, 3840.0), (None, 3840.0), (46080.0, None)]


def late(setup: Setup, inputs: Any) -> Prepared:
    """One batch is computed before its copy has arrived."""

    def call() -> Any:
        *arrived, last = inputs.batches
        return inputs.computed([*arrived, torch.zeros_like(last)])

    return Prepared(call, tolerance=inputs.tolerance(setup))


def swapped(setup: Setup, inputs: Any) -> Prepared:
    return Prepared(lambda: inputs.computed(reversed(inputs.batches)), tolerance=inputs.tolerance(setup))


def one_product_too_few(setup: Setup, inputs: Any) -> Prepared:
    return Prepared(lambda: replace(inputs, products=inputs.products - 1).computed(inputs.batches))


def half_copied(setup: Setup, inputs: Any) -> Prepared:
    def call() -> Any:
        copies = [batch.clone() for batch in inputs.batches]
        copies[1][copies[1].shape[0] // 2 :] = 0
        copied = streams.Copied(copies)
        copied.loaded = inputs
        return copied

    return Prepared(call, tolerance=inputs.tolerance(setup))


def not_joined(setup: Setup, inputs: Any) -> Prepared:
    """The last piece's result is read before it is there."""
    pieces = setup.form.pieces(setup, inputs)

    def call() -> Any:
        *done, last = [piece() for piece in pieces]
        return (*done, torch.zeros_like(last))

    return Prepared(call)


def a_step_too_few(setup: Setup, inputs: Any) -> Prepared:
    return Prepared(lambda: tuple(chain.run(setup.form.steps - 1) for chain in inputs))


def not_normalised(setup: Setup, inputs: Any) -> Prepared:
    return Prepared(inputs.exp)


@pytest.mark.parametrize(
    ("name", "prepare"),
    [
        ("overlap", late),
        ("overlap", swapped),
        ("overlap", one_product_too_few),
        ("overlap", half_copied),
        ("small-kernels", not_joined),
        ("small-kernels", a_step_too_few),
        ("saturating", not_joined),
        ("one-block", not_normalised),
    ],
)
def test_a_wrong_variant_is_reported_wrong_and_has_no_time(name: str, prepare: Any) -> None:
    (answer,), _ = run_it(with_variant(name, prepare))
    right, wrong = answer["variants"]
    assert (answer["status"], right["status"]) == ("fail", "ok")
    assert (wrong["status"], wrong["correct"], wrong["samples_ms"], wrong["speedup"]) == (
        "fail",
        False,
        [],
        None,
    )
    assert "wrong result" in wrong["reason"]


def test_inputs_are_the_same_for_the_same_seed_and_differ_otherwise() -> None:
    def first(seed: int) -> Any:
        return OVERLAP.inputs(Setup("cpu", False, TINY["overlap"], 2, seed)).batches

    one, again, other = first(1), first(1), first(2)
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1])


def test_the_negative_control_runs_without_tf32_whatever_is_set() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with Squares(8).context(Setup("cpu", False, TINY["saturating"], 1, 0)):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
