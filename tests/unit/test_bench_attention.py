"""Cases, names and counts of the attention scenarios, without torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck.bench import attention, llama_attention
from healthcheck.bench.attention import Form
from healthcheck.bench.attention_backends import need, refusals, refused
from healthcheck.bench.runner import FULL_BUDGET
from healthcheck.bench.scenario import Case, Machine, Setup, Unavailable

ROOT = Path(__file__).parents[2]
GPU = Machine("cuda", memory=141 * 2**30)
SHORT_GPU = Machine("cuda", short=True, memory=141 * 2**30)
CPU, SHORT_CPU = Machine("cpu"), Machine("cpu", short=True)
GRID = Form("bf16", heads=16, length=16384, width=128, causal=True, backward=False)


def setup_of(case: Case, machine: Machine = GPU, seed: int = 1) -> Setup:
    return Setup(machine.device, machine.short, case, case.batch, seed)


def grid() -> dict[str, Case]:
    return {case.name: case for case in attention.cases(GPU)}


def test_the_grid_is_that_of_the_flashattention_papers() -> None:
    cases = grid()
    assert len(cases) == 2 * 2 * 2 * 6
    lengths = {name.rsplit("-L", 1)[1] for name in cases}
    assert lengths == {"512", "1024", "2048", "4096", "8192", "16384"}
    for case in cases.values():
        assert case.batch * case.form.length == 16384
        assert (case.form.heads, case.form.width) == (16, 128)


@pytest.mark.parametrize(
    ("name", "dtype", "causal", "backward", "batch"),
    [
        ("bf16-causal-fwd-L2048", "bf16", True, False, 8),
        ("bf16-fwd-L2048", "bf16", False, False, 8),
        ("fp16-causal-bwd-L512", "fp16", True, True, 32),
        ("fp16-bwd-L16384", "fp16", False, True, 1),
    ],
)
def test_a_name_says_what_is_measured(
    name: str, dtype: str, causal: bool, backward: bool, batch: int
) -> None:
    case = grid()[name]
    assert (case.form.dtype, case.form.causal, case.form.backward) == (dtype, causal, backward)
    assert case.batch == batch


def test_every_backend_is_a_variant_and_math_the_baseline() -> None:
    for case in attention.cases(GPU):
        names = [v.name for v in case.variants]
        assert names == ["math", "flash", "efficient", "cudnn", "flash-attn", "xformers"]


def test_the_short_form_is_one_case_on_either_device() -> None:
    (gpu,), (cpu,) = attention.cases(SHORT_GPU), attention.cases(SHORT_CPU)
    assert (gpu.name, gpu.batch) == ("bf16-causal-fwd", 1)
    assert attention.SCENARIO.workload(setup_of(gpu)) == "B=1 H=32 L=2048 D=128 bf16 causal forward"
    assert [v.name for v in gpu.variants] == ["math", "flash", "cudnn", "flash-attn"]
    assert (cpu.name, [v.name for v in cpu.variants]) == ("fp32-causal-fwd", ["math", "flash"])


def test_a_cpu_measures_both_passes() -> None:
    assert [c.name for c in attention.cases(CPU)] == ["fp32-causal-fwd-L1024", "fp32-causal-bwd-L1024"]


def test_the_grid_takes_half_of_the_time_budget_at_most() -> None:
    """The other half is for the reference, the trials and the calls that take longer than planned."""
    planned = 0.0
    for case in attention.cases(GPU):
        assert case.plan is not None
        assert case.steady_seconds is not None
        each = case.plan.warmup_seconds + case.plan.seconds + case.steady_seconds
        planned += each * len(case.variants)
    assert planned <= FULL_BUDGET / 2


def test_the_work_of_a_call() -> None:
    """Causal forward: two products of 2 x 2048 x 2048 x 128 a head, 32 heads, half of each."""
    (case,) = attention.cases(SHORT_GPU)
    cost = attention.SCENARIO.cost(setup_of(case), None)
    assert cost is not None
    assert (cost.flops, cost.engine) == (34_359_738_368.0, "bf16")
    throughput = attention.SCENARIO.throughput(setup_of(case), None)
    assert throughput is not None
    assert (throughput.amount, throughput.unit) == (pytest.approx(0.034359738368), "TFLOP/s")


def test_a_backward_pass_is_two_and_a_half_times_the_work() -> None:
    forward, backward = grid()["fp16-fwd-L4096"], grid()["fp16-bwd-L4096"]
    costs = [attention.SCENARIO.cost(setup_of(case), None) for case in (forward, backward)]
    assert [c and c.flops for c in costs] == [549_755_813_888.0, 1_374_389_534_720.0]
    assert [c and c.engine for c in costs] == ["fp16", "fp16"]


def test_the_scores_of_math_take_gigabytes() -> None:
    """16 heads x 16384 x 16384 scores are 4 Gi; 12 bytes of each forward, 17 backward."""
    assert attention.score_bytes(GRID, 1) == 48 * 2**30
    assert attention.score_bytes(replace(GRID, backward=True), 1) == 68 * 2**30
    assert attention.score_bytes(replace(GRID, length=512), 32) == 1.5 * 2**30
    said = attention.shortage(48 * 2**30, 20 * 2**30)
    assert said == "its scores need 48.0 GiB of GPU memory, 20.0 GiB are free"


def test_math_alone_is_left_out_where_its_scores_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(attention, "_free_bytes", lambda: 20 * 2**30)
    case = grid()["bf16-causal-fwd-L16384"]
    with pytest.raises(Unavailable, match=r"48\.0 GiB of GPU memory, 20\.0 GiB are free"):
        case.variants[0].prepare(setup_of(case), None)


def test_the_first_the_last_and_a_drawn_head_are_compared() -> None:
    case = grid()["bf16-fwd-L2048"]
    drawn = set()
    for seed in range(40):
        pairs = attention.compared_heads(setup_of(case, seed=seed))
        assert {(0, 0), (7, 15)} <= set(pairs)
        assert len(pairs) in (2, 3)
        drawn |= set(pairs)
    assert len(drawn) > 20, "over many runs most heads have their turn"
    single = replace(case, batch=1, form=replace(case.form, heads=1))
    assert attention.compared_heads(setup_of(single)) == ((0, 0),)


@pytest.mark.parametrize(
    "words",
    [
        "No available kernel. Aborting execution.",
        "CUDA error: no kernel image is available for execution on the device",
        "FlashAttention only supports Ampere GPUs or newer.",
        "cuDNN Frontend error: No valid execution plans built.",
    ],
)
def test_a_refusal_is_known_by_its_words(words: str) -> None:
    assert refused(RuntimeError(words))
    with pytest.raises(Unavailable, match=r"^SDPA flash: ") as caught, refusals("SDPA flash"):
        raise RuntimeError(f"{words}\nException raised from somewhere")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA out of memory. Tried to allocate 8 GiB"),
        ImportError("undefined symbol: _ZN3c104cuda"),
    ],
)
def test_any_other_error_is_no_refusal(error: Exception) -> None:
    assert not refused(error)
    with pytest.raises(type(error)), refusals("SDPA flash"):
        raise error


def test_an_absent_package_is_named() -> None:
    with pytest.raises(Unavailable, match=r"^no-such is not part of this environment$"):
        need("no_such_module_anywhere", "no-such")
    need("json", "json")


def test_llama_is_whole_where_it_fits_and_says_so_where_it_does_not() -> None:
    (whole,) = llama_attention.cases(GPU)
    (reduced,) = llama_attention.cases(replace(GPU, memory=16 * 2**30))
    assert (whole.name, reduced.name) == ("prefill-2048", "prefill-2048-reduced")
    assert llama_attention.SCENARIO.workload(setup_of(whole)) == (
        "Llama-2-7B shape, 32 layers, hidden 4096, fp16: 1 sequence of 2048 tokens, no KV cache kept"
    )
    assert "27 of its 32 layers" in llama_attention.SCENARIO.workload(setup_of(reduced))


@pytest.mark.parametrize(("gib", "layers"), [(141, 32), (24, 32), (16, 27), (8, 7), (2, 2)])
def test_layers_by_memory(gib: int, layers: int) -> None:
    """A layer takes 404,750,336 bytes; beside 4 GiB and 524,288,000 bytes, of 92 % of the memory."""
    form = llama_attention.form_of(replace(GPU, memory=gib * 2**30))
    assert form.decoder.layers == layers


def test_llama_has_its_variants_and_short_forms_do_not_compile() -> None:
    names = {
        machine: [v.name for v in llama_attention.cases(machine)[0].variants]
        for machine in (GPU, SHORT_GPU, CPU, SHORT_CPU)
    }
    assert names == {
        GPU: ["eager", "sdpa", "flash-attn", "compiled"],
        SHORT_GPU: ["eager", "sdpa", "flash-attn"],
        CPU: ["eager", "sdpa", "compiled"],
        SHORT_CPU: ["eager", "sdpa"],
    }


def test_a_short_llama_is_a_reduced_one() -> None:
    (short,), (cpu,) = llama_attention.cases(SHORT_GPU), llama_attention.cases(SHORT_CPU)
    assert (short.name, cpu.name) == ("prefill-2048-reduced", "prefill-64")


def test_the_work_of_a_prefill() -> None:
    """2 x 2048 x 32 x 202,375,168 of products, 32 x 2 x 32 x 2048 x 2048 x 128 of attention, and the head."""
    (case,) = llama_attention.cases(GPU)
    cost = llama_attention.SCENARIO.cost(setup_of(case), None)
    assert cost is not None
    assert cost.flops == 26_525_718_020_096 + 1_099_511_627_776 + 536_870_912_000
    assert cost.engine == "fp16"
    throughput = llama_attention.SCENARIO.throughput(setup_of(case), None)
    assert throughput is not None
    assert (throughput.amount, throughput.unit) == (2048.0, "tokens/s")


def test_the_logits_of_evenly_spaced_tokens_are_compared() -> None:
    assert llama_attention.positions(2048) == [511, 1023, 1535, 2047]


def test_the_scenarios_are_listed_without_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from healthcheck.bench import attention, llama_attention\n"
        "from healthcheck.bench.scenario import Machine\n"
        "print(len(attention.cases(Machine('cuda'))), len(llama_attention.cases(Machine('cuda'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["48", "1"]
