"""Facts, checks and library exercises of one command, and the report they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from healthcheck.checks import registry
from healthcheck.checks.cuda import INITIALISATION, initialisation
from healthcheck.drive import budget, exercises, process
from healthcheck.facts.snapshot import Facts
from healthcheck.report.model import Benchmark, CheckResult, Claim, Report
from healthcheck.result import Exit, Result, Status, exit_code

LIMIT = ("DYN-SELFTEST-001", "time limit")


@dataclass(frozen=True)
class Verification:
    """`device` is what children ran on: cuda or cpu. `unfinished` names what the time limit cut off."""

    facts: Facts
    device: str
    why_no_gpu: str
    results: tuple[Result, ...]
    unfinished: tuple[str, ...] = ()
    benchmarks: tuple[Benchmark, ...] = field(default=())


def verify(facts: Facts, deadline: budget.Deadline, progress: process.Progress) -> Verification:
    """Judge the facts, then let the stack prove itself on the device that they allow."""
    results = registry.judge(facts)
    device, why = usable_device(facts, results)
    setup = exercises.Setup(
        device,
        deadline,
        why_no_gpu=why,
        progress=progress,
        container=facts.container,
        first_cure=first_cure(results),
    )
    try:
        known = exercises.listed()
    except Exception as error:  # the stack's half of the package is broken: a finding, like any other
        text = f"The exercises cannot be listed: {type(error).__name__}: {error}"
        broken = Result(*exercises.HARNESS, Status.FAIL, text, "make image  # builds the image anew")
        return Verification(facts, device, why, (*results, broken))
    examination = exercises.examine(known, facts, setup)
    others = exercises.other_gpus(facts, replace(setup, device=examination.device))
    answers = (*results, initialisation(examination.cuda_error), others, *examination.results)
    if examination.cuda_error and not why:
        why = f"see {INITIALISATION[0]}"
    return Verification(facts, examination.device, why, answers, examination.unfinished)


def usable_device(facts: Facts, results: Iterable[Result]) -> tuple[str, str]:
    """cuda, or cpu and the reason: work on a GPU that the checks refused would only bury the cause."""
    if facts.device == "cpu":
        return "cpu", "CPU use declared"
    for result in results:
        if result.unusable and registry.subject(result.code) in ("GPU", "DRIVER"):
            return "cpu", f"see {result.code}"
    return "cuda", ""


def first_cure(results: Iterable[Result]) -> str:
    """The remedy of a failure that makes libraries fail one after another, "" where there is none.

    A part of the stack that is gone takes along what imports it, and without a temporary directory nothing
    compiles: reinstalling those that complain would not help.
    """
    causes = ("DYN-STACK-003", "DYN-WORK-005")
    return next((r.remedy for r in results if r.code in causes and r.status is Status.FAIL), "")


def time_limit(deadline: budget.Deadline, unfinished: Iterable[str], again: str) -> Result:
    """Whether everything came to its end in time; `again` is the line that allows more of it."""
    names = ", ".join(unfinished)
    if names:
        return Result(
            *LIMIT, Status.FAIL, f"{deadline.limit:.0f} s were not enough; not finished: {names}.", again
        )
    return Result(*LIMIT, Status.PASS, f"{deadline.spent:.0f} s of {deadline.limit:.0f} s")


def assemble(
    command: str,
    found: Verification,
    *,
    deadline: budget.Deadline,
    required: tuple[str, ...] = (),
    claims: Sequence[Claim] = (),
    ended: Exit | None = None,
) -> Report:
    """The report of a command, with its exit code: that of its results, or the signal's that `ended` it."""
    manifest = found.facts.manifest.manifest
    return Report(
        created=datetime.now(timezone.utc),
        command=command,
        build_id=manifest.build_id if manifest else None,
        device=found.device,
        seconds=deadline.spent,
        time_limit=deadline.limit,
        required=list(required),
        exit_code=exit_code(found.results, required) if ended is None else ended,
        results=[CheckResult.of(result) for result in found.results],
        benchmarks=list(found.benchmarks),
        claims=list(claims),
        facts=found.facts,
    )
