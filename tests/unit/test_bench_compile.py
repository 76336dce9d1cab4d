"""What the scenarios compile and roofline count and name, against figures worked out by hand. No torch."""

from __future__ import annotations

import pytest

from healthcheck.bench import compile as compilation
from healthcheck.bench import roofline
from healthcheck.bench.roofline import Copy, Product
from healthcheck.bench.scenario import Case, Machine, Setup

GIB = 2**30
FULL = Machine("cuda", memory=24 * GIB)


def setup(case: Case, device: str = "cuda") -> Setup:
    return Setup(device, False, case, case.batch, seed=0)


def test_the_ladder_adds_one_thing_a_step() -> None:
    for case, batch in zip(compilation.cases(FULL), (64, 128), strict=True):
        assert (case.name, case.batch) == (f"b{batch}", batch)
        assert [v.name for v in case.variants] == [
            "eager",
            "compiled",
            "channels-last",
            "half",
            "graphs",
            "max-autotune",
        ]
        text = compilation.SCENARIO.workload(setup(case))
        assert text == f"ResNet-50, b{batch} 3x224x224 inference"


def test_short_forms_are_named_for_what_they_are() -> None:
    """The claims speak of ResNet-50: a few of its blocks must never be taken for it."""
    for machine in (Machine("cuda", short=True, memory=24 * GIB), Machine("cpu", short=True)):
        (case,) = compilation.cases(machine)
        assert case.name in ("bottlenecks", "pointwise")
        assert "ResNet-50" not in compilation.SCENARIO.workload(setup(case, machine.device))


@pytest.mark.parametrize(
    ("memory", "width", "size"), [(24 * GIB, 8192, GIB), (6 * GIB, 4096, GIB // 4), (None, 8192, GIB)]
)
def test_products_and_copies_fit_the_memory(memory: int | None, width: int, size: int) -> None:
    cases = {case.name: case.form for case in roofline.cases(Machine("cuda", memory=memory))}
    assert cases == {
        "matmul-fp32": Product("fp32", width),
        "matmul-tf32": Product("tf32", width),
        "matmul-fp16": Product("fp16", width),
        "matmul-bf16": Product("bf16", width),
        "copy-memory": Copy("memory", size),
        "copy-h2d": Copy("h2d", size // 4),
        "copy-d2h": Copy("d2h", size // 4),
    }


def test_a_product_costs_two_operations_for_each_of_its_terms() -> None:
    """2 x 8192^3 = 1.0995e12, by the engine that is named."""
    case = Case("x", 1, (), Product("bf16", 8192))
    cost = roofline.SCENARIO.cost(setup(case), None)
    assert cost is not None and (cost.flops, cost.engine) == (1_099_511_627_776.0, "bf16")
    work = roofline.SCENARIO.throughput(setup(case), None)
    assert work is not None and (work.amount, work.unit) == (1.099511627776, "TFLOP/s")


@pytest.mark.parametrize(("channel", "moved"), [("memory", 2048.0), ("h2d", 1024.0), ("d2h", 1024.0)])
def test_a_copy_within_memory_moves_each_byte_twice(channel: str, moved: float) -> None:
    case = Case("x", 1, (), Copy(channel, 1024))
    cost = roofline.SCENARIO.cost(setup(case), None)
    assert cost is not None and (cost.bytes, cost.channel, cost.flops) == (moved, channel, None)
    work = roofline.SCENARIO.throughput(setup(case), None)
    assert work is not None and (work.amount, work.unit) == (moved / 1e9, "GB/s")


def test_tf32_is_told_from_fp32() -> None:
    texts = [roofline.SCENARIO.workload(setup(Case("x", 1, (), Product(e, 64)))) for e in ("fp32", "tf32")]
    assert texts == [
        "matrix product 64x64 by 64x64, fp32, TF32 off",
        "matrix product 64x64 by 64x64, fp32 by TF32",
    ]
    tolerances = [
        roofline.SCENARIO.tolerance(setup(Case("x", 1, (), Product(e, 64)))) for e in ("fp32", "tf32")
    ]
    assert tolerances[0] < 1e-5
    assert 1e-3 < tolerances[1] < 1e-2
