"""Every code that a command can answer with, so that `--require` can be checked before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from healthcheck import verify
from healthcheck.checks import registry
from healthcheck.checks.cuda import INITIALISATION
from healthcheck.drive import exercises, scenarios


def of_verify() -> Mapping[str, str]:
    """Code -> title of what `healthcheck verify` checks, in the order of its report."""
    found = {check.code: check.title for check in registry.CHECKS}
    found |= dict((INITIALISATION, exercises.OTHERS, exercises.HARNESS))
    with contextlib.suppress(Exception):  # a package that does not load: verify itself says so
        found |= {exercise.code: exercise.title for exercise in exercises.listed()}
    return found | dict((verify.LIMIT,))


def of_selftest() -> Mapping[str, str]:
    """What `healthcheck selftest` checks besides running the short benchmarks."""
    names: tuple[str, ...] = ()
    with contextlib.suppress(Exception):
        names = scenarios.at_start()
    return {**of_verify(), **of_bench(names)}


def of_bench(names: Iterable[str]) -> Mapping[str, str]:
    """What `bench run` answers: whether there is a GPU to measure, and each scenario of `names`."""
    gates = {c.code: c.title for c in registry.CHECKS if registry.subject(c.code) in scenarios.GATES}
    gates |= dict((INITIALISATION,))
    return gates | dict(scenarios.identity(name) for name in names)
