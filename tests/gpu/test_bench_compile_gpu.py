"""The forms of the scenario compile that need a GPU: half precision and CUDA graphs give the right answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import compile as compilation  # noqa: E402
from healthcheck.bench.compile import Form  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Case, Machine  # noqa: E402
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)


def test_every_rung_of_the_ladder_is_right_on_a_few_blocks() -> None:
    memory = torch.cuda.get_device_properties(0).total_memory
    (b64, _) = compilation.cases(Machine("cuda", memory=memory))
    rungs = tuple(v for v in b64.variants if v.name != "max-autotune")  # which takes minutes
    case = Case("blocks", 8, rungs, Form("bottlenecks", 2, 64, 28))
    made = replace(compilation.SCENARIO, cases=lambda machine: (case,))
    (answer,) = run(made, "cuda", False, Tools(emit=lambda event: None, plan=PLAN, steady_seconds=0.05))
    assert answer["status"] == "ok", answer["reason"]
    by_name = {v["name"]: v for v in answer["variants"]}
    assert all(v["correct"] is True for v in by_name.values())
    assert by_name["half"]["cost"]["engine"] == by_name["graphs"]["cost"]["engine"] == "fp16"
    assert by_name["graphs"]["compile_seconds"] > 0
