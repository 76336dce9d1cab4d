"""Adding a scenario is adding one file: it is then listed, run, and shown with all of its variants."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.cpu
ROOT = Path(__file__).resolve().parents[2]
ADDED = '''
"""Sums: five ways to add up."""

from healthcheck.bench.added_helper import ways
from healthcheck.bench.scenario import Case, Prepared, Scenario, Variant
from healthcheck.measure.timer import Plan


def prepared(way):
    return lambda setup, inputs: Prepared(lambda: way(inputs))


def made(setup):
    import torch

    return torch.ones(64, dtype=torch.float64)


VARIANTS = tuple(Variant(name, f"by {name}", prepared(way)) for name, way in ways().items())
PLAN = Plan(warmup_seconds=0, seconds=0, least=3, most=3)
SCENARIO = Scenario(
    name="sums",
    title="Sums",
    has_cpu_form=True,
    cases=lambda machine: (Case("small", 1, VARIANTS, plan=PLAN),),
    workload=lambda setup: "64 ones",
    inputs=made,
    reference=lambda setup, inputs: inputs.sum()[None],
    tolerance=lambda setup: 1e-12,
)
'''
HELPER = '''
"""No scenario itself, and disables none."""


def ways():
    return {
        "sum": lambda x: x.sum()[None],
        "mean": lambda x: x.mean()[None] * 64,
        "dot": lambda x: (x @ x)[None],
        "cumsum": lambda x: x.cumsum(0)[-1:],
        "norm": lambda x: x.norm()[None] ** 2,
    }
'''


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "healthcheck", directory / "healthcheck", ignore=shutil.ignore_patterns("*.pyc"))
    (directory / "healthcheck/bench/sums.py").write_text(ADDED)
    (directory / "healthcheck/bench/added_helper.py").write_text(HELPER)
    return directory


def bench(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "healthcheck.cli.bench", *arguments],
        cwd=house,
        env={"PATH": os.environ["PATH"], "DYNO_STACK_PYTHON": sys.executable, "HOME": str(house)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_listed_beside_the_others(house: Path) -> None:
    listed = json.loads(bench(house, "list", "--json", "-").stdout)
    assert {"name": "sums", "title": "Sums", "has_cpu_form": True} in listed
    assert len(listed) > 5


def test_all_of_its_variants_are_run_and_shown(house: Path) -> None:
    ran = bench(house, "run", "sums", "--device", "cpu", "--json", "-")
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(ran.stdout)["benchmarks"]
    assert [(v["name"], v["status"], v["correct"]) for v in found["variants"]] == [
        (name, "ok", True) for name in ("sum", "mean", "dot", "cumsum", "norm")
    ]
    for variant in found["variants"]:
        assert len(variant["samples_ms"]) == 3
        assert variant["label"] in ran.stderr
    assert "pass    benchmarks  1 of 1 passed" in ran.stderr
