"""Exercises are run in children that may crash, hang, talk or lie, and each still gets its own answer."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import HEALTHY, NO_GPU, STACK, with_, with_manifest

from healthcheck import child, children
from healthcheck.checks import libraries
from healthcheck.checks.cuda import initialisation
from healthcheck.facts.collect import Facts
from healthcheck.result import Result, Status


@dataclasses.dataclass(frozen=True)
class Fake:
    name: str
    code: str
    title: str
    package: str = ""
    gpu_only: bool = False


A, B, C = (Fake(name, f"DYN-LIB-90{i}", f"exercise {name}") for i, name in enumerate("abc"))

# Plays the child's side of the contract: what each exercise does is written in `acts`.
CHILD = """
import os, signal, sys, time
from healthcheck import wire

def answer(name, **fields):
    wire.emit({"event": "exercise", "name": name, "status": "pass", "summary": "ok", "remedy": "",
               "details": {"device": sys.argv[2]}, "seconds": 0.5, **fields})

ACTS = {
    "pass": lambda n: answer(n),
    "crash": lambda n: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda n: (print("last words"), sys.stdout.flush(), os._exit(7)),
    "hang": lambda n: time.sleep(60),
    "noise": lambda n: (print('{"event": "exercise", "name": "a", "status": "fail"}'), answer(n)),
    "lie": lambda n: answer(n, status="fine"),
    "odd": lambda n: answer(n, details=[1], seconds="soon"),
    "fail": lambda n: answer(n, status="fail", summary="wrong result"),
    "silent": lambda n: None,
}
acts = dict(pair.split("=") for pair in os.environ["ACTS"].split(","))
for name in sys.argv[3:]:
    wire.emit({"event": "start", "name": name})
    ACTS[acts[name]](name)
if "end" in acts:
    ACTS[acts["end"]]("end")
"""


def examine(
    tmp_path: Path,
    acts: str,
    *exercises: Fake,
    facts: Facts = HEALTHY,
    device: str = "cuda",
    limit: float = 60,
    child_limit: float = 30,
    patience: float = 0.0,
) -> libraries.Examination:
    (tmp_path / "played.py").write_text(CHILD)

    def run(module: str, arguments: list[str], **options: object) -> child.Outcome:
        environment = {**children.environment(), "ACTS": acts}
        environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
        return child.run(module, arguments, python=sys.executable, **{**options, "environment": environment})  # type: ignore[arg-type]

    setup = libraries.Setup(
        device,
        children.Deadline(limit),
        why_no_gpu="see DYN-GPU-001",
        module="played",
        child_limit=child_limit,
        patience=patience,
        run=run,
    )
    return libraries.examine(exercises or (A, B, C), facts, setup)


def by_code(found: libraries.Examination) -> dict[str, Result]:
    return {r.code: r for r in found.results}


def statuses(found: libraries.Examination) -> list[str]:
    return [r.status.value for r in found.results]


def test_all_pass_in_one_child(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=pass,c=pass")
    assert statuses(found) == ["pass"] * 4
    assert by_code(found)["DYN-LIB-900"].details == {"device": "cuda"}
    assert by_code(found)["DYN-LIB-900"].seconds == 0.5


@pytest.mark.parametrize(
    ("act", "cause"), [("crash", "was ended by SIGSEGV"), ("exit", "exit code 7; it last said: last words")]
)
def test_a_crash_blames_the_exercise_it_happened_in_and_the_rest_go_on(
    tmp_path: Path, act: str, cause: str
) -> None:
    found = examine(tmp_path, f"a=pass,b={act},c=pass")
    assert statuses(found) == ["pass", "pass", "fail", "pass"]
    result = by_code(found)["DYN-LIB-901"]
    assert cause in result.summary
    assert result.remedy.endswith("-m played --device cuda b")


def test_a_hang_is_ended_and_the_rest_go_on(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=hang,c=pass", child_limit=3)
    assert statuses(found) == ["pass", "pass", "fail", "pass"]
    assert "did not finish within" in by_code(found)["DYN-LIB-901"].summary
    assert found.unfinished == ()


def test_an_exercise_with_little_time_of_its_own_gets_a_second_turn_before_it_is_blamed(
    tmp_path: Path,
) -> None:
    found = examine(tmp_path, "a=hang,b=pass,c=pass", child_limit=2, patience=30)
    assert statuses(found) == ["pass", "fail", "pass", "pass"]


def test_noise_that_looks_like_an_answer_is_noise(tmp_path: Path) -> None:
    assert statuses(examine(tmp_path, "a=noise,b=noise,c=pass")) == ["pass"] * 4


def test_an_answer_that_is_no_result_fails(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=lie,b=odd,c=pass")
    assert statuses(found) == ["pass", "fail", "fail", "pass"]
    assert "no result" in by_code(found)["DYN-LIB-900"].summary


def test_a_failure_without_remedy_gets_the_line_that_repeats_it(tmp_path: Path) -> None:
    found = by_code(examine(tmp_path, "a=fail,b=pass,c=pass"))["DYN-LIB-900"]
    assert (found.status, found.summary) == (Status.FAIL, "wrong result")
    assert found.remedy.endswith("-m played --device cuda a")


def test_an_exercise_that_gives_no_answer_fails(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=pass,c=silent")
    assert by_code(found)["DYN-LIB-902"].status is Status.FAIL


def test_a_crash_after_the_last_answer_is_told(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=pass,c=pass,end=crash")
    assert statuses(found) == ["warn", "pass", "pass", "pass"]
    assert "SIGSEGV" in found.results[0].summary


def test_a_child_that_never_answers_is_one_failure_and_not_one_for_each(tmp_path: Path) -> None:
    def run(*_: object, **__: object) -> child.Outcome:
        return child.Outcome((), 1, False, "No module named 'healthcheck'\n", 0.1)

    setup = libraries.Setup("cpu", children.Deadline(60), run=run)
    found = libraries.examine((A, B), HEALTHY, setup)
    assert statuses(found) == ["fail", "unknown", "unknown"]
    assert "No module named 'healthcheck'" in found.results[0].summary


def test_the_time_limit_leaves_names_behind_and_never_a_pass(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=hang,c=pass", limit=3, patience=30)
    assert by_code(found)["DYN-LIB-900"].status is Status.PASS
    assert found.unfinished == ("b", "c")
    assert {by_code(found)[c].status for c in ("DYN-LIB-901", "DYN-LIB-902")} == {Status.UNKNOWN}


def test_without_a_gpu_the_gpu_only_ones_are_skipped_by_name_with_the_reason(tmp_path: Path) -> None:
    gpu_only = dataclasses.replace(B, gpu_only=True)
    found = examine(tmp_path, "a=pass,c=pass", A, gpu_only, C, facts=NO_GPU, device="cpu")
    assert statuses(found) == ["pass", "pass", "skip", "pass"]
    assert by_code(found)["DYN-LIB-901"].summary == "needs a GPU: see DYN-GPU-001"
    assert by_code(found)["DYN-LIB-900"].details == {"device": "cpu"}


def test_a_package_that_the_manifest_promises_and_that_is_missing_fails(tmp_path: Path) -> None:
    facts = with_(HEALTHY, "stack", distributions={k: v for k, v in STACK.items() if k != "numpy"})
    found = examine(tmp_path, "a=pass", A, dataclasses.replace(B, package="numpy"), facts=facts)
    assert by_code(found)["DYN-LIB-901"].status is Status.FAIL
    assert by_code(found)["DYN-LIB-901"].remedy == "pip install --no-deps numpy==2.5.0"


def test_a_package_that_nobody_promised_is_skipped_by_name(tmp_path: Path) -> None:
    facts = with_manifest(HEALTHY, stack={})
    found = examine(tmp_path, "a=pass", A, dataclasses.replace(B, package="torchao"), facts=facts)
    assert by_code(found)["DYN-LIB-901"].status is Status.SKIP
    assert by_code(found)["DYN-LIB-901"].details == {"package": "torchao"}


def test_the_real_exercises_have_unique_names_and_codes_and_need_no_torch_to_be_listed() -> None:
    exercises = libraries.listed()
    assert len({e.name for e in exercises}) == len({e.code for e in exercises}) == len(exercises)
    assert libraries.HARNESS[0] not in {e.code for e in exercises}


def test_a_cuda_that_does_not_start_is_one_finding_and_the_rest_runs_on_the_cpu() -> None:
    said = "RuntimeError: Error 804: forward compatibility was attempted on non supported HW"
    asked: list[list[str]] = []

    def run(module: str, arguments: list[str], **options: Any) -> child.Outcome:
        asked.append(arguments)
        if arguments[1] == "cuda":
            options["on_event"]({"event": "device", "error": said})
        else:
            for name in arguments[2:]:
                options["on_event"]({"event": "start", "name": name})
                options["on_event"]({"event": "exercise", "name": name, "status": "pass", "summary": "ok"})
        return child.Outcome((), 0, False, "", 0.1)

    gpu_only = dataclasses.replace(B, gpu_only=True)
    found = libraries.examine(
        (A, gpu_only, C), HEALTHY, libraries.Setup("cuda", children.Deadline(60), run=run)
    )
    assert (found.cuda_error, found.device) == (said, "cpu")
    assert asked == [["--device", "cuda", "a", "b", "c"], ["--device", "cpu", "a", "c"]]
    assert statuses(found) == ["pass", "pass", "skip", "pass"]
    assert "see DYN-CUDA-002" in by_code(found)["DYN-LIB-901"].summary


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("Error 804: forward compatibility was attempted on non supported HW", "driver to 550.90.07"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "unset LD_LIBRARY"),
        ("Error 34: CUDA driver is a stub library", "unset LD_LIBRARY_PATH"),
        ("The NVIDIA driver on your system is too old (found version 11040)", "driver to 550.90.07"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "nvidia-smi -c DEFAULT"),
        ("Error 802: system not yet initialized", "nvidia-fabricmanager"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "nvidia_uvm"),
        ("RuntimeError: No CUDA GPUs are available", "--gpus all"),
        ("the provided PTX was compiled with an unsupported toolchain.", "driver to 550.90.07"),
        ("something nobody has seen", "nvidia-smi"),
    ],
)
def test_what_cuda_says_at_its_start_has_a_line_that_fixes_it(error: str, remedy: str) -> None:
    found = initialisation(error)
    assert (found.status, found.unusable) == (Status.FAIL, True)
    assert error in found.summary and remedy in found.remedy and "pip" not in found.remedy


def test_a_cuda_that_starts_passes_and_one_that_is_not_wanted_is_skipped() -> None:
    assert initialisation("").status is Status.PASS
    assert initialisation(None).status is Status.SKIP
