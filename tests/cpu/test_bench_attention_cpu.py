"""The attention scenarios at tiny size: right results pass, wrong ones are caught, references are exact."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.bench import attention, llama_attention  # noqa: E402
from healthcheck.bench.attention import Form, exact_backward, exact_forward  # noqa: E402
from healthcheck.bench.attention_backends import CUDNN, FLASH, MATH, Backend, refusals  # noqa: E402
from healthcheck.bench.runner import Tools, run  # noqa: E402
from healthcheck.bench.scenario import (  # noqa: E402
    Case,
    Machine,
    Prepared,
    Scenario,
    Setup,
    Unavailable,
    Variant,
)
from healthcheck.measure.timer import Plan  # noqa: E402

pytestmark = pytest.mark.cpu
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
FORWARD = Form("fp32", heads=3, length=48, width=16, causal=True, backward=False)
BACKWARD = replace(FORWARD, backward=True)


def run_it(scenario: Scenario, *cases: Case) -> dict[str, Any]:
    """The answer of the first of `cases`, or of the scenario's own short form."""
    events: list[Mapping[str, Any]] = []
    if cases:
        scenario = replace(scenario, cases=lambda machine: cases)
    answers = run(scenario, "cpu", True, Tools(emit=events.append, plan=PLAN))
    ended = [e for e in events if e["event"] == "case"]
    assert [e["case"] for e in ended] == [a["case"] for a in answers]
    return answers[0]


def attending(form: Form, *variants: Variant) -> Case:
    return Case(form.name, 2, variants, form)


def by(backend: Backend) -> Variant:
    return Variant(backend.name, backend.label, attention._prepare(backend))


def spoilt(name: str, spoil: Callable[[Any], Any]) -> Variant:
    """Math with its result changed by `spoil`."""

    def prepare(setup: Setup, inputs: Any) -> Prepared:
        call = attention.attention_call(MATH, setup.form, inputs)
        return Prepared(lambda: spoil(call()))

    return Variant(name, name, prepare)


def heads(length: int, width: int, count: int) -> list[Any]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(length, width, generator=draw, dtype=torch.float64) for _ in range(count)]


def written_out(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = q @ k.T / q.shape[-1] ** 0.5
    if causal:
        scores = scores + torch.full_like(scores, -torch.inf).triu(1)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [7, 20, 64])
def test_blocks_give_what_the_formula_gives(causal: bool, rows: int) -> None:
    q, k, v = heads(20, 8, 3)
    torch.testing.assert_close(
        exact_forward(q, k, v, causal, rows=rows), written_out(q, k, v, causal), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [7, 20, 64])
def test_the_written_out_backward_pass_is_that_of_autograd(causal: bool, rows: int) -> None:
    q, k, v, grad = heads(20, 8, 4)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = torch.autograd.grad(written_out(*leaves, causal), leaves, grad)
    got = exact_backward(q, k, v, grad, causal, rows=rows)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_attention_of_one_token_is_its_value() -> None:
    q, k, v = heads(1, 8, 3)
    torch.testing.assert_close(exact_forward(q, k, v, True), v)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", [FORWARD, BACKWARD])
def test_math_and_flash_are_right_in_both_passes(form: Form, causal: bool) -> None:
    answer = run_it(attention.SCENARIO, attending(replace(form, causal=causal), by(MATH), by(FLASH)))
    assert answer["status"] == "ok", answer["reason"]
    for variant in answer["variants"]:
        assert variant["correct"] is True
        assert 0 < variant["error"] < variant["tolerance"] < 1e-5
        assert variant["throughput"]["unit"] == "GFLOP/s"
        assert variant["cost"]["engine"] == "fp32"
    assert answer["variants"][1]["speedup"] > 0


def test_a_result_without_its_mask_is_wrong() -> None:
    unmasked = replace(MATH, load=lambda causal: MATH.load(False))
    answer = run_it(attention.SCENARIO, attending(FORWARD, by(MATH), by(replace(unmasked, name="unmasked"))))
    assert [v["status"] for v in answer["variants"]] == ["ok", "fail"]
    assert "wrong result" in answer["variants"][1]["reason"]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_wrong_gradient_of_three_is_wrong(which: int) -> None:
    def spoil(gradients: Any) -> Any:
        return tuple(g * 1.01 if i == which else g for i, g in enumerate(gradients))

    answer = run_it(attention.SCENARIO, attending(BACKWARD, by(MATH), spoilt("spoilt", spoil)))
    assert [v["correct"] for v in answer["variants"]] == [True, False]


def test_no_gradient_hides_behind_the_others() -> None:
    case = attending(BACKWARD)
    setup = Setup("cpu", True, case, case.batch, 5)
    norms = [float(g.norm()) for g in attention._reference(setup, attention._inputs(setup))]
    assert min(norms) > 0.5 * max(norms)


def test_a_backend_for_other_layouts_gets_and_gives_its_own() -> None:
    seen = []

    def load(causal: bool) -> Any:
        def operator(q: Any, k: Any, v: Any) -> Any:
            seen.append((tuple(q.shape), q.is_contiguous()))
            return MATH.load(causal)(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

        return operator

    last = Backend("last", "length first", load, length_first=True)
    for form in (FORWARD, BACKWARD):
        answer = run_it(attention.SCENARIO, attending(form, by(MATH), by(last)))
        assert [v["status"] for v in answer["variants"]] == ["ok", "ok"], answer["reason"]
    assert set(seen) == {((2, 48, 3, 16), True)}


def test_a_backend_that_is_not_for_this_device_is_skipped_in_one_line() -> None:
    answer = run_it(attention.SCENARIO, attending(FORWARD, by(MATH), by(CUDNN)))
    math, cudnn = answer["variants"]
    assert (answer["status"], math["status"], cudnn["status"]) == ("ok", "ok", "skip")
    assert cudnn["reason"].startswith("SDPA cuDNN: ")
    assert "\n" not in cudnn["reason"]


def test_math_out_of_memory_is_left_out_and_no_batch_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = attention._ready

    def exhausted(backend: Backend, *others: Any) -> Prepared:
        if backend is MATH:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 48 GiB")
        return ready(backend, *others)

    monkeypatch.setattr(attention, "_ready", exhausted)
    answer = run_it(attention.SCENARIO, attending(FORWARD, by(MATH), by(FLASH)))
    math, flash = answer["variants"]
    assert (math["status"], flash["status"]) == ("skip", "ok")
    assert "GiB of GPU memory" in math["reason"]
    assert answer["conditions"]["batch"] == 2


def test_reasons_that_a_library_gives_as_warnings_are_told() -> None:
    def refuse() -> None:
        warnings.warn(
            "Flash attention kernel not used because: (Triggered internally at a.cpp:1.)", stacklevel=1
        )
        warnings.warn("Needs sm80 or newer. (Triggered internally at a.cpp:2.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    with pytest.raises(Unavailable) as caught, refusals("SDPA flash"):
        refuse()
    assert str(caught.value) == "SDPA flash: No available kernel. Aborting execution.; Needs sm80 or newer."


# llama-attention


def tiny(*variants: Variant) -> Case:
    (case,) = llama_attention.cases(Machine("cpu", short=True))
    return replace(case, variants=variants)


def tiny_setup() -> Setup:
    case = tiny()
    return Setup("cpu", True, case, case.batch, 11)


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def test_llama_is_right_by_every_implementation(transformers: Any) -> None:
    answer = run_it(llama_attention.SCENARIO)
    assert answer["status"] == "ok", answer["reason"]
    assert [v["name"] for v in answer["variants"]] == ["eager", "sdpa"]
    for variant in answer["variants"]:
        assert variant["correct"] is True
        assert 0 < variant["error"] < variant["tolerance"] < 1e-4
        assert variant["throughput"]["unit"] == "tokens/s"


def test_several_sequences_have_a_reference_each(transformers: Any) -> None:
    answer = run_it(llama_attention.SCENARIO, replace(tiny(llama_attention.EAGER), batch=3))
    assert answer["status"] == "ok", answer["reason"]
    assert "3 sequences of 64 tokens" in answer["workload"]


def changed(name: str, change: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> Variant:
    """SDPA in a model that `change` has altered."""

    def prepare(setup: Setup, inputs: Any) -> Prepared:
        return Prepared(
            llama_attention._call(inputs.model, inputs.tokens), context=lambda: change(inputs.model)
        )

    return Variant(name, name, prepare)


@contextlib.contextmanager
def without_mask(model: Any) -> Any:
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    with llama_attention.attending_by(model, "sdpa"):
        yield
    for layer in model.model.layers:
        layer.self_attn.is_causal = True


@contextlib.contextmanager
def without_rotation(model: Any) -> Any:
    rates = model.model.rotary_emb.inv_freq.clone()
    model.model.rotary_emb.inv_freq.zero_()
    yield
    model.model.rotary_emb.inv_freq.copy_(rates)


def test_a_llama_without_mask_or_rotation_is_wrong(transformers: Any) -> None:
    variants = (
        llama_attention.EAGER,
        changed("no mask", without_mask),
        changed("no rotation", without_rotation),
        llama_attention.SDPA,
    )
    answer = run_it(llama_attention.SCENARIO, tiny(*variants))
    assert [v["status"] for v in answer["variants"]] == ["ok", "fail", "fail", "ok"]
    assert [v["correct"] for v in answer["variants"]] == [True, False, False, True]


def test_variants_share_the_weights_and_leave_the_model_as_it_was(transformers: Any) -> None:
    setup = tiny_setup()
    inputs = llama_attention._inputs(setup)
    before = inputs.model.config._attn_implementation
    seen = []
    for variant in (llama_attention.EAGER, llama_attention.SDPA):
        prepared = variant.prepare(setup, inputs)
        assert inputs.model.config._attn_implementation == before
        with prepared.context():
            seen.append(inputs.model.config._attn_implementation)
        assert inputs.model.config._attn_implementation == before
    assert seen == ["eager", "sdpa"]


def test_compiled_is_one_graph_and_right(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, not translated to C++, which takes long; `fullgraph` raises where there would be two graphs."""
    monkeypatch.setattr(
        torch, "compile", functools.partial(torch.compile, backend="eager", fullgraph=True), raising=True
    )
    answer = run_it(llama_attention.SCENARIO, tiny(llama_attention.EAGER, llama_attention.COMPILED))
    assert [v["status"] for v in answer["variants"]] == ["ok", "ok"], answer["reason"]
    assert answer["variants"][1]["compile_seconds"] > 0
    assert answer["variants"][1]["compile_warm_seconds"] > 0


def test_compiling_is_timed_in_an_empty_cache_beside_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "usual"))
    seen = []

    def call() -> None:
        here = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        seen.append((here, [p.name for p in here.glob("made")]))
        (here / "made").touch()

    compilation = llama_attention._compilation(tiny_setup(), call)
    (cold, found_cold), (warm, found_warm) = seen
    assert cold == warm
    assert cold.parent == tmp_path / "usual"
    assert (found_cold, found_warm) == ([], ["made"])
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "usual")
    assert compilation.cold_seconds is not None
    assert compilation.warm_seconds is not None


def test_without_transformers_the_case_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = run_it(llama_attention.SCENARIO)
    assert (answer["status"], answer["variants"]) == ("skip", [])
    assert answer["reason"] == "needs transformers, which is not part of this environment"
