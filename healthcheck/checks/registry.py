"""Every check of facts, in the order of the report."""

from __future__ import annotations

from healthcheck.checks import cuda, driver, gpu, stack, workspace
from healthcheck.checks.base import Check
from healthcheck.facts.snapshot import Facts
from healthcheck.result import Result, Status

CHECKS: tuple[Check, ...] = gpu.CHECKS + driver.CHECKS + cuda.CHECKS + stack.CHECKS + workspace.CHECKS

# First words of a code -> heading of the report.
GROUPS = {
    "GPU": "GPU",
    "DRIVER": "driver",
    "CUDA": "CUDA",
    "STACK": "stack",
    "WORK": "workspace",
    "LIB": "libraries",
    "BENCH": "benchmarks",
    "SELFTEST": "self-test",
    "REPORT": "report",
}


def subject(code: str) -> str:
    """ "DYN-LIB-003" -> "LIB": what decisions go by. A heading is for readers and may change."""
    return code.split("-")[1] if code.count("-") >= 2 else code


def group(code: str) -> str:
    """ "DYN-LIB-003" -> "libraries", the heading in the report."""
    return GROUPS.get(subject(code), subject(code).lower())


def judge(facts: Facts) -> list[Result]:
    """Run every check. One that breaks becomes `unknown`: it must not hide what the others found."""
    return [_guarded(check, facts) for check in CHECKS]


def _guarded(check: Check, facts: Facts) -> Result:
    try:
        return check(facts)
    except Exception as error:
        return Result(
            check.code,
            check.title,
            Status.UNKNOWN,
            f"The check itself broke: {type(error).__name__}: {error}",
            "healthcheck facts --json -  # please report this with its output",
        )
