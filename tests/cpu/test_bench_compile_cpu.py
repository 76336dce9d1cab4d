"""The scenarios compile and roofline at a tiny size on the CPU: right results, and wrong ones caught."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import compile as compilation  # noqa: E402
from healthcheck.bench import roofline  # noqa: E402
from healthcheck.bench.compile import Form, Step  # noqa: E402
from healthcheck.bench.roofline import Copy, Product  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Case, Machine, Prepared, Scenario, Setup, Variant  # noqa: E402
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = pytest.mark.cpu
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
BLOCK = Form("bottlenecks", 1, 16, 8)


def run_it(scenario: Scenario, case: Case) -> dict[str, Any]:
    made = replace(scenario, cases=lambda machine: (case,))
    (answer,) = run(made, "cpu", False, Tools(emit=lambda event: None, plan=PLAN))
    return answer


def ladder(*names: str) -> tuple[Variant, ...]:
    (case,) = (c for c in compilation.cases(Machine("cuda")) if c.name == "b64")
    return tuple(v for v in case.variants if v.name in names)


def test_each_rung_is_right_and_says_what_it_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tmp_path / "usual"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(usual))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    torch._dynamo.utils.counters.clear()
    answer = run_it(
        compilation.SCENARIO, Case("blocks", 4, ladder("eager", "compiled", "channels-last"), BLOCK)
    )
    assert answer["status"] == "ok", answer["reason"]
    eager, *rungs = answer["variants"]
    assert eager["compile_seconds"] is None
    for rung in rungs:
        assert rung["correct"] is True
        assert rung["compile_seconds"] > 0 and rung["compile_warm_seconds"] > 0
        assert rung["cost"]["flops"] == eager["cost"]["flops"] > 0
    # Two rungs, each once with an empty cache and once with a filled one. Looked up only now: torch puts
    # another counter in the place of one that it clears.
    counted = torch._dynamo.utils.counters["inductor"]
    assert counted["fxgraph_cache_miss"] >= 2 and counted["fxgraph_cache_hit"] >= 2
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(usual)
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not list(tmp_path.glob("dyno-compile-*")), "a cache of our own is left behind"


def test_the_flops_of_a_bottleneck_are_those_of_its_three_convolutions() -> None:
    """16 -> 4 by 1x1, 4 -> 4 by 3x3, 4 -> 16 by 1x1 at 8x8 places: 2 x 64 x (64 + 144 + 64), for 4 images."""
    case = Case("blocks", 4, ladder("eager"), BLOCK)
    inputs = compilation.SCENARIO.inputs(Setup("cpu", False, case, 4, seed=0))
    assert inputs.flops == 4 * 2 * 64 * (64 + 144 + 64) == 139_264


def test_a_compiled_model_with_another_models_weights_is_wrong() -> None:
    def other(setup: Setup, inputs: Any) -> Prepared:
        wrong = compilation._bottlenecks(BLOCK).eval()
        return Prepared(lambda: compilation._infer(wrong, inputs.images))

    case = Case("blocks", 4, (*ladder("eager"), Variant("other", "another model", other)), BLOCK)
    answer = run_it(compilation.SCENARIO, case)
    assert [v["status"] for v in answer["variants"]] == ["ok", "fail"]


def test_half_keeps_the_shape_and_changes_layout_and_format() -> None:
    case = Case("blocks", 4, ladder("eager"), BLOCK)
    inputs = compilation.SCENARIO.inputs(Setup("cpu", False, case, 4, seed=0))
    model, images = compilation._converted(Step(channels_last=True, half=True), inputs)
    assert images.dtype == torch.float16 and images.is_contiguous(memory_format=torch.channels_last)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert inputs.images.dtype == torch.float32, "the inputs are shared and must stay as they are"


TINY = {
    "product": Case("matmul-fp32", 1, roofline._ON_CPU, Product("fp32", 96)),
    "copy": Case("copy-memory", 1, roofline._WITHIN, Copy("memory", 4 * 1000)),
    "across": Case("copy-h2d", 1, roofline._ACROSS[:1], Copy("h2d", 4 * 1000)),
}


@pytest.mark.parametrize("case", list(TINY.values()), ids=list(TINY))
def test_a_roofline_case_is_right(case: Case) -> None:
    answer = run_it(roofline.SCENARIO, case)
    assert answer["status"] == "ok", answer["reason"]
    assert all(v["correct"] is True for v in answer["variants"])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("product", lambda inputs: inputs[0] @ inputs[1].half().float()),
        ("copy", lambda inputs: inputs.half().float()),
        ("across", lambda inputs: torch.roll(inputs, 1)),
    ],
)
def test_a_rounded_product_and_an_inexact_copy_are_wrong(name: str, wrong: Any) -> None:
    case = TINY[name]
    planted = Variant("wrong", "wrong", lambda setup, inputs: Prepared(lambda: wrong(inputs)))
    answer = run_it(roofline.SCENARIO, replace(case, variants=(case.variants[0], planted)))
    assert [v["status"] for v in answer["variants"]] == ["ok", "fail"]
