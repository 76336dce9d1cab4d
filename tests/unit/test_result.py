"""Exit codes: 3 outranks 1, and what is required must have passed."""

from __future__ import annotations

import pytest

from healthcheck.result import Exit, Result, Status, exit_code


def result(status: Status, code: str = "DYN-X-001", unusable: bool = False) -> Result:
    return Result(code, "title", status, "summary", unusable=unusable)


@pytest.mark.parametrize("status", [Status.PASS, Status.WARN, Status.SKIP, Status.UNKNOWN])
def test_all_but_a_failure_is_fine_unless_required(status: Status) -> None:
    assert exit_code([result(status)]) is Exit.OK
    required = exit_code([result(status)], ["DYN-X-001"])
    assert required is (Exit.OK if status is Status.PASS else Exit.FAILED)


def test_a_failure_fails() -> None:
    assert exit_code([result(Status.PASS), result(Status.FAIL)]) is Exit.FAILED


def test_an_unusable_environment_outranks_every_failure() -> None:
    results = [result(Status.FAIL), result(Status.FAIL, unusable=True)]
    assert exit_code(results, ["DYN-X-001"]) is Exit.UNUSABLE


def test_a_required_check_that_never_ran_fails() -> None:
    assert exit_code([result(Status.PASS)], ["DYN-X-002"]) is Exit.FAILED
