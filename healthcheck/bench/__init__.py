"""Scenarios: workloads in named variants, the first of them the baseline. Importable without torch.

Every module here with a `SCENARIO` is one, so adding a scenario is adding a file.
`python -m healthcheck.bench NAME... --device cpu|cuda [--short]` runs them in the stack's Python.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from healthcheck.bench.scenario import Scenario
from healthcheck.measure import METHOD_VERSION

__all__ = ["METHOD_VERSION", "SCENARIOS", "ScenarioInfo", "load"]

_MACHINERY = ("scenario", "runner", "conditions", "__main__")


@dataclass(frozen=True)
class ScenarioInfo:
    """What a list of scenarios shows."""

    name: str
    title: str
    has_cpu_form: bool
    at_start: bool


def _discover() -> dict[str, Scenario]:
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _MACHINERY)
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [module.SCENARIO for module in modules if hasattr(module, "SCENARIO")]
    return {scenario.name: scenario for scenario in found}


_FOUND = _discover()
SCENARIOS: Mapping[str, ScenarioInfo] = MappingProxyType(
    {name: ScenarioInfo(name, s.title, s.has_cpu_form, s.at_start) for name, s in _FOUND.items()}
)


def load(name: str) -> Scenario:
    """The scenario called `name`; KeyError when there is none."""
    return _FOUND[name]
