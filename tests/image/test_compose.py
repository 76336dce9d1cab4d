"""The compose file: what it promises without a GPU, and what the engine says where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run compose with its variables as `environment` says, and none from whoever runs the tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DYNO_")}
    return subprocess.run(
        ["docker", "compose", "--project-name", "dyno-test", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def services() -> Any:
    done = compose("--profile", "*", "config", "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_nothing_starts_by_itself_and_only_the_gpu_forms_reserve_one(services: Any) -> None:
    assert set(services) == {"shell", "selftest", "bench", "bench-cpu"}
    assert all(s["profiles"] for s in services.values())
    reserving = {name for name, s in services.items() if "deploy" in s}
    assert reserving == {"shell", "selftest", "bench"}


def test_every_form_is_built_here_never_pulled_and_has_shared_memory(services: Any) -> None:
    for service in services.values():
        assert service["pull_policy"] == "never" and service["build"]["target"] == "runtime"
        assert int(service["shm_size"]) >= 2**30
        assert service["user"] == "1000:0"


def test_the_benchmarks_leave_their_report_on_the_host(services: Any) -> None:
    for name in ("bench", "bench-cpu"):
        assert services[name]["command"] == ["bench", "run", "--output", "/workspace/output/bench"]
        assert any(
            v["target"] == "/workspace/output" and v["type"] == "bind" for v in services[name]["volumes"]
        )


def test_a_wrong_number_of_gpus_is_refused() -> None:
    done = compose("--profile", "gpu", "config", GPU_COUNT="none")
    assert done.returncode != 0 and "count" in done.stderr


def test_tokens_are_passed_on_only_where_they_are_set(services: Any) -> None:
    assert not services["shell"]["environment"].get("HF_TOKEN")
    told = json.loads(
        compose(
            "--profile", "*", "config", "--format", "json", HF_TOKEN="t", HF_ENDPOINT="https://hf-mirror.com"
        ).stdout
    )
    environment = told["services"]["bench-cpu"]["environment"]
    assert (environment["HF_TOKEN"], environment["HF_ENDPOINT"]) == ("t", "https://hf-mirror.com")


def test_bench_cpu_leaves_results_that_belong_to_the_caller(image: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    shutil.chown(tmp_path, 1234)
    shutil.chown(output, 1234)
    done = compose(
        "run", "--rm", "-T", "bench-cpu", DYNO_IMAGE=image, DYNO_UID="1234", DYNO_OUTPUT=str(output)
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        (results,) = (output / "bench").iterdir()
        assert sorted(f.name for f in results.iterdir()) == ["junit.xml", "log.txt", "report.json"]
        assert {f.stat().st_uid for f in (results, *results.iterdir())} == {1234}
        report = json.loads((results / "report.json").read_text())
        status = {b["scenario"]: b["status"] for b in report["benchmarks"]}
        assert status == dict.fromkeys(
            ("attention", "compile", "llama-attention", "roofline", "streams"), "ok"
        )
        assert "attention" in done.stderr, "with no terminal, a line for each measurement"
    finally:
        compose("down", "--volumes")


def test_without_an_nvidia_runtime_the_gpu_form_does_not_start(image: str) -> None:
    done = compose("run", "--rm", "-T", "selftest", DYNO_IMAGE=image)
    compose("down", "--volumes")
    if done.returncode == 0:
        pytest.skip("this engine has an NVIDIA runtime")
    assert "could not select device driver" in done.stderr
