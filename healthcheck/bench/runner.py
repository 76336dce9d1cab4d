"""Run a scenario: is it right, then how fast. A variant that is wrong is not timed and has no speed-up."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from healthcheck.bench.conditions import conditions, device_name
from healthcheck.bench.scenario import Case, Machine, Prepared, Scenario, Setup, Unavailable, Variant
from healthcheck.exercise.base import cuda_fault
from healthcheck.measure import METHOD_VERSION, timer
from healthcheck.measure.compare import Comparison, compare, poison_bytes
from healthcheck.measure.seed import fresh_seed
from healthcheck.measure.stats import summarise

Emit = Callable[[Mapping[str, Any]], None]
Answer = dict[str, Any]
SHORT_BUDGET = 60.0  # seconds after which no further variant is begun, where the caller sets none
FULL_BUDGET = 480.0
SHORT_STEADY = 0.4  # seconds that a variant runs back to back, for the activity lenses
FULL_STEADY = 1.5
_CALLS_AHEAD = 8  # enough that the GPU never waits for the host, few enough that the host sees the time
_REASON_LENGTH = 300


@dataclass(frozen=True)
class Tools:
    """What the runner reaches the world with; tests give their own."""

    emit: Emit
    now: Callable[[], float] = time.monotonic
    stopwatch: Callable[..., timer.Stopwatch] = timer.stopwatch
    plan: timer.Plan | None = None
    steady_seconds: float | None = None
    budget: float | None = None


@dataclass(frozen=True)
class _Task:
    """What all variants of a case share. `reference` lies on the CPU, so that it takes no GPU memory."""

    scenario: Scenario
    setup: Setup
    inputs: Any
    reference: Any

    def judge(self, result: Any, prepared: Prepared) -> Comparison:
        out = self.scenario.compared(self.setup, result).cpu()
        tolerance = prepared.tolerance or self.scenario.tolerance(self.setup)
        return compare(out, self.reference, tolerance)


@dataclass(frozen=True)
class _Budget:
    """Seconds for the whole scenario; what would begin after them is skipped."""

    seconds: float
    began: float
    now: Callable[[], float]

    @property
    def spent(self) -> bool:
        return self.now() - self.began > self.seconds

    @property
    def reason(self) -> str:
        return f"the time budget of {self.seconds:.0f} s was used up before it"


class _OutOfMemory(Exception):
    """A variant needs more memory than there is."""


def run(scenario: Scenario, device: str, short: bool, tools: Tools) -> list[Answer]:
    """Run `scenario` on `device`; emit and return one answer for each of its cases."""
    began = tools.now()
    tools.emit({"event": "start", "scenario": scenario.name})
    usual = SHORT_BUDGET if short else FULL_BUDGET
    budget = _Budget(usual if tools.budget is None else tools.budget, began, tools.now)
    answers = []
    fault = cuda_fault() if device == "cuda" else ""
    cases = scenario.cases(Machine(device, short, None if fault else _memory(device)))
    variants = sum(len(case.variants) for case in cases)
    tools.emit({"event": "plan", "scenario": scenario.name, "variants": variants})
    for case in cases:
        started = tools.now()
        setup = Setup(device, short, case, case.batch, fresh_seed())
        if device == "cpu" and not scenario.has_cpu_form:
            answer = _answer(scenario, setup, "skip", "needs a GPU", [])
        elif fault:
            answer = _answer(scenario, setup, "fail", f"torch cannot use the GPU: {fault}", [])
        elif budget.spent:
            answer = _answer(scenario, setup, "skip", budget.reason, [])
        else:
            answer = _run_case(scenario, setup, tools, budget)
        answer["seconds"] = round(tools.now() - started, 3)
        tools.emit({"event": "case", **answer})
        answers.append(answer)
    tools.emit({"event": "end", "scenario": scenario.name, "seconds": round(tools.now() - began, 3)})
    return answers


def _run_case(scenario: Scenario, setup: Setup, tools: Tools, budget: _Budget) -> Answer:
    """All variants with one batch, so that they can be compared: when memory runs out, all start over."""
    first = setup.batch
    notes: tuple[str, ...] = ()
    while True:
        try:
            answers = _variants(scenario, setup, tools, budget, notes)
        except _OutOfMemory as error:
            shortage = str(error)  # not the error: its frames hold the memory that is to be freed
        except Unavailable as missing:
            return _answer(scenario, setup, "skip", str(missing), [])
        except Exception as error:  # the inputs or the reference: no variant can be judged
            return _answer(scenario, setup, "fail", f"the inputs cannot be made: {_reason(error)}", [])
        else:
            return _answer(scenario, setup, *_verdict(answers), answers)
        _release(setup.device)
        if setup.batch <= 1:
            return _answer(scenario, setup, "skip", f"out of memory with the smallest batch: {shortage}", [])
        setup = setup.halved()
        notes = (f"batch halved from {first} to {setup.batch}: out of memory",)


def _variants(
    scenario: Scenario, setup: Setup, tools: Tools, budget: _Budget, notes: tuple[str, ...]
) -> list[Answer]:
    with _memory_errors():
        inputs = scenario.inputs(setup)
        task = _Task(scenario, setup, inputs, scenario.reference(setup, inputs).cpu())
    answers: list[Answer] = []
    for variant in setup.case.variants:
        where = {"scenario": scenario.name, "case": setup.case.name, "variant": variant.label}
        tools.emit({"event": "progress", **where})
        if budget.spent:
            answer = _blank(variant, "skip", budget.reason)
        else:
            _release(setup.device)
            answer = _attempt(variant, task, tools)
        _compare_with_earlier(answer, answers)
        answer["baseline"] = not answers
        answer["notes"] = [*notes, *answer["notes"]]
        answers.append(answer)
        tools.emit({"event": "variant", "scenario": scenario.name, "case": setup.case.name, **answer})
    return answers


def _attempt(variant: Variant, task: _Task, tools: Tools) -> Answer:
    """One variant's answer. Only _OutOfMemory leaves, and only while the batch can still be halved."""
    try:
        with _memory_errors():
            prepared = variant.prepare(task.setup, task.inputs)
            with prepared.context():
                return _judge(variant, prepared, task, tools)
    except Unavailable as missing:
        return {**_blank(variant, "skip", str(missing)), "absent": True}
    except _OutOfMemory as error:
        if task.setup.batch > 1:
            raise
        return _blank(variant, "skip", f"out of memory with the smallest batch: {error}")
    except Exception as error:
        return _blank(variant, "fail", _reason(error))


def _judge(variant: Variant, prepared: Prepared, task: _Task, tools: Tools) -> Answer:
    """Correct, then timed, then correct still: a race may only show under load."""
    setup, case = task.setup, task.setup.case
    answer = _blank(variant, "ok")
    answer["label"] = prepared.label or variant.label
    answer["notes"] = list(prepared.notes)
    if prepared.compilation is not None:
        answer["compile_seconds"] = prepared.compilation.cold_seconds
        answer["compile_warm_seconds"] = prepared.compilation.warm_seconds
    first, memory = _first_result(prepared, setup)
    answer.update(memory)
    if not _book(answer, task.judge(first, prepared), "wrong result"):
        return answer
    del first
    watch = tools.stopwatch(setup.device, prepared.side_streams)
    plan = tools.plan or case.plan or (timer.SHORT if setup.short else timer.Plan())
    samples = timer.measure(prepared.call, watch, plan)
    answer["steady"] = _steady(prepared, setup, tools)
    if not _book(answer, task.judge(prepared.call(), prepared), "wrong result after repeated calls"):
        return answer
    return {**answer, **_figures(task, prepared, samples, answer["notes"])}


def _figures(task: _Task, prepared: Prepared, samples: Sequence[float], notes: list[str]) -> Answer:
    summary = summarise(samples)
    work = task.scenario.throughput(task.setup, task.inputs)
    cost = prepared.cost or task.scenario.cost(task.setup, task.inputs)
    return {
        "samples_ms": list(samples),
        "median_ms": summary.median,
        "q1_ms": summary.q1,
        "q3_ms": summary.q3,
        "throughput": work and {"value": work.amount / (summary.median / 1e3), "unit": work.unit},
        "cost": cost and asdict(cost),
        "notes": [*notes, summary.note] if summary.note else notes,
    }


def _book(answer: Answer, comparison: Comparison, what: str) -> bool:
    answer["error"], answer["tolerance"] = comparison.error, comparison.tolerance
    answer["correct"] = comparison.ok
    if not comparison.ok:
        answer["status"], answer["reason"] = "fail", f"{what}: {comparison.sentence}"
    return comparison.ok


def _first_result(prepared: Prepared, setup: Setup) -> tuple[Any, Answer]:
    """A result to judge, and the most GPU memory in use while it was made, in bytes (inputs included).

    On a GPU an earlier call only tells the result's size, so that its memory can be made NaN first.
    """
    if not setup.on_gpu:
        return prepared.call(), {}
    import torch

    sizes = _sizes(prepared.call())
    poison_bytes("cuda", sizes, copies=2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = prepared.call()
    torch.cuda.synchronize()
    memory = {
        "peak_vram_bytes": torch.cuda.max_memory_allocated(),
        "peak_vram_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    return result, memory


def _sizes(result: Any) -> list[int]:
    return [t.nbytes for t in (result if isinstance(result, tuple) else (result,))]


def _steady(prepared: Prepared, setup: Setup, tools: Tools) -> Answer | None:
    """Run back to back, as a program would, and say when: what the activity lenses see in that window counts.

    The timer's samples cannot serve: between them the GPU waits and the cache is overwritten.
    """
    planned = SHORT_STEADY if setup.short else FULL_STEADY
    for own in (setup.case.steady_seconds, tools.steady_seconds):
        planned = planned if own is None else own
    if not setup.on_gpu or not planned:
        return None
    import torch

    ahead: deque[Any] = deque()
    calls = 0
    torch.cuda.synchronize()
    begin = time.monotonic()
    while time.monotonic() - begin < planned:
        timer.joined(prepared.call, prepared.side_streams)
        calls += 1
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        ahead.append(done)
        if len(ahead) > _CALLS_AHEAD:
            ahead.popleft().synchronize()
    torch.cuda.synchronize()
    return {"begin": begin, "end": time.monotonic(), "calls": calls}


def _compare_with_earlier(answer: Answer, earlier: list[Answer]) -> None:
    """Gain over the baseline and over the step before, and after how many calls compiling has paid."""
    if answer["status"] != "ok" or answer["part"]:
        return
    rivals = [a for a in earlier if a["status"] == "ok" and not a["part"]]
    baseline = earlier[0] if earlier else answer
    if rivals:
        answer["step_gain"] = rivals[-1]["median_ms"] / answer["median_ms"]
    if baseline["status"] == "ok":
        answer["speedup"] = baseline["median_ms"] / answer["median_ms"]
        saved = (baseline["median_ms"] - answer["median_ms"]) / 1e3
        if answer["compile_seconds"] is not None and saved > 0:
            answer["pays_after_calls"] = round(answer["compile_seconds"] / saved)


def _verdict(answers: list[Answer]) -> tuple[str, str]:
    failed = [a for a in answers if a["status"] == "fail"]
    if failed:
        return "fail", "; ".join(f"{a['name']}: {a['reason']}" for a in failed)
    if all(a["status"] == "skip" for a in answers):
        return "skip", "; ".join(f"{a['name']}: {a['reason']}" for a in answers)
    return "ok", ""


def _blank(variant: Variant, status: str, reason: str = "") -> Answer:
    return {
        "name": variant.name,
        "label": variant.label,
        "part": variant.part,
        "baseline": False,
        "status": status,
        "reason": reason,
        "absent": False,
        "correct": None,
        "error": None,
        "tolerance": None,
        "samples_ms": [],
        "median_ms": None,
        "q1_ms": None,
        "q3_ms": None,
        "speedup": None,
        "step_gain": None,
        "throughput": None,
        "cost": None,
        "peak_vram_bytes": None,
        "peak_vram_reserved_bytes": None,
        "compile_seconds": None,
        "compile_warm_seconds": None,
        "pays_after_calls": None,
        "steady": None,
        "notes": [],
    }


def _answer(scenario: Scenario, setup: Setup, status: str, reason: str, variants: list[Answer]) -> Answer:
    known, name = _surroundings(setup.device) if status != "skip" or variants else ({}, "")
    return {
        "scenario": scenario.name,
        "case": setup.case.name,
        "title": scenario.title,
        "workload": scenario.workload(setup),
        "device": setup.device,
        "device_name": name,
        "short": setup.short,
        "torch": known.get("torch", ""),
        "status": status,
        "reason": reason,
        "variants": variants,
        "bound": _bound(setup.case, variants),
        "control": _control(setup.case, variants),
        "conditions": {**known, "seed": setup.seed, "batch": setup.batch, "batch_asked": setup.case.batch},
        "method_version": METHOD_VERSION,
    }


def _bound(case: Case, variants: list[Answer]) -> Answer | None:
    if case.bound is None:
        return None
    ms = case.bound.of({a["name"]: a["median_ms"] for a in variants if a["status"] == "ok"})
    return None if ms is None else {"name": case.bound.name, "ms": ms}


def _control(case: Case, variants: list[Answer]) -> Answer | None:
    """Whether every gain of a negative control lies where it has to."""
    if case.control is None:
        return None
    gains = [a["speedup"] for a in variants if a["speedup"] is not None and not a["baseline"]]
    inside = all(case.control.low <= gain <= case.control.high for gain in gains)
    return {**asdict(case.control), "holds": inside if gains else None}


def _memory(device: str) -> int | None:
    if device != "cuda":
        return None
    import torch

    return int(torch.cuda.mem_get_info()[1])


def _surroundings(device: str) -> tuple[dict[str, Any], str]:
    """Conditions and the device's name; nothing where the device itself is what failed."""
    try:
        return conditions(device), device_name(device)
    except Exception:
        return {}, ""


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn every library's word for exhausted memory into _OutOfMemory."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise _OutOfMemory(_reason(error)) from None


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on the GPU or on the host."""
    import torch

    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said)


def _release(device: str) -> None:
    """Hand back what earlier variants held, so that none is measured in another's remains."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {' '.join(lines[0].split())}"[:_REASON_LENGTH]
