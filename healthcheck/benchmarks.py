"""Drives `healthcheck.bench` in the stack's Python, one child a scenario, and keeps what it measured."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from healthcheck import child, children
from healthcheck.facts import utilisation
from healthcheck.facts.collect import Facts
from healthcheck.report.model import Benchmark, Variant
from healthcheck.result import Result, Status

MODULE = "healthcheck.bench"
HARNESS = ("DYN-BENCH-000", "benchmarks")
SHORT = ("attention", "compile", "streams")  # what a self-test runs
SHORT_LIMIT = 120.0  # seconds for one scenario in its short form
FULL_LIMIT = 900.0


class ScenarioInfo(Protocol):
    """What is needed of `healthcheck.bench.ScenarioInfo`."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def has_cpu_form(self) -> bool: ...


@dataclass(frozen=True)
class Session:
    """How scenarios are run; `limit` is in seconds for each of them."""

    device: str
    short: bool
    deadline: children.Deadline
    module: str = MODULE
    limit: float = FULL_LIMIT
    gpu_index: int | None = None
    run: children.Run = child.run
    progress: children.Progress = lambda text: None


def listed() -> Mapping[str, ScenarioInfo]:
    """Name -> scenario, in the order of the report."""
    scenarios: Mapping[str, ScenarioInfo] = importlib.import_module(MODULE).SCENARIOS
    return scenarios


def method_version() -> int:
    """Version of the measuring method: results of different versions are not comparable."""
    return int(getattr(importlib.import_module(MODULE), "METHOD_VERSION", 1))


def gpu_index(facts: Facts) -> int | None:
    """NVML's index of the GPU that a child will use."""
    uuids = tuple(gpu.uuid for gpu in facts.gpu.gpus or ())
    return utilisation.first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)


def measure(info: ScenarioInfo, session: Session) -> Benchmark:
    """Run one scenario. A child that dies or hangs gives a failed benchmark with the variants it finished."""
    if session.device == "cpu" and not info.has_cpu_form:
        return _empty(info, session, "skip", "has no CPU form")
    if session.deadline.left < 1:
        return _empty(info, session, "fail", f"the time limit of {session.deadline.limit:.0f} s came first")
    session.progress(info.title)
    arguments = [info.name, "--device", session.device, *(["--short"] if session.short else [])]
    index = session.gpu_index if session.device == "cuda" else None
    sampler = utilisation.Sampler(index) if index is not None else None
    with sampler.running() if sampler else contextlib.nullcontext():
        outcome = session.run(
            session.module,
            arguments,
            time_limit=min(session.deadline.left, session.limit),
            environment=children.environment(),
        )
    benchmark = _read(info, session, outcome)
    return benchmark.model_copy(
        update={
            "measured": datetime.now(timezone.utc),
            "utilisation": sampler.result() if sampler else None,
        }
    )


def result(benchmark: Benchmark) -> Result:
    """A benchmark as a check: it fails when it did not run to its end or computed something wrong."""
    code, title = f"DYN-BENCH-{benchmark.scenario.upper()}", f"benchmark {benchmark.scenario}"
    again = (
        f"bench run {benchmark.scenario} --device {benchmark.device}{' --short' if benchmark.short else ''}"
    )
    bad = [v for v in benchmark.variants if v.status == "fail" or v.correct is False]
    if benchmark.status == "fail" or bad:
        said = [benchmark.reason] if benchmark.reason else []
        said += [f"{v.label}: {v.reason or 'wrong result'}" for v in bad]
        return Result(code, title, Status.FAIL, "; ".join(said) or "failed", again, seconds=benchmark.seconds)
    if benchmark.status == "skip":
        return Result(code, title, Status.SKIP, benchmark.reason or "skipped")
    if not any(v.status == "ok" for v in benchmark.variants):
        return Result(code, title, Status.FAIL, "no variant was measured", again, seconds=benchmark.seconds)
    measured = sum(v.status == "ok" for v in benchmark.variants)
    return Result(code, title, Status.PASS, f"{measured} variants measured", seconds=benchmark.seconds)


def _read(info: ScenarioInfo, session: Session, outcome: child.Outcome) -> Benchmark:
    final = [e for e in outcome.events if e.get("event") == "scenario" and e.get("scenario") == info.name]
    if final:
        try:
            return Benchmark.model_validate(_trimmed(final[-1]))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            return _empty(info, session, "fail", f"its answer is not understood: {where}: {first['msg']}")
    words = children.last_words(outcome)
    reason = f"the process {outcome.cause}{f'; it last said: {words}' if words else ''}"
    finished = _finished_variants(outcome.events)
    return _empty(info, session, "fail", reason).model_copy(update={"variants": finished})


def _finished_variants(events: Sequence[Mapping[str, Any]]) -> list[Variant]:
    variants = []
    for event in events:
        if event.get("event") != "variant":
            continue
        data = event.get("variant") if isinstance(event.get("variant"), Mapping) else event
        try:
            variants.append(Variant.model_validate(_known(Variant, data)))
        except ValidationError:
            continue  # the scenario has failed anyway, and says why
    return variants


def _trimmed(event: Mapping[str, Any]) -> dict[str, Any]:
    """The fields this version of the report knows: a newer scenario may say more."""
    known = _known(Benchmark, event)
    variants = known.get("variants")
    if isinstance(variants, list):
        known["variants"] = [_known(Variant, v) if isinstance(v, Mapping) else v for v in variants]
    return known


def _known(model: type[BaseModel], data: Any) -> dict[str, Any]:
    return {name: data[name] for name in model.model_fields if name in data}


def _empty(info: ScenarioInfo, session: Session, status: str, reason: str) -> Benchmark:
    return Benchmark.model_validate(
        {
            "scenario": info.name,
            "title": info.title,
            "device": session.device,
            "short": session.short,
            "status": status,
            "reason": reason,
        }
    )
