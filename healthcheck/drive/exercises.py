"""Does each library run and compute correctly? Drives `healthcheck.exercise` in the stack's Python.

They are spread over children that run side by side, as many as pay and find room: each imports torch, which
takes seconds, and all use one GPU. When a child dies or hangs, the exercise it was in is to blame, and the
rest of its share go on in a new one. What may have failed only for want of room is run again alone.
"""

from __future__ import annotations

import functools
import importlib
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from healthcheck.checks.cuda import INITIALISATION
from healthcheck.checks.workspace import shortage
from healthcheck.drive import budget, lanes, process
from healthcheck.facts.container import ContainerFacts, LimitsMet, limits_met
from healthcheck.facts.gpu import Gpu, selected
from healthcheck.facts.snapshot import Facts
from healthcheck.facts.stack import normalise, stack_python
from healthcheck.result import Result, Status

MODULE = "healthcheck.exercise"
HARNESS = ("DYN-LIB-000", "library exercises")
CHILD_LIMIT = 150.0  # seconds for one child: several times what all exercises take together on two cores
PATIENCE = 60.0  # seconds that an exercise must have had before a time limit is called its fault

MOST_LANES = 4
LANE_CORES = 2  # Python itself, and the compiler or the threads that it calls
LANE_MEMORY = 4 << 30  # bytes of the host: torch with its CUDA libraries, and a compiler
LANE_PROCESSES = 128  # and threads: torch's pools on a large host, and a compiler
LANE_GPU_MEMORY = 2 << 30  # bytes: a CUDA context with the kernels of every library, and small tensors
# Seconds without what is in CUBLAS, on an H200 with 16 cores and nothing cached; below 1 they are rough. They
# only serve to spread the exercises evenly: a wrong one costs time and changes no answer.
COSTS = {
    "torch-compile": 9.0,
    "transformers": 5.0,
    "diffusers": 2.0,
    "matmul": 1.0,
    "sdpa": 0.5,
    "cudnn": 0.5,
    "triton": 0.5,
    "xformers": 0.5,
    "ffmpeg": 0.5,
    "accelerate": 0.5,
    "bitsandbytes": 0.5,
    "torchao": 0.5,
}
SMALL = 0.1  # all others
CUBLAS = 5.0  # what the first of these adds in each process, whichever it is: cuBLAS is loaded then
CALLS_CUBLAS = frozenset(
    {
        *("matmul", "sdpa", "cublas", "cufft", "cusolver", "cusparse", "flash-attn", "xformers"),
        *("transformers", "diffusers", "accelerate", "bitsandbytes", "torchao"),
    }
)
# What a child says, or how it ends, where it only found the memory or the GPU in use by another.
_NO_ROOM = re.compile(
    r"busy or unavailable|DevicesUnavailable|out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.I
)


class Exercise(Protocol):
    """What is needed of `healthcheck.exercise.Exercise`."""

    @property
    def name(self) -> str: ...
    @property
    def code(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def package(self) -> str: ...
    @property
    def gpu_only(self) -> bool: ...


@dataclass(frozen=True)
class Examination:
    """Results in the order of the exercises, and the names that a time limit left unanswered.

    `device` is what they ran on in the end: cpu where CUDA did not start. `cuda_error` says why it did not,
    "" where it did, None where nobody asked.
    """

    results: tuple[Result, ...]
    unfinished: tuple[str, ...] = ()
    device: str = "cpu"
    cuda_error: str | None = None


@dataclass(frozen=True)
class Setup:
    """Where and for how long exercises run. `why_no_gpu` explains a device of cpu to the reader."""

    device: str
    deadline: budget.Deadline
    why_no_gpu: str = ""
    module: str = MODULE
    child_limit: float | None = None  # seconds; None = half of the deadline's, but CHILD_LIMIT at the least
    patience: float = PATIENCE
    run: process.Run = process.run
    progress: process.Progress = lambda text: None
    costs: Mapping[str, float] = field(default_factory=lambda: COSTS)
    threads: int | None = None  # a child's share of the cores; None = all
    container: ContainerFacts = field(default_factory=ContainerFacts)
    limits_met: Callable[[], LimitsMet] = limits_met
    first_cure: str = ""  # of what was found before, and breaks libraries whatever their own state


@dataclass
class _Ledger:
    """What is known so far while children come and go. `again` is to be run alone before it is believed."""

    by_name: Mapping[str, Exercise]
    pending: list[str]
    answers: dict[str, Result] = field(default_factory=dict)
    second_turn: set[str] = field(default_factory=set)
    harness: Result | None = None
    cuda_error: str | None = None  # "" where CUDA started, None where it was not asked to
    in_company: bool = False
    again: list[str] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        """Whether the stack's Python answers nothing at all, so that more children would not either."""
        return self.harness is not None and self.harness.status is Status.FAIL


def listed() -> tuple[Exercise, ...]:
    """The exercises of this version of Dyno. Their module needs no torch until one of them runs."""
    return tuple(importlib.import_module(MODULE).EXERCISES)


def examine(exercises: Sequence[Exercise], facts: Facts, setup: Setup) -> Examination:
    """Run every exercise that can run here; each becomes one result, whatever happens to its child."""
    known = {e.name: result for e in exercises if (result := _beforehand(e, facts, setup)) is not None}
    ledger = _Ledger(
        by_name={e.name: e for e in exercises},
        pending=[e.name for e in exercises if e.name not in known],
        answers=known,
    )
    shares = lanes.spread([_task(name, setup) for name in ledger.pending], room(facts, setup.device))
    if len(shares) > 1:
        _side_by_side(ledger, shares, facts, setup)
        setup = _where_cuda_starts(ledger, facts, setup)
    while ledger.pending and setup.deadline.left > 1 and not ledger.broken:
        _one_child(ledger, setup)
        setup = _where_cuda_starts(ledger, facts, setup)
    unfinished = tuple(ledger.pending)
    for name in unfinished:
        ledger.answers[name] = _not_reached(ledger.by_name[name], ledger, setup)
    harness = ledger.harness or Result(
        *HARNESS, Status.PASS, f"{len(exercises) - len(unfinished)} of {len(exercises)} answered"
    )
    return Examination(
        (harness, *(ledger.answers[e.name] for e in exercises)),
        () if ledger.broken else unfinished,
        setup.device,
        ledger.cuda_error,
    )


def cuda_error(deadline: budget.Deadline, run: process.Run = process.run) -> str:
    """Why CUDA does not start in a child, "" where it does."""
    outcome = run(
        MODULE,
        ["--device", "cuda", "--start"],
        time_limit=min(deadline.left, CHILD_LIMIT),
        environment=process.environment(),
    )
    said = [str(e.get("error") or "") for e in outcome.events if e.get("event") == "device"]
    if said:
        return said[0]
    words = process.last_words(outcome)
    return f"the process that tried {outcome.cause}{f' ({words})' if words else ''}"


OTHERS = ("DYN-GPU-006", "every other GPU")
_ALONE = "gpu"  # the exercise that tries one GPU by itself


def other_gpus(facts: Facts, setup: Setup) -> Result:
    """Whether the GPUs compute that the libraries do not run on: each in a child that sees it alone.

    CUDA's first GPU is the one that all else is tried on; a program of the user takes the others too.
    """
    if setup.device != "cuda":
        return Result(*OTHERS, Status.SKIP, f"needs a GPU: {setup.why_no_gpu or 'none here'}")
    gpus = facts.gpu.gpus or ()
    found = selected(facts.driver.cuda_visible_devices, tuple(gpu.uuid for gpu in gpus))
    others = (found.indices or ())[1:]
    if not others:
        return Result(*OTHERS, Status.SKIP, "The libraries ran on the only GPU that a program can use here.")
    with ThreadPoolExecutor(min(len(others), MOST_LANES)) as pool:
        answers = tuple(pool.map(lambda index: _on_gpu(index, setup), others))
    said = [f"GPU {index} ({gpus[index].name or 'of unknown name'})" for index in others]
    bad = [f"{name}: {answer}" for name, answer in zip(said, answers, strict=True) if answer]
    if not bad:
        return Result(*OTHERS, Status.PASS, f"{', '.join(said)}: product, copy and memory are right")
    good = [index for index, answer in zip(others, answers, strict=True) if not answer]
    # By UUID: the container's numbers need not be the host's.
    left = ",".join(gpus[index].uuid or str(index) for index in ((found.indices or ())[0], *good))
    return Result(
        *OTHERS,
        Status.FAIL,
        "; ".join(bad),
        f"docker run --gpus '\"device={left}\"' ...  # does without it; nvidia-smi -q on the host says more",
    )


def _on_gpu(index: int, setup: Setup) -> str:
    """What is wrong with the GPU of NVML's `index`, "" where nothing is."""
    outcome = setup.run(
        setup.module,
        ["--device", "cuda", _ALONE],
        time_limit=min(setup.deadline.left, _child_limit(setup)),
        environment={**process.environment(setup.threads), "CUDA_VISIBLE_DEVICES": str(index)},
    )
    for event in outcome.events:
        if event.get("event") == "device" and event.get("error"):
            return f"CUDA does not start on it: {event['error']}"
        if event.get("event") == "exercise":
            return "" if event.get("status") == "pass" else str(event.get("summary") or "no summary")
    words = process.last_words(outcome)
    return f"the process that tried it {outcome.cause}{f' ({words})' if words else ''}"


def room(facts: Facts, device: str) -> int:
    """How many children the machine can hold at once on `device`, at least 1 and at most MOST_LANES.

    Free memory of the GPU has to be known. It is not under MIG: NVML speaks of the whole GPU, not of a slice.
    An exclusive compute mode lets one process in. Of several GPUs the fullest counts.
    """
    limits = [MOST_LANES, int(_cores(facts) / LANE_CORES)]
    if facts.container.memory_limit is not None:
        limits.append(facts.container.memory_limit // LANE_MEMORY)
    if facts.container.process_limit is not None:
        limits.append(facts.container.process_limit // LANE_PROCESSES)
    if device == "cuda":
        gpus = [gpu for gpu in facts.gpu.gpus or () if gpu.error is None]
        limits += [_room_on(gpu) for gpu in gpus] or [1]
    return max(1, min(limits))


def _cores(facts: Facts) -> float:
    return min(facts.container.cpus or 1, facts.container.cpu_limit or float("inf"))


def _room_on(gpu: Gpu) -> int:
    shared = gpu.compute_mode in (None, "default") and not gpu.mig
    if not shared or gpu.memory_total is None or gpu.memory_used is None:
        return 1
    return (gpu.memory_total - gpu.memory_used) // LANE_GPU_MEMORY


def _task(name: str, setup: Setup) -> lanes.Task:
    extra = CUBLAS if setup.device == "cuda" and name in CALLS_CUBLAS else 0.0
    return lanes.Task(name, setup.costs.get(name, SMALL), extra)


def _side_by_side(ledger: _Ledger, shares: Sequence[Sequence[str]], facts: Facts, setup: Setup) -> None:
    """Run each lane in a child of its own. What the lanes leave pending is to be run alone."""
    parts = [_Ledger(ledger.by_name, list(names), in_company=True) for names in shares]
    stop = threading.Event()
    setup = replace(
        setup,
        run=functools.partial(setup.run, stop=stop),
        threads=max(1, int(_cores(facts) / len(shares))),
    )
    shown = _together(setup.progress, len(parts))
    with ThreadPoolExecutor(len(parts)) as pool:
        try:
            running = [
                pool.submit(_lane, part, replace(setup, progress=show))
                for part, show in zip(parts, shown, strict=True)
            ]
            for ended in as_completed(running):
                ended.result()
        except BaseException:  # a signal, say: it reaches this thread alone, and must end every child
            stop.set()
            raise
    _merge(ledger, parts)


def _lane(ledger: _Ledger, setup: Setup) -> None:
    while ledger.pending and setup.deadline.left > 1 and not ledger.broken and not ledger.cuda_error:
        _one_child(ledger, setup)
    setup.progress("")


def _together(progress: process.Progress, lanes: int) -> list[Callable[[str], None]]:
    """For each lane what it tells its work to, "" for none; `progress` is told what all of them do."""
    titles = [""] * lanes
    lock = threading.Lock()

    def show(lane: int, title: str) -> None:
        with lock:
            titles[lane] = title
            if any(titles):
                progress(", ".join(filter(None, titles)))

    return [functools.partial(show, lane) for lane in range(lanes)]


def _merge(ledger: _Ledger, parts: Sequence[_Ledger]) -> None:
    """Book what the lanes found.

    Where one child opened the GPU, another that could not had no room beside it; where one answered, another
    that never did may have had none. Their shares stay pending. Where all failed alike, it is one finding.
    """
    for part in parts:
        ledger.answers.update(part.answers)
        ledger.second_turn |= part.second_turn
    left = {name for part in parts for name in (*part.pending, *part.again)}
    ledger.pending = [name for name in ledger.pending if name in left]
    said = [part.cuda_error for part in parts if part.cuda_error is not None]
    if said:
        ledger.cuda_error = "" if "" in said else said[0]
    whole = all(part.broken for part in parts)
    ledger.harness = next((part.harness for part in parts if part.harness and part.broken == whole), None)


def _where_cuda_starts(ledger: _Ledger, facts: Facts, setup: Setup) -> Setup:
    """Where CUDA does not start, that is one finding, and what needs no GPU is still examined on the CPU."""
    if not ledger.cuda_error or setup.device != "cuda":
        return setup
    setup = replace(setup, device="cpu", why_no_gpu=f"see {INITIALISATION[0]}")
    for name in tuple(ledger.pending):
        known = _beforehand(ledger.by_name[name], facts, setup)
        if known is not None:
            ledger.pending.remove(name)
            ledger.answers[name] = known
    return setup


def _beforehand(exercise: Exercise, facts: Facts, setup: Setup) -> Result | None:
    """The result of an exercise that need not be run, or None."""
    manifest = facts.manifest.manifest
    if exercise.package and facts.stack.has(exercise.package) is False:
        expected = {normalise(n): v for n, v in manifest.stack.items()} if manifest else {}
        version = expected.get(normalise(exercise.package))
        if version is not None:
            return _result(
                exercise,
                Status.FAIL,
                f"{exercise.package} {version} is missing.",
                setup.first_cure or f"pip install --no-deps {exercise.package}=={version}",
            )
        # The same words for all of them, so that a report can name them together.
        return _result(exercise, Status.SKIP, "Not part of this environment.", package=exercise.package)
    if exercise.gpu_only and setup.device != "cuda":
        return _result(exercise, Status.SKIP, f"needs a GPU: {setup.why_no_gpu or 'none here'}")
    return None


def _one_child(ledger: _Ledger, setup: Setup) -> None:
    """Run what is pending in one child and book its answers."""
    running: dict[str, float] = {}  # name -> when it began; at most one entry
    before = setup.limits_met()
    asked = tuple(ledger.pending)

    def note(event: dict[str, Any]) -> None:
        if event.get("event") == "device":
            ledger.cuda_error = str(event.get("error") or "")
        name = event.get("name")
        if not isinstance(name, str) or name not in ledger.pending:
            return
        if event.get("event") == "start":
            running.clear()
            running[name] = time.monotonic()
            setup.progress(ledger.by_name[name].title)
        elif event.get("event") == "exercise":
            running.pop(name, None)
            ledger.pending.remove(name)
            if ledger.in_company and event.get("status") == "fail" and _NO_ROOM.search(str(event)):
                ledger.again.append(name)
            else:
                ledger.answers[name] = _cured(_answer(ledger.by_name[name], event, setup), before, setup)

    outcome = setup.run(
        setup.module,
        ["--device", setup.device, *asked],
        time_limit=min(setup.deadline.left, _child_limit(setup)),
        environment=process.environment(setup.threads),
        on_event=note,
    )
    if ledger.cuda_error and setup.device == "cuda":
        return
    if ledger.pending:
        _blame(ledger, setup, outcome, running, asked=asked, before=before)
    elif not outcome.ok:
        _after_the_last(ledger, setup, outcome, asked)


def _child_limit(setup: Setup) -> float:
    """Whoever gives the whole more time gives each child more."""
    if setup.child_limit is not None:
        return setup.child_limit
    return max(CHILD_LIMIT, setup.deadline.limit / 2)


def _blame(
    ledger: _Ledger,
    setup: Setup,
    outcome: process.Outcome,
    running: Mapping[str, float],
    *,
    asked: Sequence[str],
    before: LimitsMet,
) -> None:
    """Book the exercise in which the child ended; without one, and without any progress, the child itself."""
    if not running:
        if len(ledger.pending) == len(asked):
            ledger.harness = _cured(_no_answers(setup, outcome), before, setup)
        return
    name, began = next(iter(running.items()))
    if outcome.timed_out and time.monotonic() - began < setup.patience and name not in ledger.second_turn:
        # The others used up the child's time, not this one: it gets a child to itself and its successors.
        ledger.second_turn.add(name)
        return
    ledger.pending.remove(name)
    if ledger.in_company and outcome.returncode == -signal.SIGKILL and not outcome.timed_out:
        ledger.again.append(name)  # how the kernel ends a process where memory runs out
        return
    ledger.answers[name] = _cured(_ended_in(ledger.by_name[name], outcome, setup), before, setup)


def _cured(result: Result, before: LimitsMet, setup: Setup) -> Result:
    """A failure with the line that helps where it is the container's: no reinstall of a library would."""
    if result.status is not Status.FAIL:
        return result
    remedy = shortage(before, setup.limits_met(), setup.container) or setup.first_cure
    return replace(result, remedy=remedy) if remedy else result


def _answer(exercise: Exercise, event: Mapping[str, Any], setup: Setup) -> Result:
    """An event as a result. The child is part of what is tested, so its answer is not trusted to be one."""
    try:
        status = Status(event.get("status"))
        details = event.get("details") or {}
        if not isinstance(details, Mapping):
            raise ValueError("details")
    except ValueError:
        said = {k: v for k, v in event.items() if k in ("status", "summary")}
        return _result(
            exercise, Status.FAIL, f"answered with {said}, which is no result", _again(exercise, setup)
        )
    remedy = str(event.get("remedy") or "")
    if status not in (Status.PASS, Status.SKIP) and not remedy:
        remedy = _again(exercise, setup)
    return Result(
        exercise.code,
        exercise.title,
        status,
        str(event.get("summary") or "no summary"),
        remedy,
        seconds=process.number(event.get("seconds")),
        details=details,
    )


def _ended_in(exercise: Exercise, outcome: process.Outcome, setup: Setup) -> Result:
    words = process.last_words(outcome)
    summary = f"The process {outcome.cause}{f'; it last said: {words}' if words else ''}"
    return _result(exercise, Status.FAIL, summary, _again(exercise, setup), output=outcome.output)


def _no_answers(setup: Setup, outcome: process.Outcome) -> Result:
    words = process.last_words(outcome)
    return Result(
        *HARNESS,
        Status.FAIL,
        f"The stack's Python gave no answer: it {outcome.cause}{f' ({words})' if words else ''}.",
        f"{stack_python()} -m {setup.module} --device {setup.device}  # shows why",
        details={"output": outcome.output},
    )


def _after_the_last(ledger: _Ledger, setup: Setup, outcome: process.Outcome, asked: Sequence[str]) -> None:
    """All answered, then the process ended badly: a crash at exit is some library's defect all the same."""
    words = process.last_words(outcome)
    ledger.harness = Result(
        *HARNESS,
        Status.WARN,
        f"All exercises answered, but then the process {outcome.cause}{f' ({words})' if words else ''}.",
        f"{stack_python()} -m {setup.module} --device {setup.device} {' '.join(asked)}",
        details={"output": outcome.output},
    )


def _not_reached(exercise: Exercise, ledger: _Ledger, setup: Setup) -> Result:
    if ledger.harness is not None and ledger.broken:
        # Its remedy too: one cause, one paragraph of the report.
        return _result(exercise, Status.UNKNOWN, f"Not run: see {HARNESS[0]}.", ledger.harness.remedy)
    return _result(
        exercise,
        Status.UNKNOWN,
        f"Not finished within the time limit of {setup.deadline.limit:.0f} s.",
        f"healthcheck verify --time-limit {2 * setup.deadline.limit:.0f}",
    )


def _again(exercise: Exercise, setup: Setup) -> str:
    """The line that runs this exercise alone, with all that it prints."""
    return f"{stack_python()} -m {setup.module} --device {setup.device} {exercise.name}"


def _result(exercise: Exercise, status: Status, summary: str, remedy: str = "", **details: Any) -> Result:
    return Result(exercise.code, exercise.title, status, summary, remedy, details=details)
