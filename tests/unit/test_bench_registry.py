"""The list of scenarios, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from healthcheck.bench import SCENARIOS, load
from healthcheck.bench.scenario import Machine

ROOT = Path(__file__).parents[2]


MACHINES = [
    Machine("cuda", short=False, memory=141 * 2**30),
    Machine("cuda", short=False, memory=8 * 2**30),
    Machine("cuda", short=True, memory=24 * 2**30),
    Machine("cpu", short=False),
    Machine("cpu", short=True),
]
NAMES = ["attention", "compile", "llama-attention", "roofline", "streams"]


def test_scenarios_are_found_by_their_files_and_all_have_a_cpu_form() -> None:
    assert {name: info.has_cpu_form for name, info in SCENARIOS.items()} == dict.fromkeys(NAMES, True)
    assert {name: load(name).title for name in NAMES} == {n: i.title for n, i in SCENARIOS.items()}


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_cases_and_variants_have_names_of_their_own_and_rivals(name: str, machine: Machine) -> None:
    cases = load(name).cases(machine)
    assert len({case.name for case in cases}) == len(cases) >= 1
    for case in cases:
        assert len({v.name for v in case.variants}) == len(case.variants) >= 1
        assert case.batch >= 1
        assert not case.variants[0].part, "the baseline is a rival"


def test_the_list_and_the_recipes_need_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import healthcheck.bench, healthcheck.recipes; print(*healthcheck.bench.SCENARIOS)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == NAMES


def test_an_unknown_scenario_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "healthcheck.bench", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "attention" in done.stderr
