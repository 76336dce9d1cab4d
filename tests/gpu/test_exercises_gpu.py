"""Every exercise on a real GPU passes or says what is absent, and a planted wrong answer fails it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.drive import budget, exercises, process  # noqa: E402
from healthcheck.exercise import EXERCISES, attention, compile, models, quantized, torch_math, vision  # noqa: E402
from healthcheck.exercise.base import Wrong  # noqa: E402
from healthcheck.exercise.runner import attempt  # noqa: E402
from healthcheck.facts.collect import collect  # noqa: E402
from healthcheck.facts.snapshot import Facts  # noqa: E402
from healthcheck.facts.stack import StackFacts  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
def test_it_passes(exercise: Any) -> None:
    got = attempt(exercise, "cuda")
    if got["status"] == "skip":
        pytest.skip(f"{exercise.name}: {got['summary']}")
    assert got["status"] == "pass", got


def unwritten_like_first(a: Any, *others: Any, **more: Any) -> Any:
    """A kernel that is launched and never writes: what comes back is memory as it was."""
    return torch.empty_like(a)


def unwritten_convolution(x: Any, w: Any, padding: int) -> Any:
    return torch.empty(x.shape[0], w.shape[0], *x.shape[2:], dtype=x.dtype, device=x.device)


def not_causal(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def scaled(function: Any) -> Any:
    return lambda *arguments, **more: function(*arguments, **more) * 1.05


@pytest.mark.parametrize(
    ("run", "planted"),
    [
        (torch_math.matmul, lambda a, b, out: None),
        (torch_math.cublas, unwritten_like_first),
        (torch_math.cublas, scaled(torch.bmm)),
        (torch_math.cudnn, unwritten_convolution),
        (torch_math.cudnn, scaled(torch.nn.functional.conv2d)),
        (torch_math.cufft, unwritten_like_first),
        (torch_math.cufft, torch.fft.ifft),
        (torch_math.cusolver, lambda a, b: b),
        (torch_math.cusparse, lambda a, x: x),
        (torch_math.curand, lambda out, seed: None),
        (torch_math.curand, lambda out, seed: out.fill_(0.5)),
        (compile.triton_add, lambda x, y, out: None),
        (compile.torch_compile, lambda function, **options: lambda x, y: function(x, y) + 1e-2),
        (attention.sdpa, unwritten_like_first),
        (attention.sdpa, not_causal),
        (vision.nms, lambda boxes, scores, threshold: scores.argsort(descending=True)),
        (models.transformers, lambda logits: logits * 1.2),
        (models.diffusers, lambda sample: sample * 1.2),
        (quantized.bitsandbytes, lambda values: values * 1.2),
        (quantized.torchao, lambda values: values * 1.2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_wrong_answer_is_caught(run: Any, planted: Any) -> None:
    libraries = {models.diffusers: "diffusers", models.transformers: "transformers"}
    libraries |= {quantized.bitsandbytes: "bitsandbytes", quantized.torchao: "torchao"}
    libraries |= {vision.nms: "torchvision", compile.triton_add: "triton"}
    if run in libraries:
        pytest.importorskip(libraries[run], reason=f"{libraries[run]} is not part of this environment")
    with pytest.raises(Wrong):
        run("cuda", planted)


@pytest.mark.parametrize(
    ("module", "run"), [("flash_attn", attention.flash_attn), ("xformers", attention.xformers)]
)
def test_unwritten_attention_is_caught(module: str, run: Any) -> None:
    pytest.importorskip(module, reason=f"{module} is not part of this environment")
    with pytest.raises(Wrong):
        run("cuda", unwritten_like_first)


def test_the_rest_goes_on_in_a_new_process_when_an_exercise_breaks_the_gpu_context() -> None:
    """The first exercise trips a device-side assertion, after which this process can use no GPU."""
    script = (
        "import torch, sys\n"
        "import healthcheck.exercise.runner as runner\n"
        "from healthcheck.exercise import EXERCISES, Exercise\n"
        "def breaks(device):\n"
        "    torch.zeros(2, device='cuda')[torch.tensor([9], device='cuda')]\n"
        "    torch.cuda.synchronize()\n"
        "from healthcheck import wire\n"
        "chosen = [Exercise('breaks', 'DYN-LIB-999', 'Breaks', '', True, breaks),\n"
        "          *(e for e in EXERCISES if e.name in ('matmul', 'sdpa'))]\n"
        "runner.run_all(chosen, 'cuda', wire.emit, runner._start_again)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    answers = {e["name"]: e["status"] for e in events if e["event"] == "exercise"}
    assert answers == {"breaks": "fail", "matmul": "pass", "sdpa": "pass"}


def test_children_side_by_side_answer_as_one_child_does() -> None:
    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        return process.run(module, arguments, python=sys.executable, **options)

    def examine(facts: Facts) -> tuple[list[tuple[str, str]], str | None]:
        setup = exercises.Setup("cuda", budget.Deadline(300), run=run)
        found = exercises.examine(exercises.listed(), facts, setup)
        return [(r.code, r.status.value) for r in found.results], found.cuda_error

    here = dataclasses.replace(collect("auto"), stack=StackFacts())  # what is absent is asked, and says so
    # Whatever this machine has: room for one child, then for as many as pay.
    one, many = (
        dataclasses.replace(here, container=dataclasses.replace(here.container, cpus=cpus))
        for cpus in (1, 16)
    )
    answers, error = examine(many)
    assert error == "" and "fail" not in {status for _, status in answers}
    assert examine(one) == (answers, error)
