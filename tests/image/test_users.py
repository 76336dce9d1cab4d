"""Any user, a read-only root, and caches that refuse: torch.compile has to work or say why."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Runner, results

VERIFY = ("healthcheck", "verify", "--device", "cpu")
COMPILE = "import torch; f = torch.compile(lambda x: x.sin() * 2); x = torch.rand(8); assert torch.allclose(f(x), x.sin() * 2)"


def test_any_uid_on_a_read_only_root_verifies_and_compiles(run: Runner) -> None:
    ran = run(*VERIFY, "--json", "-", user="4242:0", read_only=True, tmpfs={"/tmp": ""})
    assert ran.code == 0, ran
    compiled = [r for r in results(ran).values() if r["title"].startswith("torch.compile")]
    assert [r["status"] for r in compiled] == ["pass"]


@pytest.mark.parametrize("user", ["1000:0", "4242:0", "4242:4242"])
def test_torch_compile_works_for(run: Runner, user: str) -> None:
    ran = run("python", "-c", COMPILE, user=user)
    assert (ran.code, ran.err) == (0, ""), ran


def test_a_cache_that_forbids_execution_is_named_with_its_cure(run: Runner) -> None:
    ran = run(*VERIFY, "--json", "-", tmpfs={"/workspace/.cache": "uid=1000"})
    named = [
        r for r in results(ran).values() if r["status"] == "fail" and "/workspace/.cache" in r["summary"]
    ]
    assert ran.code == 1 and named, ran
    assert any("/workspace/.cache:exec" in r["remedy"] for r in named)


def test_the_cure_for_a_cache_that_forbids_execution_works(run: Runner) -> None:
    ran = run("python", "-c", COMPILE, tmpfs={"/workspace/.cache": "exec,mode=1777"})
    assert ran.code == 0, ran


@pytest.mark.parametrize("size, status", [("64m", "warn"), ("2g", "pass")])
def test_shared_memory_is_judged_by_its_size(run: Runner, size: str, status: str) -> None:
    ran = run(*VERIFY, "--json", "-", shm_size=size)
    shm = [r for r in results(ran).values() if r["title"] == "shared memory"]
    assert [r["status"] for r in shm] == [status]
    assert status == "pass" or "--shm-size" in shm[0]["remedy"]


def test_cpu_use_by_intent_is_healthy(run: Runner) -> None:
    ran = run("healthcheck", "probe", environment={"DYNO_DEVICE": "cpu"})
    assert ran.code == 0, ran


def test_the_probe_without_a_gpu_is_unhealthy_and_says_why(run: Runner) -> None:
    ran = run("healthcheck", "probe")
    assert ran.code == 1 and len((ran.out + ran.err).strip().splitlines()) == 1
    assert "Traceback" not in ran.err


def test_required_gpu_checks_fail_on_the_cpu(run: Runner) -> None:
    assert run(*VERIFY, "--require", "DYN-GPU-001").code == 1


def test_an_unwritable_output_file_is_one_line_and_3(run: Runner) -> None:
    ran = run(*VERIFY, "--json", "/proc/nowhere/report.json")
    assert ran.code == 3 and "Traceback" not in ran.err and "/proc/nowhere" in ran.err


def test_a_report_is_written_whole(run: Runner, tmp_path: Any) -> None:
    tmp_path.chmod(0o777)
    ran = run(
        *VERIFY, "--json", "/out/r.json", "--junit", "/out/r.xml", volumes={str(tmp_path): {"bind": "/out"}}
    )
    assert ran.code == 0, ran
    assert {f.name for f in tmp_path.iterdir()} == {"r.json", "r.xml"}
    assert (tmp_path / "r.xml").read_text().startswith("<?xml")
