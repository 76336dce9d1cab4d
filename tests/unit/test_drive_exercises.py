"""Exercises are run in children that may crash, hang, talk or lie, and each still gets its own answer."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import GPU, HEALTHY, NO_GPU, STACK, with_, with_gpu, with_manifest

from healthcheck.checks.cuda import initialisation
from healthcheck.drive import budget, exercises, process
from healthcheck.facts.container import LimitsMet
from healthcheck.facts.snapshot import Facts
from healthcheck.remedies import known_remedy
from healthcheck.result import Result, Status


@dataclasses.dataclass(frozen=True)
class Fake:
    name: str
    code: str
    title: str
    package: str = ""
    gpu_only: bool = False


A, B, C, D = (Fake(name, f"DYN-LIB-90{i}", f"exercise {name}") for i, name in enumerate("abcd"))
# Seconds that make a lane of each of a, b and c, where there is room for three: 9 + 3 starts of 1.5 s are the
# least sum. With room for two, (a, d) and (b, c) are 11 and 13 s long.
APART = {"a": 9.0, "b": 7.0, "c": 6.0, "d": 2.0}

# Plays the child's side of the contract: what each exercise does is written in `acts`.
CHILD = """
import os, pathlib, signal, sys, time
from healthcheck import wire

def file(name):
    return pathlib.Path(__file__).with_name(name)

def wait_for(name):
    while not file(name).exists():
        time.sleep(0.02)

def once(name, act):  # the first time only
    if file(f"{name}-once").exists():
        answer(name)
    else:
        file(f"{name}-once").touch()
        act()

def answer(name, **fields):
    wire.emit({"event": "exercise", "name": name, "status": "pass", "summary": "ok", "remedy": "",
               "details": {"device": sys.argv[2]}, "seconds": 0.5, **fields})

ACTS = {
    "pass": lambda n: answer(n),
    "crash": lambda n: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda n: (print("last words"), sys.stdout.flush(), os._exit(7)),
    "hang": lambda n: (file(f"{n}-pid").write_text(str(os.getpid())), time.sleep(60)),
    "meet": lambda n: (file(n).touch(), wait_for("a"), wait_for("b"), answer(n)),
    "killed-once": lambda n: once(n, lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "full-once": lambda n: once(n, lambda: answer(n, status="fail", summary="CUDA out of memory. Tried")),
    "full": lambda n: answer(n, status="fail", summary="CUDA out of memory. Tried"),
    "threads": lambda n: answer(n, summary=os.environ.get("OMP_NUM_THREADS", "all")),
    "noise": lambda n: (print('{"event": "exercise", "name": "a", "status": "fail"}'), answer(n)),
    "lie": lambda n: answer(n, status="fine"),
    "odd": lambda n: answer(n, details=[1], seconds="soon"),
    "fail": lambda n: answer(n, status="fail", summary="wrong result"),
    "silent": lambda n: None,
}
acts = dict(pair.split("=") for pair in os.environ["ACTS"].split(","))
for name in sys.argv[3:]:
    if acts[name] == "no-start":
        once(name, lambda: os._exit(3))
        continue
    wire.emit({"event": "start", "name": name})
    ACTS[acts[name]](name)
if "end" in acts:
    ACTS[acts["end"]]("end")
"""


def examine(
    tmp_path: Path,
    acts: str,
    *asked: Fake,
    facts: Facts = HEALTHY,
    device: str = "cuda",
    limit: float = 60,
    child_limit: float = 30,
    patience: float = 0.0,
    costs: dict[str, float] | None = None,
    progress: Callable[[str], None] = lambda text: None,
    limits_met: Callable[[], LimitsMet] = LimitsMet,
    first_cure: str = "",
) -> exercises.Examination:
    (tmp_path / "played.py").write_text(CHILD)

    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        environment = {**options["environment"], "ACTS": acts}
        environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
        return process.run(
            module, arguments, python=sys.executable, **{**options, "environment": environment}
        )

    setup = exercises.Setup(
        device,
        budget.Deadline(limit),
        why_no_gpu="see DYN-GPU-001",
        module="played",
        child_limit=child_limit,
        patience=patience,
        run=run,
        progress=progress,
        costs=costs or {},
        container=facts.container,
        limits_met=limits_met,
        first_cure=first_cure,
    )
    return exercises.examine(asked or (A, B, C), facts, setup)


def by_code(found: exercises.Examination) -> dict[str, Result]:
    return {r.code: r for r in found.results}


def statuses(found: exercises.Examination) -> list[str]:
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


@pytest.mark.parametrize("act", ["fail", "crash"])
def test_a_failure_where_a_limit_was_met_names_it_and_no_reinstall(tmp_path: Path, act: str) -> None:
    counted = itertools.count()
    facts = with_(HEALTHY, "container", process_limit=8)
    found = examine(
        tmp_path, f"a={act},b=pass", A, B, facts=facts, limits_met=lambda: LimitsMet(processes=next(counted))
    )
    by = by_code(found)
    assert by[A.code].remedy == (
        "docker run --pids-limit -1 ...  # the limit of 8 processes and threads was met"
    )
    assert by[B.code].status is Status.PASS


def test_a_failure_whose_cause_was_found_before_has_that_cure(tmp_path: Path) -> None:
    facts = with_(HEALTHY, "stack", distributions={k: v for k, v in STACK.items() if k != "numpy"})
    gone = dataclasses.replace(C, package="numpy")
    found = by_code(examine(tmp_path, "a=fail,b=pass", A, B, gone, facts=facts, first_cure="put numpy back"))
    assert [found[e.code].remedy for e in (A, B, C)] == ["put numpy back", "", "put numpy back"]


def test_a_failure_without_remedy_gets_the_line_that_repeats_it(tmp_path: Path) -> None:
    found = by_code(examine(tmp_path, "a=fail,b=pass,c=pass"))["DYN-LIB-900"]
    assert (found.status, found.summary) == (Status.FAIL, "wrong result")
    assert found.remedy.endswith("-m played --device cuda a")


@pytest.mark.parametrize(("whole", "child"), [(300, 150), (7200, 3600), (20, 20)])
def test_whoever_gives_the_whole_more_time_gives_each_child_more(whole: float, child: float) -> None:
    limits: list[float] = []

    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        limits.append(options["time_limit"])
        return process.Outcome((), 1, False, "", 0.1)

    exercises.examine((A,), HEALTHY, exercises.Setup("cpu", budget.Deadline(whole), run=run))
    assert limits == [pytest.approx(child, abs=5)]


def test_an_exercise_that_gives_no_answer_fails(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=pass,c=silent")
    assert by_code(found)["DYN-LIB-902"].status is Status.FAIL


def test_a_crash_after_the_last_answer_is_told(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=pass,c=pass,end=crash")
    assert statuses(found) == ["warn", "pass", "pass", "pass"]
    assert "SIGSEGV" in found.results[0].summary


def test_a_child_that_never_answers_is_one_failure_and_not_one_for_each(tmp_path: Path) -> None:
    def run(*_: object, **__: object) -> process.Outcome:
        return process.Outcome((), 1, False, "No module named 'healthcheck'\n", 0.1)

    setup = exercises.Setup("cpu", budget.Deadline(60), run=run)
    found = exercises.examine((A, B), HEALTHY, setup)
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
    known = exercises.listed()
    assert len({e.name for e in known}) == len({e.code for e in known}) == len(known)
    assert exercises.HARNESS[0] not in {e.code for e in known}


def test_a_cuda_that_does_not_start_is_one_finding_and_the_rest_runs_on_the_cpu() -> None:
    said = "RuntimeError: Error 804: forward compatibility was attempted on non supported HW"
    asked: list[list[str]] = []

    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        asked.append(arguments)
        if arguments[1] == "cuda":
            options["on_event"]({"event": "device", "error": said})
        else:
            for name in arguments[2:]:
                options["on_event"]({"event": "start", "name": name})
                options["on_event"]({"event": "exercise", "name": name, "status": "pass", "summary": "ok"})
        return process.Outcome((), 0, False, "", 0.1)

    gpu_only = dataclasses.replace(B, gpu_only=True)
    found = exercises.examine(
        (A, gpu_only, C), HEALTHY, exercises.Setup("cuda", budget.Deadline(60), run=run)
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
        ("the provided PTX was compiled with an unsupported toolchain.", "driver to 570"),
        ("CUDA error 222", "driver to 570"),
        ("CUDA driver error (error code 34)", "unset LD_LIBRARY_PATH"),
        ("something nobody has seen", "nvidia-smi"),
    ],
)
def test_what_cuda_says_at_its_start_has_a_line_that_fixes_it(error: str, remedy: str) -> None:
    found = initialisation(error)
    assert (found.status, found.unusable) == (Status.FAIL, True)
    assert error in found.summary and remedy in found.remedy and "pip" not in found.remedy


@pytest.mark.parametrize(
    "error",
    [
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
        "23.65 GiB of which 34.00 MiB is free. Process 804 has 23.6 GiB memory in use.",
        "RuntimeError: CUDA error: out of memory",
    ],
)
def test_a_full_gpu_is_full_and_no_broken_environment(error: str) -> None:
    found = initialisation(error)
    assert (found.status, found.unusable) == (Status.FAIL, False)
    assert found.summary.startswith("The GPU's memory is full: ")
    assert found.remedy.startswith("nvidia-smi  # names the processes")


@pytest.mark.parametrize(
    "text", ["34.00 MiB is free", "error at 804.5 MHz", "pid 222", "Error 34.00", "803 files"]
)
def test_a_number_that_is_no_error_code_is_not_read_as_one(text: str) -> None:
    assert known_remedy(text) == ""


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (process.Outcome(({"event": "device", "error": ""},), 0, False, "", 1.0), ""),
        (process.Outcome(({"event": "device", "error": "Error 804"},), 0, False, "", 1.0), "Error 804"),
        (
            process.Outcome((), -11, False, "noise\nlast words\n", 1.0),
            "the process that tried was ended by SIGSEGV (last words)",
        ),
    ],
)
def test_whether_cuda_starts_is_asked_in_a_child_that_may_die(outcome: process.Outcome, said: str) -> None:
    assert exercises.cuda_error(budget.Deadline(60), run=lambda *_, **__: outcome) == said


def test_a_cuda_that_starts_passes_and_one_that_is_not_wanted_is_skipped() -> None:
    assert initialisation("").status is Status.PASS
    assert initialisation(None).status is Status.SKIP


@pytest.mark.parametrize(
    ("facts", "device", "lanes"),
    [
        (with_(HEALTHY, "container", cpus=1), "cuda", 1),
        (with_(HEALTHY, "container", cpus=2), "cuda", 1),
        (with_(HEALTHY, "container", cpus=4), "cuda", 2),
        (with_(HEALTHY, "container", cpus=7), "cpu", 3),
        (with_(HEALTHY, "container", cpus=64), "cuda", 4),
        (with_(HEALTHY, "container", cpus=None), "cuda", 1),
        (with_(HEALTHY, "container", cpus=64, cpu_limit=4.5), "cuda", 2),
        (with_(HEALTHY, "container", cpus=64, cpu_limit=0.5), "cuda", 1),
        (with_(HEALTHY, "container", cpus=64, memory_limit=9 << 30), "cpu", 2),
        (with_(HEALTHY, "container", cpus=64, memory_limit=1 << 30), "cpu", 1),
        (with_gpu(memory_total=8 << 30, memory_used=3 << 30), "cuda", 2),
        (with_gpu(memory_total=8 << 30, memory_used=7 << 30), "cuda", 1),
        (with_gpu(memory_total=8 << 30, memory_used=7 << 30), "cpu", 4),
        (with_gpu(memory_used=None), "cuda", 1),
        (with_gpu(compute_mode="exclusive-process"), "cuda", 1),
        (with_gpu(compute_mode="exclusive-thread"), "cuda", 1),
        (with_gpu(compute_mode=None), "cuda", 4),
        (with_gpu(mig=True), "cuda", 1),
        (with_(HEALTHY, "gpu", gpus=(GPU, dataclasses.replace(GPU, error="lost"))), "cuda", 4),
        (with_(HEALTHY, "gpu", gpus=(GPU, dataclasses.replace(GPU, memory_used=22 << 30))), "cuda", 1),
        (NO_GPU, "cuda", 1),
    ],
)
def test_as_many_children_as_cores_and_memory_hold(facts: Facts, device: str, lanes: int) -> None:
    assert exercises.room(facts, device) == lanes


def test_the_weights_are_of_exercises_that_exist() -> None:
    names = {e.name for e in exercises.listed()}
    assert set(exercises.COSTS) <= names and names >= exercises.CALLS_CUBLAS


def test_lanes_run_side_by_side_and_the_results_keep_the_order_of_the_list(tmp_path: Path) -> None:
    told: list[str] = []
    # Each of the two passes only while the other runs.
    found = examine(tmp_path, "a=meet,b=meet,c=pass", costs=APART, progress=told.append)
    assert [r.code for r in found.results] == ["DYN-LIB-000", "DYN-LIB-900", "DYN-LIB-901", "DYN-LIB-902"]
    assert statuses(found) == ["pass"] * 4
    assert found.results[0].summary == "3 of 3 answered"
    assert any("exercise a" in text and "exercise b" in text for text in told)


def test_each_child_gets_its_share_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    acts = "a=threads,b=threads,c=threads"
    together = examine(tmp_path, acts, costs=APART)  # ten cores, three children
    assert {r.summary for r in together.results[1:]} == {"3"}
    assert {r.summary for r in examine(tmp_path, acts).results[1:]} == {"all"}


@pytest.mark.parametrize(
    ("act", "cause"),
    [("crash", "SIGSEGV"), ("exit", "exit code 7"), ("hang", "did not finish within")],
)
def test_a_lane_that_dies_blames_its_exercise_and_its_others_go_on(
    tmp_path: Path, act: str, cause: str
) -> None:
    four_cores = with_(HEALTHY, "container", cpus=4)  # two lanes: a and d, b and c
    limit = 3.0 if act == "hang" else 30.0
    found = examine(
        tmp_path,
        f"a={act},b=noise,c=lie,d=pass",
        A,
        B,
        C,
        D,
        facts=four_cores,
        costs=APART,
        child_limit=limit,
    )
    assert statuses(found) == ["pass", "fail", "pass", "fail", "pass"]
    assert cause in by_code(found)["DYN-LIB-900"].summary
    assert "no result" in by_code(found)["DYN-LIB-902"].summary


def test_the_time_limit_holds_over_all_lanes(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=hang,b=pass,c=hang", costs=APART, limit=3, patience=30)
    assert statuses(found) == ["pass", "unknown", "pass", "unknown"]
    assert found.unfinished == ("a", "c")


@pytest.mark.parametrize("act", ["full-once", "killed-once", "no-start"])
def test_what_may_have_lacked_room_is_run_again_alone_before_it_counts(tmp_path: Path, act: str) -> None:
    assert statuses(examine(tmp_path, f"a=pass,b={act},c=pass", costs=APART)) == ["pass"] * 4
    assert (tmp_path / "b-once").exists()


def test_what_lacks_room_alone_too_has_failed(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=full,c=pass", costs=APART)
    assert statuses(found) == ["pass", "pass", "fail", "pass"]


def test_a_crash_at_the_end_of_a_lane_is_told_and_costs_the_others_nothing(tmp_path: Path) -> None:
    found = examine(tmp_path, "a=pass,b=full-once,c=pass,end=crash", costs=APART)
    assert statuses(found) == ["warn", "pass", "pass", "pass"]


def test_lanes_that_never_answer_are_one_failure() -> None:
    def run(*_: object, **__: object) -> process.Outcome:
        return process.Outcome((), 1, False, "No module named 'healthcheck'\n", 0.1)

    setup = exercises.Setup("cpu", budget.Deadline(60), run=run, costs=APART)
    found = exercises.examine((A, B, C), HEALTHY, setup)
    assert statuses(found) == ["fail", "unknown", "unknown", "unknown"]
    assert found.unfinished == ()


def played(errors: Callable[[list[str]], str], asked: list[list[str]]) -> process.Run:
    """A child that says `errors(arguments)` when CUDA is to start, and passes all where it says nothing."""

    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        asked.append(arguments)
        error = errors(arguments) if arguments[1] == "cuda" else ""
        if arguments[1] == "cuda":
            options["on_event"]({"event": "device", "error": error})
        for name in () if error else arguments[2:]:
            options["on_event"]({"event": "start", "name": name})
            options["on_event"]({"event": "exercise", "name": name, "status": "pass", "summary": "ok"})
        return process.Outcome((), 0, False, "", 0.1)

    return run


def test_a_cuda_that_starts_in_no_lane_is_one_finding() -> None:
    asked: list[list[str]] = []
    run = played(lambda arguments: "RuntimeError: Error 802: system not yet initialized", asked)
    setup = exercises.Setup("cuda", budget.Deadline(60), run=run, costs=APART)
    found = exercises.examine((A, dataclasses.replace(B, gpu_only=True), C), HEALTHY, setup)
    assert (found.cuda_error, found.device) == ("RuntimeError: Error 802: system not yet initialized", "cpu")
    assert sorted(asked[:3]) == [["--device", "cuda", name] for name in "abc"]
    assert asked[3:] == [["--device", "cpu", "a", "c"]]
    assert statuses(found) == ["pass", "pass", "skip", "pass"]


def test_a_gpu_that_lets_one_child_in_serves_the_others_after_it() -> None:
    asked: list[list[str]] = []
    busy = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
    run = played(lambda arguments: "" if "b" in arguments or len(asked) > 3 else busy, asked)
    setup = exercises.Setup("cuda", budget.Deadline(60), run=run, costs=APART)
    found = exercises.examine((A, B, C), HEALTHY, setup)
    assert (found.cuda_error, found.device) == ("", "cuda")
    assert asked[3:] == [["--device", "cuda", "a", "c"]]
    assert statuses(found) == ["pass"] * 4


def test_a_signal_ends_the_children_of_all_lanes(tmp_path: Path) -> None:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    files = [tmp_path / f"{name}-pid" for name in "ab"]

    def send() -> None:
        while not all(file.exists() and file.read_text() for file in files):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, leave)
    sender = threading.Thread(target=send, daemon=True)
    try:
        sender.start()
        with pytest.raises(SystemExit):
            examine(tmp_path, "a=hang,b=hang,c=pass", costs=APART)
        sender.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def gpus(count: int) -> Facts:
    found = tuple(dataclasses.replace(GPU, index=i, uuid=f"GPU-{i}") for i in range(count))
    return with_(HEALTHY, "gpu", gpus=found)


def tried(
    facts: Facts, answers: dict[str, process.Outcome], device: str = "cuda"
) -> tuple[Result, list[str]]:
    """The result of the other GPUs, each answering as `answers` say by its number."""
    asked: list[str] = []

    def run(module: str, arguments: list[str], **options: Any) -> process.Outcome:
        assert arguments == ["--device", "cuda", "gpu"]
        asked.append(options["environment"]["CUDA_VISIBLE_DEVICES"])
        return answers[asked[-1]]

    setup = exercises.Setup(device, budget.Deadline(60), why_no_gpu="see DYN-GPU-001", run=run)
    return exercises.other_gpus(facts, setup), sorted(asked)


def told(*events: dict[str, Any], code: int = 0) -> process.Outcome:
    return process.Outcome(events, code, False, "", 1.0)


RIGHT = told({"event": "device", "error": ""}, {"event": "exercise", "status": "pass", "summary": "right"})


def test_every_gpu_that_a_program_can_use_is_tried_by_itself() -> None:
    found, asked = tried(gpus(3), {"1": RIGHT, "2": RIGHT})
    assert (found.status, asked) == (Status.PASS, ["1", "2"])
    assert found.summary.count("NVIDIA GeForce RTX 4090 D") == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (told({"event": "device", "error": "Error 46"}), "CUDA does not start on it: Error 46"),
        (told({"event": "exercise", "status": "fail", "summary": "3 words are wrong"}), "3 words are wrong"),
        (told(code=-11), "the process that tried it was ended by SIGSEGV"),
        (told({"event": "exercise", "status": "skip", "summary": "torch is not here"}), "torch is not here"),
    ],
)
def test_another_gpu_that_does_not_compute_fails_and_can_be_left_out(
    answer: process.Outcome, said: str
) -> None:
    found, _ = tried(gpus(3), {"1": answer, "2": RIGHT})
    assert found.status is Status.FAIL
    assert "GPU 1 (" in found.summary and said in found.summary and "GPU 2" not in found.summary
    assert found.remedy.startswith("docker run --gpus '\"device=GPU-0,GPU-2\"'")


@pytest.mark.parametrize(
    ("facts", "device"),
    [
        (gpus(1), "cuda"),
        (gpus(2), "cpu"),
        (with_(gpus(2), "driver", cuda_visible_devices="1"), "cuda"),
        (with_(gpus(2), "driver", cuda_visible_devices="MIG-1"), "cuda"),
    ],
    ids=["one", "no CUDA", "one chosen", "a slice"],
)
def test_where_there_is_no_other_gpu_none_is_tried(facts: Facts, device: str) -> None:
    found, asked = tried(facts, {}, device)
    assert (found.status, asked) == (Status.SKIP, [])
