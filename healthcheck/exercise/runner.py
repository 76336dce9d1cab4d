"""Run exercises one after the other; whatever one of them does, the others still get their turn."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from healthcheck import wire
from healthcheck.exercise import EXERCISES
from healthcheck.exercise.base import SENTENCE, Exercise, Skip, Wrong, cuda_fault, need
from healthcheck.remedies import reinstall, remedy_for

Emit = Callable[[Mapping[str, Any]], None]
_WARNINGS_KEPT = 10


def main(arguments: Sequence[str]) -> int:
    wire.die_with_parent()
    options = _parse(arguments)
    if options.list:
        wire.emit({"event": "list", "exercises": [_describe(e) for e in EXERCISES]})
        return 0
    by_name = {e.name: e for e in EXERCISES}
    unknown = [name for name in options.names if name not in by_name]
    if unknown:
        print(f"no exercise named {', '.join(unknown)}; there are: {', '.join(by_name)}", file=sys.stderr)
        return 2
    # One or two kernels do not repay a pool of compiler processes, each of which imports torch first.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    chosen = [by_name[name] for name in options.names] or list(EXERCISES)
    if options.device == "cuda":
        fault = cuda_fault()
        wire.emit({"event": "device", "error": fault})
        if fault or options.start:
            return 0  # said once: every exercise would only say it again
    run_all(chosen, options.device, wire.emit, _start_again)
    return 0


def run_all(
    chosen: Sequence[Exercise],
    device: str,
    emit: Emit,
    start_again: Callable[[str, Sequence[str]], None],
) -> None:
    """Run `chosen` on `device` ("cpu" or "cuda"), sending `emit` a start and an answer for each.

    A CUDA error can leave the whole process without a usable GPU. The rest then belongs to a new process:
    `start_again(device, names)`, which does not return in real life.
    """
    for index, exercise in enumerate(chosen):
        emit({"event": "start", "name": exercise.name})
        answer = attempt(exercise, device)
        emit({"event": "exercise", "name": exercise.name, **answer})
        rest = [e.name for e in chosen[index + 1 :]]
        if rest and device == "cuda" and answer["status"] == "fail" and _context_is_broken():
            start_again(device, rest)
            return


def attempt(exercise: Exercise, device: str) -> dict[str, Any]:
    """One exercise's answer: status, summary, remedy, details and the seconds it took."""
    started = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        answer = _ask(exercise, device)
    heard = list(dict.fromkeys(f"{w.category.__name__}: {_line(str(w.message))}" for w in caught))
    if heard:
        answer["details"] = {**answer["details"], "warnings": heard[:_WARNINGS_KEPT]}
    return {**answer, "seconds": round(time.monotonic() - started, 3)}


def _ask(exercise: Exercise, device: str) -> dict[str, Any]:
    if exercise.gpu_only and device == "cpu":
        return _answer("skip", "needs a GPU")
    try:
        if exercise.module:
            need(exercise.module, exercise.package)
            importlib.import_module(exercise.module)
        finding = exercise.run(device)
        _settle(device)
    except Skip as skip:
        return _answer("skip", str(skip))
    except Wrong as wrong:
        return _answer("fail", wrong.summary, wrong.remedy or reinstall(exercise.package))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a library that calls sys.exit has failed too
        return _failure(exercise, error)
    return _answer("pass", finding.summary, details=dict(finding.details))


def _failure(exercise: Exercise, error: BaseException) -> dict[str, Any]:
    text = f"{type(error).__name__}: {error}"
    what = "does not import" if isinstance(error, ImportError) else "does not run"
    chain = "\n".join(_chain(error))
    return _answer(
        "fail",
        f"{exercise.title} {what}: {telling_line(chain)}",
        remedy_for(chain, exercise.package),
        {"error": text[-4000:]},
    )


def _chain(error: BaseException | None) -> list[str]:
    """The error and what it came from: libraries wrap the telling message in their own."""
    texts: list[str] = []
    while error is not None and len(texts) < 8:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return texts


def telling_line(text: str) -> str:
    """The one line of a long message that names the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = (
        "failed to map segment",
        "noexec",
        "compiler",
        "No such file",
        "Permission denied",
        "undefined symbol",
    )
    for mark in marks:
        for line in lines:
            if mark in line:
                return _line(line)
    # A sentence that ends in a colon has its point in the next line.
    return _line(" ".join(lines[: 2 if lines[0].endswith(":") else 1])) if lines else "no message"


def _line(text: str) -> str:
    return " ".join(text.split())[:SENTENCE]


def _answer(
    status: str, summary: str, remedy: str = "", details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"status": status, "summary": summary, "remedy": remedy, "details": dict(details or {})}


def _settle(device: str) -> None:
    """Wait for the GPU, so that a kernel's late error is laid at the right door."""
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None:
        torch.cuda.synchronize()


def _context_is_broken() -> bool:
    try:
        _settle("cuda")
    except Exception:
        return True
    return False


def _start_again(device: str, names: Sequence[str]) -> None:
    """Replace this process by a fresh one. The answer pipe and the tie to the parent outlive exec."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "healthcheck.exercise", "--device", device, *names])


def _describe(exercise: Exercise) -> dict[str, Any]:
    return {
        "name": exercise.name,
        "code": exercise.code,
        "title": exercise.title,
        "package": exercise.package,
        "gpu_only": exercise.gpu_only,
    }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m healthcheck.exercise")
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises to run; all when none is named")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--start", action="store_true", help="say whether CUDA starts, and end")
    parser.add_argument("--list", action="store_true", help="print names and codes as JSON and end")
    return parser.parse_args(arguments)
