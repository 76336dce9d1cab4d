"""What the scenario streams counts, against sums done by hand. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib

from healthcheck.bench import streams
from healthcheck.bench.scenario import Case, Machine, Setup
from healthcheck.bench.streams import Batches, Chains, Copied, Loaded, Row, Squares

GIB = 2**30
ROOT = Path(streams.__file__).parents[1]


def setup(form: Any, batch: int, device: str = "cuda") -> Setup:
    return Setup(device, False, Case("x", batch, (), form), batch, seed=0)


def loaded(count: int, products: int) -> Loaded:
    return Loaded((None,) * count, None, None, products)


def full(memory: int = 80 * GIB) -> dict[str, Case]:
    return {case.name: case for case in streams.cases(Machine("cuda", memory=memory))}


def test_a_batch_has_two_bytes_a_number_on_a_gpu_and_four_on_the_cpu() -> None:
    form = Batches(16384, 1024)
    assert form.bytes(setup(form, 48)) == 33_554_432  # 32 MiB
    assert form.bytes(setup(form, 48, "cpu")) == 67_108_864


def test_the_cost_of_the_overlap_is_all_products_and_one_copy_of_each_batch() -> None:
    """3 batches x 5 products x 2 x 10 x 4 x 4 operations; 3 x 10 x 4 x 2 bytes."""
    form = Batches(10, 4)
    cost = form.cost(setup(form, 3), loaded(3, 5))
    assert (cost.flops, cost.engine, cost.bytes, cost.channel) == (4800.0, "fp16", 240.0, "h2d")
    assert form.throughput(setup(form, 3), loaded(3, 5)).amount == 3


def test_rounding_adds_up_with_the_root_of_the_number_of_products() -> None:
    """One product of width 1024 in fp16: 2 x 2^-10 + 4 x 32 x 2^-23; sixteen of them: four times that."""
    form = Batches(8, 1024)
    assert form.tolerance(setup(form, 2)) == pytest.approx(0.001953125 + 0.0000152587890625)
    assert loaded(2, 16).tolerance(setup(form, 2)) == pytest.approx(4 * 0.0019683837890625)


@pytest.mark.parametrize(
    ("copy", "product", "products"),
    [
        (0.6, 0.06, 11),  # 10.3 products: 11
        (1.0, 0.515, 2),  # exactly 2
        (0.1, 0.5, 1),  # computing is longer already
        (500.0, 0.1, 64),  # no PCIe is so slow: never more than 64
    ],
)
def test_computing_is_made_just_longer_than_copying(copy: float, product: float, products: int) -> None:
    assert streams.balance(copy, product) == products


def test_the_bound_is_the_longer_part_and_needs_both() -> None:
    assert streams.longer_part({"serial": 9.0, "copy": 4.0, "compute": 5.0}) == 5.0
    assert streams.longer_part({"copy": 6.0, "compute": 5.0}) == 6.0
    assert streams.longer_part({"copy": 6.0}) is None


def test_rows_compared_are_spread_from_the_first_to_the_last() -> None:
    assert streams.rows_compared(1) == [0]
    assert streams.rows_compared(5) == [0, 1, 2, 3, 4]
    rows = streams.rows_compared(10_000)
    assert (len(rows), rows[0], rows[1], rows[-1]) == (32, 0, 323, 9999)


def test_a_square_product_has_two_operations_a_term() -> None:
    """4 x 2 x 10000^3 = 8e12."""
    form = Squares(10_000)
    cost = form.cost(setup(form, 4), ())
    assert (cost.flops, cost.engine, cost.bytes) == (8e12, "fp32", None)
    throughput = form.throughput(setup(form, 4), ())
    assert (throughput.amount, throughput.unit) == (8.0, "TFLOP/s")


def test_chains_count_their_kernels_and_are_held_against_no_peak() -> None:
    form = Chains(steps=25, rows=32, width=8192)
    chains: Any = (None,) * 4
    assert form.throughput(setup(form, 4), chains).amount == 100
    assert streams.SCENARIO.cost(setup(form, 4), chains) is None


def test_a_row_is_read_and_written_once() -> None:
    """4 Mi numbers x 4 bytes x 2 = 32 MiB."""
    form = Row(4 * 2**20)
    cost = form.cost(setup(form, 1), None)
    assert (cost.bytes, cost.channel) == (33_554_432.0, "memory")


def test_copies_alone_are_finished_after_the_clock() -> None:
    """The result of the copies is a tuple of them, from which the products are computed when it is judged."""

    class Recorder:
        def computed(self, batches: Any) -> Any:
            return ("computed", *batches)

    copied = Copied((1, 2))
    copied.loaded = Recorder()  # type: ignore[assignment]
    form = Batches(8, 8)
    assert streams.SCENARIO.compared(setup(form, 2), copied) == ("computed", 1, 2)
    assert streams.SCENARIO.compared(setup(form, 2), "result") == "result"


def test_the_full_form_has_every_case_and_its_controls() -> None:
    cases = full()
    assert {name: [v.name for v in case.variants] for name, case in cases.items()} == {
        "overlap": ["serial", "overlapped", "copy", "compute"],
        "small-kernels": ["serial", "four-streams", "serial-graph", "branches"],
        "saturating": ["serial", "four-streams"],
        "one-block": ["one-block"],
    }
    overlap, saturating = cases["overlap"], cases["saturating"]
    assert [v.part for v in overlap.variants] == [False, False, True, True]
    assert overlap.batch == 48
    assert overlap.bound is not None
    assert overlap.bound.name == "max(copy, compute)"
    assert saturating.control is not None
    assert (saturating.control.low, saturating.control.high) == (0.95, 1.05)
    assert (saturating.form.width, saturating.batch) == (10_000, 4)


def test_a_small_gpu_gets_smaller_products() -> None:
    assert full(8 * GIB)["saturating"].form.width == 4096


def test_the_short_form_is_a_small_overlap_and_the_cpu_form_has_neither_bound_nor_control() -> None:
    (short,) = streams.cases(Machine("cuda", short=True, memory=80 * GIB))
    assert (short.name, short.batch, short.form.bytes(setup(short.form, 16))) == ("overlap", 16, 16 * 2**20)
    for machine in (Machine("cpu"), Machine("cpu", short=True)):
        (case,) = streams.cases(machine)
        assert (case.name, case.bound, case.control) == ("overlap", None, None)
        assert [v.name for v in case.variants] == ["serial", "overlapped"]


def test_the_claims_about_streams_name_what_is_measured() -> None:
    with (ROOT / "judge/claims.toml").open("rb") as file:
        claims = [c for c in tomllib.load(file)["claim"] if c["scenario"] == "streams"]
    assert claims
    for claim in claims:
        names = [v.name for v in full()[claim["case"]].variants]
        assert {claim["variant"], claim.get("baseline", claim["variant"])} <= set(names)


def test_the_workload_says_what_is_done() -> None:
    sentences = {name: case.form.workload(setup(case.form, case.batch)) for name, case in full().items()}
    assert sentences == {
        "overlap": "48 batches 16384x1024 fp16 (32 MiB), products with 1024x1024",
        "small-kernels": "4 chains of 25 layer norms of 32x8192 fp32",
        "saturating": "4 independent products of 10000x10000 fp32, TF32 off",
        "one-block": "softmax of 1 row of 4194304 fp32: one thread block",
    }
