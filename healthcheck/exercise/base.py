"""The words in which an exercise answers. Importable without torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from healthcheck.measure.compare import compare

ABSENT = "not part of this environment"
SENTENCE = 300  # characters of a library's message that a summary can hold


@dataclass(frozen=True)
class Finding:
    """What a passing exercise saw: one sentence, and the numbers behind it."""

    summary: str
    details: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Skip(Exception):
    """Raised when an exercise cannot be asked here (absent package, GPU of another generation); says why."""


class Wrong(Exception):
    """Raised when a library runs and answers wrongly, or is set up wrongly."""

    def __init__(self, summary: str, remedy: str = "") -> None:
        super().__init__(summary)
        self.summary = summary
        self.remedy = remedy


@dataclass(frozen=True)
class Exercise:
    """One library of the stack, run once with its numbers compared.

    `package` is the distribution that it proves ("" for a program), `module` the import without which it
    cannot be asked. `run` takes a device, "cpu" or "cuda", returns a Finding, and raises Skip, Wrong or
    whatever the library itself raises.
    """

    name: str
    code: str
    title: str
    package: str
    gpu_only: bool
    run: Callable[[str], Finding]
    module: str = ""


def need(module: str, package: str = "") -> None:
    """Raise Skip when `module` is not installed, and Wrong when its `package` is and the module is gone.

    One that is installed and broken is no reason to skip.
    """
    if importlib.util.find_spec(module) is not None:
        return
    if package and _installed(package):
        raise Wrong(f"{package} is installed, but its module {module} is gone.")
    raise Skip(ABSENT)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def cuda_fault() -> str:
    """Why CUDA does not start here, or "". A torch that does not import is left to the exercises."""
    try:
        import torch
    except BaseException:
        return ""
    try:
        torch.ones(1, device="cuda").item()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:SENTENCE]
    return ""


def check(what: str, out: Any, ref: Any, tolerance: float) -> float:
    """Return the relative error of `out`; raise Wrong, naming `what`, when it exceeds `tolerance`."""
    result = compare(out, ref, tolerance)
    if not result.ok:
        raise Wrong(f"{what} gives a wrong result: {result.sentence}")
    return result.error
