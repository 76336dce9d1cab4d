"""The list of exercises, and the runner's answers, without torch."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from healthcheck.exercise import EXERCISES, Exercise, Finding, Skip, Wrong
from healthcheck.exercise.runner import attempt, main, run_all, telling_line
from healthcheck.remedies import remedy_for

ROOT = Path(__file__).parents[2]
CODES = {  # published: a code never changes its meaning
    "numpy": "DYN-LIB-001",
    "matmul": "DYN-LIB-002",
    "sdpa": "DYN-LIB-003",
    "cublas": "DYN-LIB-004",
    "cudnn": "DYN-LIB-005",
    "cufft": "DYN-LIB-006",
    "cusolver": "DYN-LIB-007",
    "cusparse": "DYN-LIB-008",
    "curand": "DYN-LIB-009",
    "triton": "DYN-LIB-010",
    "torch-compile": "DYN-LIB-011",
    "flash-attn": "DYN-LIB-012",
    "xformers": "DYN-LIB-013",
    "xformers-flash": "DYN-LIB-014",
    "torchvision": "DYN-LIB-015",
    "opencv": "DYN-LIB-016",
    "pillow": "DYN-LIB-017",
    "torchaudio": "DYN-LIB-018",
    "soundfile": "DYN-LIB-019",
    "torchcodec": "DYN-LIB-020",
    "ffmpeg": "DYN-LIB-021",
    "transformers": "DYN-LIB-022",
    "diffusers": "DYN-LIB-023",
    "accelerate": "DYN-LIB-024",
    "safetensors": "DYN-LIB-025",
    "sentencepiece": "DYN-LIB-026",
    "einops": "DYN-LIB-027",
    "bitsandbytes": "DYN-LIB-028",
    "torchao": "DYN-LIB-029",
    "gpu": "DYN-LIB-030",
}


def exercise(run: Any, name: str = "made-up", package: str = "some-package", **more: Any) -> Exercise:
    return Exercise(name, "DYN-LIB-999", "Made up", package, more.pop("gpu_only", False), run, **more)


def raises(error: BaseException) -> Any:
    def run(device: str) -> Finding:
        raise error

    return run


def test_codes_keep_their_meaning() -> None:
    assert {e.name: e.code for e in EXERCISES} == CODES


def test_the_list_needs_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from healthcheck.exercise.runner import main; sys.exit(main(['--list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    listed = json.loads(done.stdout)["exercises"]
    assert [e["name"] for e in listed] == list(CODES)


def test_an_unknown_name_is_a_usage_error_that_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    said = capsys.readouterr().err
    assert "no exercise named nonsense" in said
    assert "torch-compile" in said


def test_a_finding_passes_with_its_details() -> None:
    got = attempt(exercise(lambda device: Finding("as it should be", {"seed": 7})), "cpu")
    assert (got["status"], got["summary"], got["details"]) == ("pass", "as it should be", {"seed": 7})
    assert got["seconds"] >= 0


def test_a_module_that_is_gone_while_its_package_is_installed_is_a_fault() -> None:
    gone = dataclasses.replace(
        exercise(lambda device: Finding("x")), package="pytest", module="no_such_module"
    )
    got = attempt(gone, "cpu")
    assert (got["status"], got["summary"]) == (
        "fail",
        "pytest is installed, but its module no_such_module is gone.",
    )
    assert got["remedy"].startswith("pip install --force-reinstall --no-deps pytest==")
    absent = attempt(dataclasses.replace(gone, package="no-such-package"), "cpu")
    assert (absent["status"], absent["summary"]) == ("skip", "not part of this environment")


def test_a_wrong_result_fails_with_a_remedy_even_if_none_was_given() -> None:
    got = attempt(exercise(raises(Wrong("off by one"))), "cpu")
    assert (got["status"], got["summary"]) == ("fail", "off by one")
    assert "some-package" in got["remedy"]


def test_a_skip_says_why() -> None:
    got = attempt(exercise(raises(Skip("needs Ampere"))), "cpu")
    assert (got["status"], got["summary"]) == ("skip", "needs Ampere")


def test_a_gpu_exercise_is_skipped_on_the_cpu_without_being_run() -> None:
    got = attempt(exercise(raises(AssertionError("was run")), gpu_only=True), "cpu")
    assert (got["status"], got["summary"]) == ("skip", "needs a GPU")


def test_an_absent_package_is_skipped_by_name() -> None:
    got = attempt(exercise(raises(AssertionError("was run")), module="no_such_module_anywhere"), "cpu")
    assert (got["status"], got["summary"]) == ("skip", "not part of this environment")


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), SystemExit(3), ImportError("libfoo.so.1: cannot open")]
)
def test_whatever_a_library_raises_is_a_failure(error: BaseException) -> None:
    got = attempt(exercise(raises(error)), "cpu")
    assert got["status"] == "fail"
    assert str(error) in got["summary"]
    assert got["remedy"]


def test_a_package_that_is_there_and_does_not_import_fails(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_on_purpose.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(str(tmp_path))
    got = attempt(exercise(raises(AssertionError("was run")), module="broken_on_purpose"), "cpu")
    assert got["status"] == "fail"
    assert "undefined symbol: _ZN3c10" in got["summary"]


def test_warnings_are_heard_and_kept_out_of_the_way() -> None:
    def run(device: str) -> Finding:
        warnings.warn("old API", UserWarning, stacklevel=1)
        warnings.warn("old API", UserWarning, stacklevel=1)
        return Finding("fine")

    assert attempt(exercise(run), "cpu")["details"]["warnings"] == ["UserWarning: old API"]


def test_one_failure_does_not_stop_the_rest() -> None:
    events: list[Mapping[str, Any]] = []
    chosen = [exercise(raises(RuntimeError("boom")), "first"), exercise(lambda d: Finding("fine"), "second")]
    run_all(chosen, "cpu", events.append, lambda device, names: pytest.fail("no new process is needed"))
    assert [(e["event"], e["name"], e.get("status")) for e in events] == [
        ("start", "first", None),
        ("exercise", "first", "fail"),
        ("start", "second", None),
        ("exercise", "second", "pass"),
    ]


def test_a_broken_cuda_context_moves_the_rest_to_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        @staticmethod
        def synchronize() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    class Torch:
        cuda = Cuda

    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    events: list[Mapping[str, Any]] = []
    handed_over: list[tuple[str, list[str]]] = []
    chosen = [exercise(lambda d: Finding("fine"), name) for name in ("first", "second", "third")]
    run_all(chosen, "cuda", events.append, lambda device, names: handed_over.append((device, list(names))))
    assert [e["status"] for e in events if e["event"] == "exercise"] == ["fail"]
    assert "illegal memory access" in events[1]["summary"]
    assert handed_over == [("cuda", ["second", "third"])]


@pytest.mark.parametrize(
    ("error", "part_of_remedy"),
    [
        (
            "OSError: /workspace/.cache/inductor/ab/x.so: failed to map segment from shared object",
            "--tmpfs /workspace/.cache:exec",
        ),
        ("OSError: /scratch/k.so: failed to map segment from shared object", "--tmpfs /scratch:exec"),
        ("InvalidCxxCompiler: No working C++ compiler found in cpp.cxx", "apt-get install g++"),
        ("RuntimeError: Failed to find C compiler.", "apt-get install gcc"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("AssertionError: libcuda.so cannot found!", "ldconfig"),
        ("CUDA error: no kernel image is available for execution on the device", "GPU_ARCHS="),
        ("the provided PTX was compiled with an unsupported toolchain.", "570"),
        ("Found no NVIDIA driver on your system.", "--gpus all"),
        ("ImportError: libGL.so.1: cannot open shared object file", "opencv-python-headless"),
        ("operator torchvision::nms does not exist", "torchvision==0.23.0"),
        ("cannot import name 'triton_key' from 'triton.compiler.compiler'", "triton==3.4.0"),
        ("RuntimeError: Could not load libtorchcodec.", "torchcodec==0.7.0"),
        ("PermissionError: [Errno 13] Permission denied: '/.triton'", "volume"),
        ("FileNotFoundError: [Errno 2] No usable temporary directory found", "--tmpfs /tmp"),
        ("ModuleNotFoundError: No module named 'numpy'", "pip install numpy"),
    ],
)
def test_a_known_error_has_its_own_remedy(error: str, part_of_remedy: str) -> None:
    assert part_of_remedy in remedy_for(error, "some-package")


def test_an_unknown_error_asks_to_reinstall_the_package() -> None:
    assert remedy_for("something new", "some-package").endswith("some-package")


def test_a_long_message_is_cut_to_the_line_that_tells() -> None:
    text = (
        "InductorError: backend failed\n  at a\n  OSError: x.so: failed to map segment from shared object\n"
    )
    assert telling_line(text) == "OSError: x.so: failed to map segment from shared object"
    assert not re.search(r"\n", telling_line(text))


def test_a_sentence_that_ends_in_a_colon_is_told_with_its_point() -> None:
    text = "RuntimeError: Failed to import x for the following error (look up):\nNo module named 'y'\nmore"
    assert telling_line(text).endswith("the following error (look up): No module named 'y'")
