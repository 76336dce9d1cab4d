"""Run a scenario: is it right, then how fast. A variant that is wrong is not timed and has no speed-up."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from healthcheck.bench.conditions import conditions, device_name
from healthcheck.bench.scenario import Prepared, Scenario, Setup, Unavailable, Variant
from healthcheck.exercise.base import fresh_seed
from healthcheck.exercise.compare import Comparison, compare, poison_bytes
from healthcheck.measure import METHOD_VERSION, timer
from healthcheck.measure.stats import Summary, summarise

Emit = Callable[[Mapping[str, Any]], None]
SHORT_BUDGET = 60.0  # seconds after which no further variant is begun
FULL_BUDGET = 600.0
_REASON_LENGTH = 300


@dataclass(frozen=True)
class Tools:
    """What the runner reaches the world with; tests give their own."""

    emit: Emit
    now: Callable[[], float] = time.monotonic
    stopwatch: Callable[..., timer.Stopwatch] = timer.stopwatch
    plan: timer.Plan | None = None
    budget: float | None = None


@dataclass(frozen=True)
class _Task:
    """What all variants share. `reference` lies on the CPU, so that it takes no GPU memory from them."""

    scenario: Scenario
    setup: Setup
    inputs: Any
    reference: Any

    def judge(self, result: Any) -> Comparison:
        out = self.scenario.compared(result).cpu()
        return compare(out, self.reference, self.scenario.tolerance(self.setup))


class _OutOfMemory(Exception):
    """A variant needs more memory than there is."""


def run(scenario: Scenario, device: str, short: bool, tools: Tools) -> dict[str, Any]:
    """Run `scenario` on `device` and return its event, after an event for each variant."""
    began = tools.now()
    tools.emit({"event": "start", "scenario": scenario.name})
    setup = Setup(device, short, scenario.batch(device, short), fresh_seed())
    if device == "cpu" and not scenario.has_cpu_form:
        event = _event(scenario, setup, "skip", "needs a GPU", [])
    elif setup.on_gpu and (fault := _gpu_fault()):
        event = _event(scenario, setup, "fail", f"torch cannot use the GPU: {fault}", [])
    else:
        event = _run_on(scenario, setup, tools, began)
    event["seconds"] = round(tools.now() - began, 3)
    tools.emit(event)
    return event


def _run_on(scenario: Scenario, setup: Setup, tools: Tools, began: float) -> dict[str, Any]:
    """All variants with one batch, so that they can be compared: when memory runs out, all start over."""
    first = setup.batch
    notes: tuple[str, ...] = ()
    while True:
        try:
            answers = _variants(scenario, setup, tools, began, notes)
        except _OutOfMemory as error:
            shortage = str(error)  # not the error: its frames hold the memory that is to be freed
        except Unavailable as missing:
            return _event(scenario, setup, "skip", str(missing), [])
        except Exception as error:  # the inputs or the reference: no variant can be judged
            return _event(scenario, setup, "fail", f"the inputs cannot be made: {_reason(error)}", [])
        else:
            return _event(scenario, setup, *_verdict(answers), answers)
        _release(setup.device)
        if setup.batch <= 1:
            return _event(scenario, setup, "skip", f"out of memory with the smallest batch: {shortage}", [])
        setup = setup.halved()
        notes = (f"batch halved from {first} to {setup.batch}: out of memory",)


def _variants(
    scenario: Scenario, setup: Setup, tools: Tools, began: float, notes: tuple[str, ...]
) -> list[dict[str, Any]]:
    budget = tools.budget or (SHORT_BUDGET if setup.short else FULL_BUDGET)
    with _memory_errors():
        inputs = scenario.inputs(setup)
        task = _Task(scenario, setup, inputs, scenario.reference(setup, inputs).cpu())
    answers: list[dict[str, Any]] = []
    for variant in scenario.variants:
        if tools.now() - began > budget:
            answer = _blank(variant, "skip", f"the time budget of {budget:.0f} s was used up before it")
        else:
            _release(setup.device)
            answer = _attempt(variant, task, tools)
        _compare_with_baseline(answer, answers)
        answer["baseline"] = not answers
        answer["notes"] = [*notes, *answer["notes"]]
        answers.append(answer)
        tools.emit({"event": "variant", "scenario": scenario.name, **answer})
    return answers


def _attempt(variant: Variant, task: _Task, tools: Tools) -> dict[str, Any]:
    """One variant's answer. Only _OutOfMemory leaves, and only while the batch can still be halved."""
    try:
        with _memory_errors():
            prepared = variant.prepare(task.setup, task.inputs)
            with prepared.context():
                return _judge(variant, prepared, task, tools)
    except Unavailable as missing:
        return _blank(variant, "skip", str(missing))
    except _OutOfMemory as error:
        if task.setup.batch > 1:
            raise
        return _blank(variant, "skip", f"out of memory with the smallest batch: {error}")
    except Exception as error:
        return _blank(variant, "fail", _reason(error))


def _judge(variant: Variant, prepared: Prepared, task: _Task, tools: Tools) -> dict[str, Any]:
    """Correct, then timed, then correct still: a race may only show under load."""
    answer = _blank(variant, "ok")
    answer["label"] = prepared.label or variant.label
    answer["notes"] = list(prepared.notes)
    answer["compile_seconds"] = prepared.compile_seconds
    first, answer["peak_vram_bytes"] = _first_result(prepared, task.setup)
    if not _book(answer, task.judge(first), "wrong result"):
        return answer
    del first
    watch = tools.stopwatch(task.setup.device, prepared.side_streams)
    plan = tools.plan or (timer.SHORT if task.setup.short else timer.Plan())
    samples = timer.measure(prepared.call, watch, plan)
    if not _book(answer, task.judge(prepared.call()), "wrong result after repeated calls"):
        return answer
    summary = summarise(samples)
    answer.update(samples_ms=list(samples), median_ms=summary.median, q1_ms=summary.q1, q3_ms=summary.q3)
    answer["throughput"] = _throughput(task, summary)
    if summary.note:
        answer["notes"].append(summary.note)
    return answer


def _book(answer: dict[str, Any], comparison: Comparison, what: str) -> bool:
    answer["error"], answer["tolerance"] = comparison.error, comparison.tolerance
    answer["correct"] = comparison.ok
    if not comparison.ok:
        answer["status"], answer["reason"] = "fail", f"{what}: {comparison.sentence}"
    return comparison.ok


def _first_result(prepared: Prepared, setup: Setup) -> tuple[Any, int | None]:
    """A result to judge, and the most GPU memory in use while it was made, in bytes (inputs included).

    On a GPU an earlier call only tells the result's size, so that its memory can be made NaN first.
    """
    if not setup.on_gpu:
        return prepared.call(), None
    import torch

    size = prepared.call().nbytes
    poison_bytes("cuda", [size], copies=2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = prepared.call()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated()


def _compare_with_baseline(answer: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
    baseline = earlier[0] if earlier else answer
    if answer["status"] == "ok" and baseline["status"] == "ok":
        answer["speedup"] = baseline["median_ms"] / answer["median_ms"]


def _throughput(task: _Task, summary: Summary) -> dict[str, Any] | None:
    work = task.scenario.throughput(task.setup, task.inputs)
    return None if work is None else {"value": work.amount / (summary.median / 1e3), "unit": work.unit}


def _verdict(answers: list[dict[str, Any]]) -> tuple[str, str]:
    failed = [a for a in answers if a["status"] == "fail"]
    if failed:
        return "fail", "; ".join(f"{a['name']}: {a['reason']}" for a in failed)
    if all(a["status"] == "skip" for a in answers):
        return "skip", "; ".join(f"{a['name']}: {a['reason']}" for a in answers)
    return "ok", ""


def _blank(variant: Variant, status: str, reason: str = "") -> dict[str, Any]:
    return {
        "name": variant.name,
        "label": variant.label,
        "baseline": False,
        "status": status,
        "reason": reason,
        "correct": None,
        "error": None,
        "tolerance": None,
        "samples_ms": [],
        "median_ms": None,
        "q1_ms": None,
        "q3_ms": None,
        "speedup": None,
        "throughput": None,
        "peak_vram_bytes": None,
        "compile_seconds": None,
        "notes": [],
    }


def _event(
    scenario: Scenario, setup: Setup, status: str, reason: str, variants: list[dict[str, Any]]
) -> dict[str, Any]:
    known, name = _surroundings(setup.device) if status != "skip" or variants else ({}, "")
    return {
        "event": "scenario",
        "scenario": scenario.name,
        "title": scenario.title,
        "workload": scenario.workload(setup),
        "device": setup.device,
        "device_name": name,
        "short": setup.short,
        "torch": known.get("torch", ""),
        "status": status,
        "reason": reason,
        "variants": variants,
        "conditions": {**known, "seed": setup.seed, "batch": setup.batch},
        "method_version": METHOD_VERSION,
    }


def _gpu_fault() -> str:
    """Why torch cannot use the GPU, or nothing. Asked first: later the cause would look like a scenario's."""
    import torch

    try:
        torch.ones(1, device="cuda").item()
    except Exception as error:
        return _reason(error)
    return ""


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
