"""The scenario streams on a real GPU at a small size: right results, races caught, one block is one block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import streams  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import Case, Machine, Prepared, Setup, Variant  # noqa: E402
from healthcheck.bench.streams import Batches, Chains, Row, Squares  # noqa: E402
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
QUICK = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
FORMS = {
    "overlap": (6, Batches(1024, 512)),
    "small-kernels": (4, Chains(steps=6, rows=8, width=2048)),
    "saturating": (4, Squares(1024)),
    "one-block": (1, Row(100_000)),
}


def small(name: str) -> Case:
    (case,) = (c for c in streams.cases(Machine("cuda", memory=2**40)) if c.name == name)
    batch, form = FORMS[name]
    return replace(case, batch=batch, form=form)


def run_it(case: Case) -> dict[str, Any]:
    events: list[Mapping[str, Any]] = []
    made = replace(streams.SCENARIO, cases=lambda machine: (case,))
    (answer,) = run(made, "cuda", False, Tools(emit=events.append, plan=QUICK, steady_seconds=0))
    return answer


@pytest.mark.parametrize("name", list(FORMS))
def test_every_variant_is_right(name: str) -> None:
    answer = run_it(small(name))
    assert answer["status"] == "ok", answer["reason"]
    for variant in answer["variants"]:
        assert (variant["status"], variant["correct"]) == ("ok", True), variant
        assert variant["peak_vram_bytes"] > 0
    if name == "overlap":
        _, _, copy, compute = answer["variants"]
        assert answer["bound"]["ms"] == max(copy["median_ms"], compute["median_ms"])


def racing(setup: Setup, inputs: Any) -> Prepared:
    """The copies are late, and nothing makes the reader wait for them."""
    side = torch.cuda.Stream()

    def late() -> Any:
        for batch in inputs.batches:
            target = torch.zeros(batch.shape, dtype=batch.dtype, device="cuda")
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                target.copy_(batch, non_blocking=True)
            target.record_stream(side)
            yield target

    def call() -> Any:
        out = inputs.computed(late())
        torch.cuda.synchronize()
        return out

    return Prepared(call, side_streams=(side,))


def unwritten(setup: Setup, inputs: Any) -> Prepared:
    right = setup.case.variants[0].prepare(setup, inputs).call()
    shapes = [(t.shape, t.dtype) for t in (right if isinstance(right, tuple) else (right,))]
    whole = isinstance(right, tuple)
    del right

    def call() -> Any:
        made = tuple(torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in shapes)
        return made if whole else made[0]

    return Prepared(call)


@pytest.mark.parametrize(("name", "wrong"), [("overlap", racing), *((name, unwritten) for name in FORMS)])
def test_a_race_or_an_unwritten_result_is_reported_wrong(name: str, wrong: Any) -> None:
    case = small(name)
    answer = run_it(replace(case, variants=(case.variants[0], Variant("wrong", "wrong", wrong))))
    right, bad = answer["variants"]
    assert (right["status"], bad["status"], bad["correct"], bad["speedup"]) == ("ok", "fail", False, None)


def test_the_row_is_computed_by_one_thread_block(tmp_path: Path) -> None:
    """What the control of the lenses rests on, as the profiler saw the launch."""
    case = small("one-block")
    setup = Setup("cuda", False, case, 1, seed=0)
    call = case.variants[0].prepare(setup, case.form.inputs(setup)).call
    call()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    trace = tmp_path / "trace.json"
    profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    grids = [e["args"]["grid"] for e in events if e.get("cat") == "kernel"]
    if not grids:
        pytest.skip("the profiler sees no kernels here (it needs CUPTI's permission)")
    assert grids == [[1, 1, 1]]
