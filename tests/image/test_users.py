"""Any user, a read-only root, and caches that refuse: torch.compile has to work or say why."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"pids_limit": 8}, "docker run --pids-limit -1 ...  # the limit of 8 processes and threads was met"),
        ({"mem_limit": "400m"}, "docker run --memory 8g ...  # the memory limit of 400 MiB was met"),
        ({"read_only": True}, "docker run --tmpfs /tmp:exec ..."),
    ],
    ids=["processes", "memory", "read-only"],
)
def test_what_a_limit_breaks_names_the_limit_and_nothing_to_reinstall(
    run: Runner, options: dict[str, Any], remedy: str
) -> None:
    ran = run(*VERIFY, "--json", "-", **options)
    assert ran.code == 1 and "Traceback" not in ran.err, ran
    failed = [r for r in results(ran).values() if r["status"] == "fail"]
    assert failed and {r["remedy"] for r in failed} == {remedy}, failed


@pytest.mark.parametrize("processes", [4, 5, 6])
def test_hardly_any_process_is_still_a_report(run: Runner, processes: int) -> None:
    ran = run(*VERIFY, pids_limit=processes)
    assert ran.code == 1 and "Traceback" not in ran.err, ran
    assert "DYN-WORK-008" in ran.out


def test_a_full_output_directory_is_named_before_and_after_the_work(run: Runner) -> None:
    fill = "head -c 70000 /dev/zero > /workspace/output/x 2>/dev/null; "
    tmpfs = {"/workspace/output": "size=64k,uid=1000"}
    verified = run("sh", "-c", fill + " ".join([*VERIFY, "--json", "-"]), tmpfs=tmpfs)
    output = results(verified)["DYN-WORK-002"]
    assert (verified.code, output["status"]) == (3, "fail") and "is full (0 MiB free)" in output["summary"]
    bench = "bench run streams --short --device cpu --output /workspace/output/bench"
    measured = run("sh", "-c", fill + bench, tmpfs=tmpfs)
    assert measured.code == 3 and measured.out == "" and "free some space there" in measured.err


def test_an_output_directory_that_fills_up_meanwhile_loses_no_report(run: Runner) -> None:
    script = (
        "(sleep 2; head -c 2000000 /dev/zero > /workspace/output/fill) 2>/dev/null & "
        "bench run attention streams compile --short --device cpu --output /workspace/output/bench --json /tmp/r.json;"
        " code=$?; cat /tmp/r.json >&2; exit $code"
    )
    ran = run("bash", "-c", script, tmpfs={"/workspace/output": "size=1m,uid=1000"})
    assert ran.code == 3 and "DYN-REPORT-001" in ran.out and "Benchmarks on" in ran.out, ran
    assert json.loads(ran.err[ran.err.index("{\n") :])["exit_code"] == 3


def test_a_workspace_of_another_user_is_named_and_its_cure_works(run: Runner, tmp_path: Any) -> None:
    tmp_path.chmod(0o755)
    refused = run(*VERIFY, "--json", "-", volumes={str(tmp_path): {"bind": "/workspace"}})
    said = results(refused)["DYN-WORK-007"]
    assert refused.code == 3 and "/workspace/project" in said["remedy"], refused
    cured = run(*VERIFY, "--json", "-", volumes={str(tmp_path): {"bind": "/workspace/project"}})
    assert cured.code == 0 and results(cured)["DYN-WORK-007"]["status"] == "pass", cured


def test_a_report_file_that_is_mounted_by_itself_is_written(run: Runner, tmp_path: Any) -> None:
    file = tmp_path / "r.json"
    file.touch()
    file.chmod(0o666)
    ran = run("healthcheck", "facts", "--json", "/r.json", volumes={str(file): {"bind": "/r.json"}})
    assert ran.code == 0 and json.loads(file.read_text())["device"] == "auto", ran


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
