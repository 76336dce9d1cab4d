"""The attention scenarios on a real GPU: fused kernels are right, wrong ones are caught, estimates hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import attention, llama_attention  # noqa: E402
from healthcheck.bench.attention_backends import MATH  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Case, Machine, Prepared, Scenario, Setup, Variant  # noqa: E402
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
QUICK = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
GRID = {case.name: case for case in attention.cases(Machine("cuda"))}
SMALL = [name for name in GRID if name.endswith("-L512")]
HALF = [name for name in GRID if name.startswith("fp16") and name.endswith("-L2048")]


def run_it(scenario: Scenario, *cases: Case) -> dict[str, Any]:
    """The answer of the first of `cases`, or of the scenario's own short form."""
    events: list[Mapping[str, Any]] = []
    if cases:
        scenario = replace(scenario, cases=lambda machine: cases)
    tools = Tools(emit=events.append, plan=QUICK, steady_seconds=0.0)
    return run(scenario, "cuda", True, tools)[0]


def has_bf16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def right(answer: dict[str, Any]) -> list[str]:
    """Names of the variants that were measured; every other one has to be a skip with a reason."""
    assert answer["status"] == "ok", answer["reason"]
    for variant in answer["variants"]:
        assert variant["status"] in ("ok", "skip"), variant
        if variant["status"] == "skip":
            assert variant["reason"]
            continue
        assert variant["correct"] is True
        assert variant["peak_vram_bytes"] > 0
        assert variant["throughput"]["value"] > 0
    return [v["name"] for v in answer["variants"] if v["status"] == "ok"]


def test_the_short_form_is_right() -> None:
    if not has_bf16():
        pytest.skip("needs bf16: compute capability 8.0 or newer")
    assert {"math", "flash"} <= set(right(run_it(attention.SCENARIO)))


@pytest.mark.parametrize("name", [*SMALL, "bf16-causal-fwd-L16384", "fp16-causal-bwd-L8192"])
def test_the_grid_is_right(name: str) -> None:
    if name.startswith("bf16") and not has_bf16():
        pytest.skip("needs bf16: compute capability 8.0 or newer")
    measured = right(run_it(attention.SCENARIO, GRID[name]))
    assert {"flash", "efficient"} & set(measured), "one fused kernel at least"


@pytest.mark.parametrize("name", ["fp16-causal-fwd-L512", "fp16-causal-bwd-L512"])
def test_a_variant_that_never_writes_its_result_fails(name: str) -> None:
    case = GRID[name]

    def prepare(setup: Setup, inputs: Any) -> Prepared:
        def unwritten() -> Any:
            made = tuple(torch.empty_like(inputs.q) for _ in range(3))
            return made if setup.form.backward else made[0]

        return Prepared(unwritten)

    variants = (case.variants[0], Variant("unwritten", "unwritten", prepare))
    answer = run_it(attention.SCENARIO, replace(case, variants=variants))
    assert [v["status"] for v in answer["variants"]] == ["ok", "fail"]
    assert answer["variants"][1]["speedup"] is None


def test_math_is_left_out_alone_when_its_scores_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_free_bytes", lambda: 2**20)
    case = GRID["fp16-causal-fwd-L512"]
    math, fused = run_it(attention.SCENARIO, replace(case, variants=case.variants[:2]))["variants"]
    assert (math["status"], fused["name"]) == ("skip", "flash")
    assert math["reason"].startswith("its scores need 1.5 GiB of GPU memory")


@pytest.mark.parametrize("name", HALF)
def test_math_needs_no_more_than_estimated(name: str) -> None:
    case = GRID[name]
    batch = 2
    setup = Setup("cuda", False, case, batch, seed=1)
    needed = attention.score_bytes(case.form, batch)
    if needed > attention._free_bytes():
        pytest.skip("the scores do not fit here")
    inputs = attention._inputs(setup)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with MATH.context():
        attention.attention_call(MATH, case.form, inputs)()
    torch.cuda.synchronize()
    # Beside the scores there are q, k, v, their float32 copies and gradients, and what the mask takes.
    others = 24 * inputs.q.nbytes + 8 * case.form.length**2
    peak = torch.cuda.max_memory_allocated() - before
    assert 0.5 * needed < peak < needed + others


def test_a_reduced_llama_is_right_by_every_implementation() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    answer = run_it(llama_attention.SCENARIO)
    assert answer["case"] == "prefill-2048-reduced"
    assert {"eager", "sdpa"} <= set(right(answer))


def test_a_compiled_llama_is_right_and_its_compilation_is_timed() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    (case,) = llama_attention.cases(Machine("cuda", short=True))
    variants = (llama_attention.SDPA, llama_attention.COMPILED)
    answer = run_it(llama_attention.SCENARIO, replace(case, variants=variants))
    assert right(answer) == ["sdpa", "compiled"]
    compiled = answer["variants"][1]
    assert compiled["compile_seconds"] > 0
    assert compiled["compile_warm_seconds"] > 0
