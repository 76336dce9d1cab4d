"""Every exercise that has a CPU form passes here, and a planted wrong answer fails it."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")

from healthcheck.drive import budget, exercises, process  # noqa: E402
from healthcheck.exercise import (  # noqa: E402
    EXERCISES,
    attention,
    audio,
    compile,
    gpu,
    models,
    quantized,
    torch_math,
    vision,
)
from healthcheck.exercise.base import Wrong  # noqa: E402
from healthcheck.exercise.runner import attempt  # noqa: E402
from healthcheck.facts.container import ContainerFacts  # noqa: E402
from healthcheck.facts.snapshot import Facts  # noqa: E402

pytestmark = pytest.mark.cpu
ON_CPU = [e for e in EXERCISES if not e.gpu_only]


@pytest.mark.parametrize("exercise", ON_CPU, ids=lambda e: e.name)
def test_it_passes(exercise: Any) -> None:
    got = attempt(exercise, "cpu")
    if got["status"] == "skip" and "not part of this environment" in got["summary"]:
        pytest.skip(f"{exercise.name}: {got['summary']}")
    assert got["status"] == "pass", got


@pytest.mark.parametrize("exercise", [e for e in EXERCISES if e.gpu_only], ids=lambda e: e.name)
def test_one_that_needs_a_gpu_is_skipped_by_name(exercise: Any) -> None:
    got = attempt(exercise, "cpu")
    assert (got["status"], got["summary"]) == ("skip", "needs a GPU")


def slightly_off(result: Any) -> Any:
    return result * 1.2


def unwritten(a: Any, b: Any, out: Any) -> None:
    """A kernel that is launched and does nothing."""


def last_row_missing(a: Any, b: Any, out: Any) -> None:
    torch.matmul(a[:-1], b, out=out[:-1])


def not_causal(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def not_scaled(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


def keeps_all(boxes: Any, scores: Any, threshold: float) -> Any:
    return scores.argsort(descending=True)


def compiles_wrongly(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda x, y: function(x, y) + 1e-2


def last_word_lost(text: str) -> str:
    return text.rsplit(" ", 1)[0]


def black(*arguments: Any) -> Any:
    import numpy

    return numpy.zeros((48, 64, 3), "uint8")


def transposed(x: Any, pattern: str, **sizes: int) -> Any:
    from einops import rearrange

    return rearrange(x, pattern.replace("(h w)", "(w h)"), **sizes)


def half_the_tensors(data: bytes) -> Any:
    from safetensors.torch import load

    return dict(list(load(data).items())[:1])


def rounded(buffer: Any, dtype: str) -> Any:
    import soundfile

    samples, rate = soundfile.read(buffer, dtype=dtype)
    return samples // 2 * 2, rate


@pytest.mark.parametrize(
    ("module", "run", "planted"),
    [
        ("numpy", torch_math.numpy_product, lambda a, b: a @ b + 1),
        ("torch", torch_math.matmul, unwritten),
        ("torch", torch_math.matmul, last_row_missing),
        ("torch", attention.sdpa, not_causal),
        ("torch", attention.sdpa, not_scaled),
        ("torch", compile.torch_compile, compiles_wrongly),
        ("torchvision", vision.nms, keeps_all),
        ("cv2", vision.opencv, black),
        ("PIL", vision.pillow, black),
        ("torchaudio", audio.torchaudio, lambda wave: wave.new_zeros(1, 201, 4)),
        ("soundfile", audio.soundfile, rounded),
        ("transformers", models.transformers, slightly_off),
        ("diffusers", models.diffusers, slightly_off),
        ("accelerate", models.accelerate, slightly_off),
        ("safetensors", models.safetensors, half_the_tensors),
        ("sentencepiece", models.sentencepiece, last_word_lost),
        ("einops", models.einops, transposed),
        ("bitsandbytes", quantized.bitsandbytes, slightly_off),
        ("torchao", quantized.torchao, slightly_off),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_wrong_answer_is_caught(module: str, run: Any, planted: Any) -> None:
    pytest.importorskip(module, reason=f"{module} is not part of this environment")
    with pytest.raises(Wrong):
        run("cpu", planted)


def test_a_flash_backend_that_is_not_ours_is_caught() -> None:
    pytest.importorskip("xformers", reason="xformers is not part of this environment")
    pytest.importorskip("flash_attn", reason="flash-attn is not part of this environment")
    with pytest.raises(Wrong, match=r"fa2F@0\.0\.0"):
        attention.xformers_flash("cpu", "fa2F@0.0.0")


def test_inputs_differ_from_run_to_run() -> None:
    seeds = {torch_math.matmul("cpu").details["seed"] for _ in range(4)}
    assert len(seeds) > 1


def program(directory: Path, body: str) -> str:
    path = directory / "ffmpeg"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'Unknown encoder libx264' >&2; exit 8", "exit code 8: Unknown encoder libx264"),
        ("exit 0", "wrote no file"),
        ('for a in "$@"; do last=$a; done; case $last in *.mp4) echo x > "$last";; esac', "frames"),
    ],
    ids=["fails", "writes nothing", "decodes nothing"],
)
def test_a_broken_ffmpeg_is_caught(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(Wrong) as caught:
        audio.ffmpeg("cpu", program(tmp_path, body))
    assert said in caught.value.summary


def test_a_missing_ffmpeg_is_a_fault_only_where_the_image_promised_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DYNO_MANIFEST", str(tmp_path / "manifest.json"))
    by_name = {e.name: e for e in EXERCISES}
    assert attempt(by_name["ffmpeg"], "cpu")["status"] == "skip"
    (tmp_path / "manifest.json").write_text('{"debian": {"packages": {"ffmpeg": "7:7.1"}}}')
    got = attempt(by_name["ffmpeg"], "cpu")
    assert (got["status"], got["remedy"]) == ("fail", "apt-get install ffmpeg")


def test_a_tone_is_heard_right() -> None:
    import math

    rate = 16_000
    wave = [math.sin(2 * math.pi * 523 * i / rate) for i in range(rate)]
    assert audio._tone(wave, rate) == pytest.approx(523, rel=1e-3)
    assert math.isnan(audio._tone([0.0] * 100, rate))
    with pytest.raises(Wrong, match="440 Hz was encoded"):
        audio._right_tone("ffmpeg", math.nan, audio.Clip(tone=440))


def test_torch_compile_switched_off_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo.config

    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    with pytest.raises(Wrong, match="compiled nothing"):
        compile.torch_compile("cpu")


def test_lanes_answer_as_one_lane_does() -> None:
    """Two children side by side and one child give the same results in the same order; seeds differ."""
    quick = [
        e for e in ON_CPU if e.name in ("numpy", "matmul", "sdpa", "torchvision", "pillow", "safetensors")
    ]
    asked: list[tuple[str, ...]] = []

    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        asked.append(tuple(arguments[2:]))
        return process.run(module, arguments, python=sys.executable, **options)

    def examine(cpus: int) -> list[tuple[str, str, str]]:
        facts = Facts(container=ContainerFacts(cpus=cpus))
        costs = {"numpy": 10.0, "safetensors": 10.0}
        setup = exercises.Setup("cpu", budget.Deadline(150), run=run, costs=costs)
        return [(r.code, r.title, r.status.value) for r in exercises.examine(quick, facts, setup).results]

    one, two = examine(2), examine(4)
    assert one == two
    assert [code for code, _, _ in one] == [exercises.HARNESS[0], *(e.code for e in quick)]
    assert {status for _, _, status in one} <= {"pass", "skip"}
    assert asked[0] == tuple(e.name for e in quick)
    # Ten seconds each, then the small ones in turn.
    assert set(asked[1:]) == {("numpy", "matmul", "torchvision"), ("safetensors", "sdpa", "pillow")}


def test_a_gpu_by_itself_computes_copies_and_remembers() -> None:
    found = gpu.product_copy_and_memory("cpu")
    assert "64 MiB copied there and back, 64 MiB held" in found.summary


def test_a_memory_that_forgets_one_word_is_found() -> None:
    def forget(pattern: Any) -> Any:
        held = pattern.clone()
        held[12345] ^= 1
        return held

    with pytest.raises(Wrong, match="1 of 8388608 words"):
        gpu.product_copy_and_memory("cpu", forget)
