"""Every code that a command can answer with, so that `--require` can be checked before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from healthcheck import benchmarks, verify
from healthcheck.checks import libraries, registry
from healthcheck.checks.cuda import INITIALISATION


def of_verify() -> Mapping[str, str]:
    """Code -> title of what `healthcheck verify` checks, in the order of its report."""
    found = {check.code: check.title for check in registry.CHECKS}
    found |= dict((INITIALISATION, libraries.HARNESS))
    with contextlib.suppress(Exception):  # a package that does not load: verify itself says so
        found |= {exercise.code: exercise.title for exercise in libraries.listed()}
    return found | dict((verify.LIMIT,))


def of_selftest() -> Mapping[str, str]:
    """What `healthcheck selftest` checks besides running the short benchmarks."""
    return {**of_verify(), **of_bench(benchmarks.SHORT)}


def of_bench(scenarios: Iterable[str]) -> Mapping[str, str]:
    """What `bench run` answers: whether there is a GPU to measure, and each of `scenarios`."""
    gates = {c.code: c.title for c in registry.CHECKS if registry.subject(c.code) in benchmarks.GATES}
    gates |= dict((INITIALISATION,))
    return gates | dict(benchmarks.identity(name) for name in scenarios)
