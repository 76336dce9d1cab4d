"""Drives `healthcheck.bench` in the stack's Python, and keeps what it measured.

`bench run` gives each scenario a child of its own, a self-test one child to all of its short forms, because
importing torch three times would take longer than they do. A child that dies or hangs fails the scenario it
was in; what was measured before is kept, and the rest go on in a new child.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from healthcheck.drive import budget, process
from healthcheck.drive.activity import Sampler
from healthcheck.facts.gpu import first_visible
from healthcheck.facts.snapshot import Facts
from healthcheck.judge import limits
from healthcheck.measure.activity import disturbance
from healthcheck.report.model import Benchmark, Variant
from healthcheck.result import Result, Status
from healthcheck.signals import Interrupted

MODULE = "healthcheck.bench"
HARNESS = ("DYN-BENCH-000", "benchmarks")
GATES = ("GPU", "DRIVER", "CUDA")  # subjects of checks that say whether a GPU can be measured at all
_TO_END = 0.9  # of a child's time: what begins later is skipped, so that it ends by itself


class Partial(Exception):
    """Raised in place of a signal: what was measured before it, the scenario that it ended included."""

    def __init__(self, measured: tuple[Benchmark, ...], signal: Interrupted) -> None:
        super().__init__(f"interrupted by {signal.name}")
        self.measured = measured
        self.signal = signal


class ScenarioInfo(Protocol):
    """What is needed of `healthcheck.bench.ScenarioInfo`."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def has_cpu_form(self) -> bool: ...
    @property
    def at_start(self) -> bool: ...


@dataclass(frozen=True)
class Session:
    """How scenarios are run. `to_come`: how many children share the deadline, this one included."""

    device: str
    short: bool
    deadline: budget.Deadline
    module: str = MODULE
    to_come: int = 1
    gpu_index: int | None = None
    run: process.Run = process.run
    progress: process.Progress = lambda text: None


def listed() -> Mapping[str, ScenarioInfo]:
    """Name -> scenario, in the order of the report."""
    scenarios: Mapping[str, ScenarioInfo] = importlib.import_module(MODULE).SCENARIOS
    return scenarios


def at_start() -> tuple[str, ...]:
    """The scenarios whose short forms a self-test runs."""
    return tuple(name for name, info in listed().items() if info.at_start)


def method_digest() -> str:
    """Of the code that measures, its workloads and variants: what another code measured is not its own."""
    package = Path(__file__).resolve().parents[1]
    files = sorted(f for room in ("bench", "measure", "recipes") for f in (package / room).rglob("*.py"))
    content = b"".join(file.name.encode() + b"\0" + file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest()


def method_version() -> int:
    """Version of the measuring method: results of different versions are not comparable."""
    return int(getattr(importlib.import_module(MODULE), "METHOD_VERSION", 1))


def gpu_index(facts: Facts) -> int | None:
    """NVML's index of the GPU that a child will use."""
    uuids = tuple(gpu.uuid for gpu in facts.gpu.gpus or ())
    return first_visible(facts.driver.cuda_visible_devices, uuids)


def measure(infos: Sequence[ScenarioInfo], session: Session) -> tuple[Benchmark, ...]:
    """Run `infos` one after another and return what was measured of each, in their order.

    Raises Partial when a signal ends it.
    """
    answers: dict[str, tuple[Benchmark, ...]] = {}
    pending = list(infos)
    for info in infos:
        if session.device == "cpu" and not info.has_cpu_form:
            answers[info.name] = (_empty(info, session, "skip", "has no CPU form"),)
            pending.remove(info)
    while pending:
        if session.deadline.left < 1:
            late = f"the time limit of {session.deadline.limit:.0f} s came first"
            answers |= {info.name: (_empty(info, session, "fail", late),) for info in pending}
            break
        try:
            answers |= _one_child(pending, session)
        except Partial as cut:
            answers |= _by_scenario(cut.measured)
            answers |= {i.name: (not_begun(i, session, f"{cut}"),) for i in infos if i.name not in answers}
            raise Partial(tuple(b for info in infos for b in answers[info.name]), cut.signal) from None
        pending = [info for info in pending if info.name not in answers]
    return tuple(benchmark for info in infos for benchmark in answers[info.name])


def judged(benchmarks: Sequence[Benchmark]) -> tuple[Benchmark, ...]:
    """Hold every figure against what the GPU can do; one that is above it fails."""
    seen: Mapping[str, Any] = next((b.conditions["gpu"] for b in benchmarks if "gpu" in b.conditions), {})
    generation, width = seen.get("pcie_generation"), seen.get("pcie_width")
    link = (generation, width) if generation and width else None
    return tuple(limits.with_limits(benchmarks, seen.get("max_sm_clock_mhz"), link))


def results(benchmarks: Sequence[Benchmark]) -> tuple[Result, ...]:
    """Each scenario as a check: it fails when it did not run to its end or computed something wrong."""
    return tuple(_result(cases) for cases in _by_scenario(benchmarks).values())


def not_begun(info: ScenarioInfo, session: Session, why: str) -> Benchmark:
    """The answer of a scenario whose turn did not come; `why` in a clause."""
    return _empty(info, session, "skip", f"not begun: {why}")


def _by_scenario(benchmarks: Sequence[Benchmark]) -> dict[str, tuple[Benchmark, ...]]:
    found: dict[str, tuple[Benchmark, ...]] = {}
    for benchmark in benchmarks:
        found[benchmark.scenario] = (*found.get(benchmark.scenario, ()), benchmark)
    return found


def identity(scenario: str) -> tuple[str, str]:
    """The code and the title of a scenario's result."""
    return f"DYN-BENCH-{scenario.upper()}", f"benchmark {scenario}"


def _result(cases: Sequence[Benchmark]) -> Result:
    first = cases[0]
    code, title = identity(first.scenario)
    again = f"bench run {first.scenario} --device {first.device}{' --short' if first.short else ''}"
    seconds = sum(b.seconds or 0.0 for b in cases)
    faults = [fault for b in cases for fault in _faults(b)]
    if faults:
        return Result(code, title, Status.FAIL, "; ".join(faults), again, seconds=seconds)
    if all(b.status == "skip" for b in cases):
        reasons = dict.fromkeys(b.reason or "skipped" for b in cases)
        return Result(code, title, Status.SKIP, "; ".join(reasons))
    measured = sum(v.status == "ok" for b in cases for v in b.variants)
    if not measured:
        return Result(code, title, Status.FAIL, "no variant was measured", again, seconds=seconds)
    said = f"{measured} measurements"
    doubts = [doubt for b in cases if (doubt := _doubt(b))]
    if doubts:
        return Result(code, title, Status.WARN, "; ".join(dict.fromkeys(doubts)), again, seconds=seconds)
    return Result(code, title, Status.PASS, said, seconds=seconds)


def _faults(benchmark: Benchmark) -> Iterator[str]:
    where = f"{benchmark.case}: " if benchmark.case else ""
    bad = [v for v in benchmark.variants if v.status == "fail" or v.correct is False]
    for variant in bad:
        yield f"{where}{variant.label}: {variant.reason or 'wrong result'}"
    if benchmark.status == "fail" and not bad:
        yield f"{where}{benchmark.reason or 'failed'}"


def _doubt(benchmark: Benchmark) -> str:
    """Why the figures are right and yet not to be believed, or nothing."""
    if benchmark.disturbed:
        return benchmark.disturbed
    control = benchmark.control
    if control is not None and control.holds is False:
        return (
            f"{benchmark.case}: the negative control has a gain outside "
            f"{control.low:g}..{control.high:g}x: {control.why}"
        )
    return ""


def _one_child(infos: Sequence[ScenarioInfo], session: Session) -> dict[str, tuple[Benchmark, ...]]:
    """What one child measured. At least one scenario is answered, so that the caller comes to an end."""
    titles = {info.name: info.title for info in infos}
    told = {"begun": 0, "all": 0}
    heard: list[dict[str, Any]] = []

    def note(event: dict[str, Any]) -> None:
        heard.append(event)
        if event.get("event") == "start":
            session.progress(titles.get(str(event.get("scenario")), ""))
        elif event.get("event") == "plan":
            told.update(begun=0, all=int(event.get("variants") or 0))
        elif event.get("event") == "progress":
            told["begun"] += 1
            what = " ".join(str(event.get(k, "")) for k in ("scenario", "case", "variant"))
            session.progress(f"{what} ({told['begun']} of {max(told.values())})")

    limit = session.deadline.share(session.to_come)
    arguments = [*titles, "--device", session.device, "--seconds", f"{_TO_END * limit:.0f}"]
    arguments += ["--short"] if session.short else []
    index = session.gpu_index if session.device == "cuda" else None
    sampler = Sampler(index) if index is not None else None
    signal: Interrupted | None = None
    with sampler.running() if sampler else contextlib.nullcontext():
        try:
            outcome = session.run(
                session.module,
                arguments,
                time_limit=limit,
                environment=process.environment(),
                on_event=note,
            )
        except Interrupted as caught:
            signal = caught
            outcome = process.Outcome(tuple(heard), None, False, "", 0.0, interrupted=signal.name)
    answers = _read(infos, session, outcome)
    answers = {name: tuple(_observed(b, sampler) for b in cases) for name, cases in answers.items()}
    if signal is not None:
        raise Partial(tuple(b for cases in answers.values() for b in cases), signal)
    return answers


def _observed(benchmark: Benchmark, sampler: Sampler | None) -> Benchmark:
    """Add what was seen from outside while it ran."""
    changes: dict[str, Any] = {"measured": datetime.now(timezone.utc)}
    if sampler is not None:
        seen = sampler.surroundings()
        changes["conditions"] = {**benchmark.conditions, "gpu": asdict(seen)}
        changes["disturbed"] = disturbance(seen)
        changes["variants"] = [
            v.model_copy(update={"activity": sampler.window(v.steady.begin, v.steady.end)}) if v.steady else v
            for v in benchmark.variants
        ]
    return benchmark.model_copy(update=changes)


def _read(
    infos: Sequence[ScenarioInfo], session: Session, outcome: process.Outcome
) -> dict[str, tuple[Benchmark, ...]]:
    """The cases of every scenario that came to its end, and of the one in which the child ended."""
    by_name = {info.name: info for info in infos}
    cases: dict[str, list[Benchmark]] = {}
    ended: set[str] = set()
    current = infos[0].name
    for event in outcome.events:
        name = str(event.get("scenario"))
        if name not in by_name:
            continue
        if event.get("event") == "start":
            current = name
            cases[name] = []
        elif event.get("event") == "case":
            cases.setdefault(name, []).append(_case(by_name[name], session, event))
        elif event.get("event") == "end":
            ended.add(name)
    answers = {name: tuple(found) for name, found in cases.items() if name in ended and found}
    unfinished = [name for name in by_name if name not in answers]
    if unfinished:
        blamed = current if current in unfinished else unfinished[0]
        cut_off = _cut_off(by_name[blamed], session, outcome)
        answers[blamed] = (*cases.get(blamed, ()), cut_off)
    return answers


def _case(info: ScenarioInfo, session: Session, event: Mapping[str, Any]) -> Benchmark:
    try:
        return Benchmark.model_validate(_trimmed(event))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return _empty(info, session, "fail", f"its answer is not understood: {where}: {first['msg']}")


def _cut_off(info: ScenarioInfo, session: Session, outcome: process.Outcome) -> Benchmark:
    """The case in which the child ended, with the variants that it had finished."""
    words = process.last_words(outcome)
    reason = f"the process {outcome.cause}{f'; it last said: {words}' if words else ''}"
    open_case = ""
    variants: list[Variant] = []
    for event in outcome.events:
        if event.get("scenario") != info.name:
            continue
        if event.get("event") == "case":
            open_case, variants = "", []
        elif event.get("event") in ("progress", "variant"):
            open_case = str(event.get("case", ""))
            if event["event"] == "variant":
                with contextlib.suppress(ValidationError):  # it has failed anyway, and says why
                    variants.append(Variant.model_validate(_known(Variant, event)))
    return _empty(info, session, "fail", reason).model_copy(update={"case": open_case, "variants": variants})


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
