"""The self-test of a container's start: checks live, short benchmarks kept from one start to the next.

The exit code is the true one whatever SELFTEST_POLICY says; applying the policy is the entrypoint's work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from healthcheck import benchmarks, children, options
from healthcheck.checks.stack import bound_together
from healthcheck.facts.collect import Facts
from healthcheck.facts.container import LAYOUT
from healthcheck.report.model import Benchmark
from healthcheck.result import Result, Status
from healthcheck.verify import Verification, time_limit, verify

MODES = ("full", "verify", "off")
POLICIES = ("warn", "strict")
DEFAULT_TIMEOUT = 300.0
CACHE = f"{LAYOUT['output']}/.selftest"


@dataclass(frozen=True)
class Settings:
    """From the environment; `limit` is in seconds and ends before the entrypoint would end us."""

    mode: str
    policy: str
    limit: float


def settings(env: Mapping[str, str]) -> Settings:
    """Read SELFTEST, SELFTEST_POLICY and SELFTEST_TIMEOUT; raises options.Stop on nonsense."""
    timeout = options.seconds("SELFTEST_TIMEOUT", DEFAULT_TIMEOUT, env)
    return Settings(
        mode=options.word("SELFTEST", MODES, env),
        policy=options.word("SELFTEST_POLICY", POLICIES, env),
        # Early enough to end a child and still print the report of what was found.
        limit=timeout - min(5.0, timeout / 5),
    )


def run(
    facts: Facts,
    mode: str,
    deadline: children.Deadline,
    progress: children.Progress,
    *,
    cache: Path = Path(CACHE),
    measure: Callable[[str, Verification], Benchmark] | None = None,
) -> Verification:
    """Verify, then (mode `full`, where a device is fit for it) run the short benchmarks."""
    found = verify(facts, deadline, progress)
    unfinished = list(found.unfinished)
    if mode == "full" and (found.device == "cuda" or facts.device == "cpu"):
        found = _with_benchmarks(found, cache, measure or _measurer(deadline, progress))
        unfinished += [f"benchmark {b.scenario}" for b in found.benchmarks if _cut_off(b)]
    limit = time_limit(deadline, unfinished, f"docker run -e SELFTEST_TIMEOUT={2 * deadline.limit:.0f} ...")
    return replace(found, results=(*found.results, limit))


def _with_benchmarks(
    found: Verification, cache: Path, measure: Callable[[str, Verification], Benchmark]
) -> Verification:
    try:
        benched = tuple(_cached_or_measured(name, found, cache, measure) for name in benchmarks.SHORT)
    except Exception as error:  # the stack's half of the package is broken: a finding, like any other
        text = f"The benchmarks cannot be run: {type(error).__name__}: {error}"
        broken = Result(*benchmarks.HARNESS, Status.FAIL, text, "make image  # builds the image anew")
        return replace(found, results=(*found.results, broken))
    return replace(found, benchmarks=benched, results=(*found.results, *map(benchmarks.result, benched)))


def _cut_off(benchmark: Benchmark) -> bool:
    return benchmark.status == "fail" and (
        "time limit" in benchmark.reason or "did not finish within" in benchmark.reason
    )


def _measurer(
    deadline: children.Deadline, progress: children.Progress
) -> Callable[[str, Verification], Benchmark]:
    def measure(name: str, found: Verification) -> Benchmark:
        session = benchmarks.Session(
            device=found.device,
            short=True,
            deadline=deadline,
            limit=benchmarks.SHORT_LIMIT,
            gpu_index=benchmarks.gpu_index(found.facts),
            progress=progress,
        )
        return benchmarks.measure(benchmarks.listed()[name], session)

    return measure


def _cached_or_measured(
    name: str, found: Verification, cache: Path, measure: Callable[[str, Verification], Benchmark]
) -> Benchmark:
    file = cache / f"{key(found.facts, found.device)}-{name}.json"
    with contextlib.suppress(OSError, ValueError, ValidationError):  # absent or damaged: measure
        kept = Benchmark.model_validate_json(file.read_text())
        return kept.model_copy(update={"cached": True})
    benchmark = measure(name, found)
    if benchmark.status == "ok" and all(v.status != "fail" for v in benchmark.variants):
        with contextlib.suppress(OSError, options.Stop):  # a read-only container simply measures each time
            cache.mkdir(parents=False, exist_ok=True)
            options.write(str(file), benchmark.model_dump_json(indent=1) + "\n")
    return benchmark


def key(facts: Facts, device: str) -> str:
    """What a kept result depends on: device, driver, build, the packages bound together, method."""
    manifest = facts.manifest.manifest
    installed = facts.stack.distributions or {}
    packages = {name: installed.get(name) for name in bound_together(facts)} or {
        "torch": installed.get("torch")
    }
    gpus = [gpu.uuid or gpu.name for gpu in facts.gpu.gpus or ()]
    hardware = [facts.gpu.driver, *gpus] if device == "cuda" else ["cpu", facts.container.cpu_model]
    identity = [
        hardware,
        manifest.build_id if manifest else "local",
        packages,
        benchmarks.method_version(),
        facts.container.cpu_limit or facts.container.cpus if device == "cpu" else None,
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
