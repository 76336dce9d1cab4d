"""The self-test of a container's start: checks live, short benchmarks kept from one start to the next.

The exit code is the true one whatever SELFTEST_POLICY says; applying the policy is the entrypoint's work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from healthcheck import options, output
from healthcheck.checks.stack import bound_together
from healthcheck.drive import budget, process, scenarios
from healthcheck.facts.container import LAYOUT
from healthcheck.facts.snapshot import Facts
from healthcheck.report.model import Benchmark
from healthcheck.result import Result, Status
from healthcheck.verify import Verification, time_limit, verify

MODES = ("full", "verify", "off")
POLICIES = ("warn", "strict")
DEFAULT_TIMEOUT = 300.0
CACHE = f"{LAYOUT['output']}/.selftest"
Measure = Callable[[Sequence[str], Verification], tuple[Benchmark, ...]]
_CASES = TypeAdapter(list[Benchmark])


@dataclass(frozen=True)
class Settings:
    """From the environment; `limit` is in seconds and ends before the entrypoint would end us."""

    mode: str
    policy: str
    limit: float


def settings(env: Mapping[str, str]) -> Settings:
    """Read SELFTEST, SELFTEST_POLICY and SELFTEST_TIMEOUT; raises output.Stop on nonsense."""
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
    deadline: budget.Deadline,
    progress: process.Progress,
    *,
    cache: Path = Path(CACHE),
    measure: Measure | None = None,
) -> Verification:
    """Verify, then (mode `full`, where a device is fit for it) run the short benchmarks."""
    found = verify(facts, deadline, progress)
    unfinished = list(found.unfinished)
    if mode == "full" and (found.device == "cuda" or facts.device == "cpu"):
        found = _with_benchmarks(found, cache, measure or _measurer(deadline, progress))
        unfinished += dict.fromkeys(f"benchmark {b.scenario}" for b in found.benchmarks if _cut_off(b))
    limit = time_limit(deadline, unfinished, f"docker run -e SELFTEST_TIMEOUT={2 * deadline.limit:.0f} ...")
    return replace(found, results=(*found.results, limit))


def _with_benchmarks(found: Verification, cache: Path, measure: Measure) -> Verification:
    """Short benchmarks, kept ones where there are; what is missing is measured together."""
    try:
        kept = {name: _kept(_file(name, found, cache)) for name in scenarios.at_start()}
        missing = [name for name, cases in kept.items() if cases is None]
        fresh = measure(missing, found) if missing else ()
    except Exception as error:  # the stack's half of the package is broken: a finding, like any other
        text = f"The benchmarks cannot be run: {type(error).__name__}: {error}"
        broken = Result(*scenarios.HARNESS, Status.FAIL, text, "make image  # builds the image anew")
        return replace(found, results=(*found.results, broken))
    for name in missing:
        kept[name] = tuple(b for b in fresh if b.scenario == name)
        _keep(_file(name, found, cache), kept[name] or ())
    benched = tuple(b for cases in kept.values() for b in cases or ())
    return replace(found, benchmarks=benched, results=(*found.results, *scenarios.results(benched)))


def _cut_off(benchmark: Benchmark) -> bool:
    return benchmark.status == "fail" and (
        "time limit" in benchmark.reason or "did not finish within" in benchmark.reason
    )


def _measurer(deadline: budget.Deadline, progress: process.Progress) -> Measure:
    def measure(names: Sequence[str], found: Verification) -> tuple[Benchmark, ...]:
        session = scenarios.Session(
            device=found.device,
            short=True,
            deadline=deadline,
            gpu_index=scenarios.gpu_index(found.facts),
            progress=progress,
        )
        known = scenarios.listed()
        return scenarios.judged(scenarios.measure([known[n] for n in names], session))

    return measure


def _file(name: str, found: Verification, cache: Path) -> Path:
    return cache / f"{key(found.facts, found.device)}-{name}.json"


def _kept(file: Path) -> tuple[Benchmark, ...] | None:
    """The kept cases of a scenario; None when there are none, or they cannot be read."""
    try:
        cases = _CASES.validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    return tuple(case.model_copy(update={"cached": True}) for case in cases) or None


def _keep(file: Path, cases: Sequence[Benchmark]) -> None:
    """Keep only what can be believed and would come out so again: whole, right and undisturbed."""
    if not cases or not all(map(_whole, cases)):
        return
    with contextlib.suppress(OSError, output.Stop):  # a read-only container simply measures each time
        file.parent.mkdir(parents=False, exist_ok=True)
        output.write(str(file), _CASES.dump_json(list(cases), indent=1).decode() + "\n")


def _whole(case: Benchmark) -> bool:
    """With its whole batch, and every variant measured that this machine and this stack can run."""
    batch = case.conditions.get("batch") == case.conditions.get("batch_asked")
    measured = all(v.status == "ok" or (v.status == "skip" and v.absent) for v in case.variants)
    return case.status == "ok" and not case.disturbed and batch and measured


def key(facts: Facts, device: str) -> str:
    """What a kept result depends on: device, driver, build, packages bound together, code that measures."""
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
        scenarios.method_version(),
        scenarios.method_digest(),
        facts.container.cpu_limit or facts.container.cpus if device == "cpu" else None,
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
