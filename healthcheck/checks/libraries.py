"""Does each library run and compute correctly? Drives `healthcheck.exercise` in the stack's Python.

All exercises share one child, because importing torch is most of the cost. When that child dies or hangs, the
exercise it was in is to blame, and the rest go on in a new one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from healthcheck import child, children
from healthcheck.checks.cuda import INITIALISATION
from healthcheck.facts.collect import Facts
from healthcheck.facts.stack import normalise
from healthcheck.result import Result, Status

MODULE = "healthcheck.exercise"
HARNESS = ("DYN-LIB-000", "library exercises")
CHILD_LIMIT = 150.0  # seconds for one child: several times what all exercises take together on two cores
PATIENCE = 60.0  # seconds that an exercise must have had before a time limit is called its fault


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
    deadline: children.Deadline
    why_no_gpu: str = ""
    module: str = MODULE
    child_limit: float = CHILD_LIMIT
    patience: float = PATIENCE
    run: children.Run = child.run
    progress: children.Progress = lambda text: None


@dataclass
class _Ledger:
    """What is known so far while children come and go."""

    by_name: Mapping[str, Exercise]
    pending: list[str]
    answers: dict[str, Result] = field(default_factory=dict)
    second_turn: set[str] = field(default_factory=set)
    harness: Result | None = None
    cuda_error: str | None = None  # "" where CUDA started, None where it was not asked to


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
    while ledger.pending and setup.deadline.left > 1 and ledger.harness is None:
        _one_child(ledger, setup)
        if ledger.cuda_error and setup.device == "cuda":
            setup = _on_the_cpu(ledger, facts, setup)
    unfinished = tuple(ledger.pending)
    for name in unfinished:
        ledger.answers[name] = _not_reached(ledger.by_name[name], ledger, setup)
    harness = ledger.harness or Result(
        *HARNESS, Status.PASS, f"{len(exercises) - len(unfinished)} of {len(exercises)} answered"
    )
    return Examination(
        (harness, *(ledger.answers[e.name] for e in exercises)),
        unfinished if ledger.harness is None else (),
        setup.device,
        ledger.cuda_error,
    )


def _on_the_cpu(ledger: _Ledger, facts: Facts, setup: Setup) -> Setup:
    """CUDA does not start: that is one finding, and what needs no GPU is still examined."""
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
                f"pip install --no-deps {exercise.package}=={version}",
            )
        # The same words for all of them, so that a report can name them together.
        return _result(exercise, Status.SKIP, "Not part of this environment.", package=exercise.package)
    if exercise.gpu_only and setup.device != "cuda":
        return _result(exercise, Status.SKIP, f"needs a GPU: {setup.why_no_gpu or 'none here'}")
    return None


def _one_child(ledger: _Ledger, setup: Setup) -> None:
    """Run what is pending in one child and book its answers."""
    running: dict[str, float] = {}  # name -> when it began; at most one entry
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
            ledger.answers[name] = _answer(ledger.by_name[name], event, setup)

    outcome = setup.run(
        setup.module,
        ["--device", setup.device, *asked],
        time_limit=min(setup.deadline.left, setup.child_limit),
        environment=children.environment(),
        on_event=note,
    )
    if ledger.cuda_error and setup.device == "cuda":
        return
    if ledger.pending:
        _blame(ledger, setup, outcome, running, asked)
    elif not outcome.ok:
        _after_the_last(ledger, setup, outcome, asked)


def _blame(
    ledger: _Ledger,
    setup: Setup,
    outcome: child.Outcome,
    running: Mapping[str, float],
    asked: Sequence[str],
) -> None:
    """Book the exercise in which the child ended; without one, and without any progress, the child itself."""
    if not running:
        if len(ledger.pending) == len(asked):
            ledger.harness = _no_answers(setup, outcome)
        return
    name, began = next(iter(running.items()))
    if outcome.timed_out and time.monotonic() - began < setup.patience and name not in ledger.second_turn:
        # The others used up the child's time, not this one: it gets a child to itself and its successors.
        ledger.second_turn.add(name)
        return
    ledger.pending.remove(name)
    ledger.answers[name] = _ended_in(ledger.by_name[name], outcome, setup)


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
        seconds=children.number(event.get("seconds")),
        details=details,
    )


def _ended_in(exercise: Exercise, outcome: child.Outcome, setup: Setup) -> Result:
    words = children.last_words(outcome)
    summary = f"The process {outcome.cause}{f'; it last said: {words}' if words else ''}"
    return _result(exercise, Status.FAIL, summary, _again(exercise, setup), output=outcome.output)


def _no_answers(setup: Setup, outcome: child.Outcome) -> Result:
    words = children.last_words(outcome)
    return Result(
        *HARNESS,
        Status.FAIL,
        f"The stack's Python gave no answer: it {outcome.cause}{f' ({words})' if words else ''}.",
        f"{child.stack_python()} -m {setup.module} --device {setup.device}  # shows why",
        details={"output": outcome.output},
    )


def _after_the_last(ledger: _Ledger, setup: Setup, outcome: child.Outcome, asked: Sequence[str]) -> None:
    """All answered, then the process ended badly: a crash at exit is some library's defect all the same."""
    words = children.last_words(outcome)
    ledger.harness = Result(
        *HARNESS,
        Status.WARN,
        f"All exercises answered, but then the process {outcome.cause}{f' ({words})' if words else ''}.",
        f"{child.stack_python()} -m {setup.module} --device {setup.device} {' '.join(asked)}",
        details={"output": outcome.output},
    )


def _not_reached(exercise: Exercise, ledger: _Ledger, setup: Setup) -> Result:
    if ledger.harness is not None:
        return _result(exercise, Status.UNKNOWN, f"Not run: see {HARNESS[0]}.", _again(exercise, setup))
    return _result(
        exercise,
        Status.UNKNOWN,
        f"Not finished within the time limit of {setup.deadline.limit:.0f} s.",
        f"healthcheck verify --time-limit {2 * setup.deadline.limit:.0f}",
    )


def _again(exercise: Exercise, setup: Setup) -> str:
    """The line that runs this exercise alone, with all that it prints."""
    return f"{child.stack_python()} -m {setup.module} --device {setup.device} {exercise.name}"


def _result(exercise: Exercise, status: Status, summary: str, remedy: str = "", **details: Any) -> Result:
    return Result(exercise.code, exercise.title, status, summary, remedy, details=details)
