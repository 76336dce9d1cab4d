"""The list of scenarios, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from healthcheck.bench import METHOD_VERSION, SCENARIOS, load

ROOT = Path(__file__).parents[2]


def test_scenarios_are_found_by_their_files() -> None:
    assert {name: info.has_cpu_form for name, info in SCENARIOS.items()} == {
        "attention": True,
        "compile": True,
        "streams": False,
    }


def test_each_has_a_baseline_and_another_variant_and_is_described() -> None:
    for name, info in SCENARIOS.items():
        scenario = load(name)
        assert (scenario.name, scenario.title) == (name, info.title)
        assert len({v.name for v in scenario.variants}) == len(scenario.variants) >= 2


def test_the_method_has_a_version() -> None:
    assert METHOD_VERSION == 1


def test_the_list_and_the_recipes_need_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import healthcheck.bench, healthcheck.recipes; print(*healthcheck.bench.SCENARIOS)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["attention", "compile", "streams"]


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
