"""The commands as a user types them: what goes to which stream, and with which exit code they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from samples import HEALTHY

from healthcheck import __version__
from healthcheck.cli import bench
from healthcheck.drive import budget, exercises
from healthcheck.output import cannot_write
from healthcheck.result import Exit, Status, exit_code

REPOSITORY = Path(__file__).resolve().parents[2]

# Stands in for the stack's Python: it answers for `-m healthcheck.exercise` and `-m healthcheck.bench`.
STACK_PYTHON = f"""#!{sys.executable}
import os, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from healthcheck import wire
_, module, *arguments = sys.argv[1:]
act = os.environ.get("ACT", "")
print("noise on stdout")
if module == "healthcheck.exercise":
    for name in arguments[2:]:
        wire.emit(dict(event="start", name=name))
        if act == "hang":
            open(os.environ["PID_FILE"], "w").write(str(os.getpid()))
            time.sleep(60)
        wire.emit(dict(event="exercise", name=name, status="fail" if act == "fail" else "pass",
                       summary="said", remedy="", details={{}}, seconds=0.1))
else:
    device = arguments[arguments.index("--device") + 1]
    variant = dict(name="a", label="a", baseline=True, status="ok", correct=True, median_ms=1.0)
    for name in arguments[:arguments.index("--device")]:
        here = dict(scenario=name, case="one")
        wire.emit(dict(event="start", scenario=name))
        wire.emit(dict(event="plan", scenario=name, variants=1))
        wire.emit(dict(event="progress", variant="a", **here))
        if act == "die-in-streams" and name == "streams":
            os._exit(9)
        wire.emit(dict(event="variant", **here, **variant))
        if act == "hang-in-streams" and name == "streams":
            open(os.environ["PID_FILE"], "w").write(str(os.getpid()))
            time.sleep(60)
        wire.emit(dict(event="case", title="t", device=device, status="ok", variants=[variant], **here))
        wire.emit(dict(event="end", scenario=name))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A played stack: an interpreter, and the metadata of every package that an exercise asks for."""
    directory = tmp_path_factory.mktemp("site")
    python = directory / "bin/python"
    python.parent.mkdir()
    python.write_text(STACK_PYTHON)
    python.chmod(0o755)
    for package in sorted({exercise.package for exercise in exercises.listed()} - {""}):
        metadata = (
            directory / f"lib/python3.13/site-packages/{package.replace('-', '_')}-1.dist-info/METADATA"
        )
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    return directory


def environment(site: Path, **extra: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "DYNO_STACK_PYTHON": str(site / "bin/python"),
        "DYNO_MANIFEST": str(site / "none.json"),
        **extra,
    }


def command(program: str, *arguments: str) -> list[str]:
    module = {"healthcheck": "healthcheck", "bench": "healthcheck.cli.bench"}[program]
    return [sys.executable, "-m", module, *arguments]


def call(site: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment(site, **extra),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_verify_on_the_cpu_ends_with_0_and_reports_on_stdout(site: Path) -> None:
    ended = call(site, "healthcheck", "verify", "--device", "cpu")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "needs a GPU: CPU use declared" in ended.stdout.replace("\n", " ").replace("  ", " ")
    assert "noise on stdout" not in ended.stdout


def test_verify_without_a_gpu_runs_the_rest_and_ends_with_3(site: Path) -> None:
    ended = call(site, "healthcheck", "verify")
    assert ended.returncode == 3
    assert "FAIL DYN-GPU-001" in ended.stdout
    assert "docker run --rm -it --gpus all dyno" in ended.stdout
    assert "needs a GPU: see DYN-GPU-001" in ended.stdout.replace("\n", " ").replace("  ", " ")


def test_json_on_stdout_is_alone_there(site: Path) -> None:
    ended = call(site, "healthcheck", "verify", "--json", "-", DYNO_DEVICE="cpu")
    report = json.loads(ended.stdout)
    assert (report["command"], report["device"], report["exit_code"]) == ("verify", "cpu", 0)
    assert "exit code 0" in ended.stderr


def test_files_are_written_whole_and_readable_for_others(site: Path, tmp_path: Path) -> None:
    files = tmp_path / "r.json", tmp_path / "r.xml"
    ended = call(
        site, "healthcheck", "verify", "--device=cpu", f"--json={files[0]}", f"--junit={files[1]}", ACT="fail"
    )
    assert ended.returncode == 1
    assert json.loads(files[0].read_text())["exit_code"] == 1
    assert ElementTree.parse(files[1]).find("testsuite/testcase/failure") is not None
    assert files[0].stat().st_mode & 0o444 == 0o444
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "r.xml"]


def test_what_is_no_plain_file_is_written_to_and_not_replaced(site: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert call(site, "healthcheck", "facts", "--json", str(pipe)).returncode == 0
        assert json.loads(reader.communicate(timeout=10)[0])["container"]["uid"] == os.getuid()
    assert pipe.is_fifo()


@pytest.mark.parametrize("target", ["/nowhere/report.json", "/proc/report.json", "/tmp"])
def test_a_file_that_cannot_be_written_is_one_line_and_3(site: Path, target: str) -> None:
    ended = call(site, "healthcheck", "verify", "--json", target)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1
    assert target in ended.stderr


def test_a_file_that_cannot_be_written_after_all_fails_every_form_and_loses_none(
    site: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "r.json"
    ended = call(site, "healthcheck", "verify", "--device=cpu", "--json", str(kept), "--junit", "/dev/full")
    assert ended.returncode == 3
    assert "FAIL DYN-REPORT-001 report written" in ended.stdout
    assert "Cannot write /dev/full: No space left on device." in ended.stdout
    assert "exit code 3" in ended.stdout
    report = json.loads(kept.read_text())
    assert report["exit_code"] == 3
    assert report["results"][-1]["code"] == "DYN-REPORT-001"


def test_a_required_code_that_does_not_pass_fails(site: Path) -> None:
    both = ("--require", "DYN-LIB-001, DYN-LIB-002")
    assert call(site, "healthcheck", "verify", "--device=cpu", *both).returncode == 0
    assert call(site, "healthcheck", "verify", "--device=cpu", "--require", "dyn-lib-001").returncode == 0
    assert call(site, "healthcheck", "verify", "--device=cpu", "--require", "DYN-GPU-001").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "extra", "said"),
    [
        (["healthcheck", "verify", "--device", "tpu"], {}, "--device=tpu: one of auto, cuda, cpu is needed"),
        (["healthcheck", "verify"], {"DYNO_DEVICE": "tpu"}, "DYNO_DEVICE=tpu"),
        (["healthcheck", "selftest"], {"SELFTEST_TIMEOUT": "abc"}, "SELFTEST_TIMEOUT=abc"),
        (["healthcheck", "selftest"], {"SELFTEST": "on"}, "SELFTEST=on"),
        (["healthcheck", "verify", "--time-limit", "0"], {}, "above 0"),
        (["healthcheck", "verify", "--time-limit", "1e12"], {}, "--time-limit 1e+12: a number of seconds"),
        (["healthcheck", "selftest"], {"SELFTEST_TIMEOUT": "99999999999"}, "above 0 and up to 86400"),
        (
            ["healthcheck", "verify", "--require", "NOPE"],
            {},
            "--require NOPE: this command has no such check. --list names them all.",
        ),
        (
            ["bench", "run", "attention", "--require", "dyn-bench-streams"],
            {},
            "--require DYN-BENCH-STREAMS: this command has no such check.",
        ),
        (["healthcheck", "selftest", "--require", "DYN-GPU-01"], {}, "Did you mean DYN-GPU-001?"),
        (
            ["bench", "run", "attention", "flops"],
            {},
            "unknown scenario flops; known: attention, compile, llama-attention, roofline, streams",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_2(
    site: Path, arguments: list[str], extra: dict[str, str], said: str
) -> None:
    ended = call(site, *arguments, **extra)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert said in ended.stderr


def test_an_unknown_verb_or_option_is_2_without_a_traceback(site: Path) -> None:
    for arguments in (["healthcheck", "frobnicate"], ["healthcheck", "verify", "--fast"], ["bench"]):
        ended = call(site, *arguments)
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr


def test_the_selftest_writes_to_stderr_only_and_runs_the_benchmarks(site: Path) -> None:
    ended = call(site, "healthcheck", "selftest", DYNO_DEVICE="cpu")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Benchmarks on" in ended.stderr
    assert "pass    benchmarks  3 of 3 passed" in ended.stderr


def test_a_benchmark_that_dies_fails_alone_and_the_rest_is_kept(site: Path) -> None:
    ended = call(site, "bench", "run", "--device", "cpu", "--short", "--json", "-", ACT="die-in-streams")
    by_name = {b["scenario"]: b for b in json.loads(ended.stdout)["benchmarks"]}
    assert ended.returncode == 1
    assert {name: b["status"] for name, b in by_name.items()} == {
        "attention": "ok",
        "compile": "ok",
        "llama-attention": "ok",
        "roofline": "ok",
        "streams": "fail",
    }
    assert "exit code 9" in by_name["streams"]["reason"]


def test_the_selftest_that_is_off_checks_nothing(site: Path) -> None:
    ended = call(site, "healthcheck", "selftest", SELFTEST="off")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "DYN-" not in ended.stderr


def test_a_hung_selftest_still_reports_what_it_was_in(site: Path, tmp_path: Path) -> None:
    hung = {"ACT": "hang", "PID_FILE": str(tmp_path / "pid"), "SELFTEST_TIMEOUT": "6", "DYNO_DEVICE": "cpu"}
    ended = call(site, "healthcheck", "selftest", **hung)
    assert ended.returncode == 1
    assert "FAIL DYN-SELFTEST-001" in ended.stderr
    assert "not finished: " in ended.stderr.replace("\n", " ")


def test_sigterm_ends_the_command_and_its_child_at_once(site: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    process = subprocess.Popen(
        command("healthcheck", "verify", "--device", "cpu"),
        cwd=REPOSITORY,
        env=environment(site, ACT="hang", PID_FILE=str(pid_file)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not (pid_file.exists() and pid_file.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr) == (128 + signal.SIGTERM, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_an_interrupted_benchmark_keeps_what_it_measured(
    site: Path, tmp_path: Path, number: signal.Signals
) -> None:
    pid_file, file, kept = tmp_path / "pid", tmp_path / "report.json", tmp_path / "kept"
    asked = ("run", "attention", "streams", "compile", "--device", "cpu", "--json", str(file))
    with subprocess.Popen(
        command("bench", *asked, "--output", str(kept)),
        cwd=REPOSITORY,
        env=environment(site, ACT="hang-in-streams", PID_FILE=str(pid_file)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (pid_file.exists() and pid_file.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "Traceback" not in stderr
    assert "Interrupted: this is what there was until then." in stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    report = json.loads(file.read_text())
    assert report["exit_code"] == 128 + number
    done, cut, late = report["benchmarks"]
    assert (done["scenario"], done["status"], done["variants"][0]["median_ms"]) == ("attention", "ok", 1.0)
    assert (cut["scenario"], cut["status"], cut["variants"][0]["median_ms"]) == ("streams", "fail", 1.0)
    assert f"because {number.name} interrupted the command" in cut["reason"]
    assert (late["status"], late["reason"]) == ("skip", f"not begun: interrupted by {number.name}")
    (directory,) = kept.iterdir()
    assert json.loads((directory / "report.json").read_text())["exit_code"] == 128 + number
    assert "attention one a (1 of 1)" in (directory / "log.txt").read_text()


@pytest.mark.parametrize("program", ["healthcheck", "bench"])
def test_both_programs_tell_their_version(site: Path, program: str) -> None:
    ended = call(site, program, "--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"Dyno {__version__}\n", "")


@pytest.mark.parametrize(
    "verb",
    [("healthcheck", "verify"), ("healthcheck", "selftest"), ("bench", "run", "attention", "streams")],
    ids=" ".join,
)
def test_the_codes_that_are_listed_are_those_that_are_answered(
    site: Path, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    listed = [line.split()[0] for line in call(site, *verb, "--list").stdout.splitlines()]
    file = tmp_path / "report.json"
    call(site, *verb, "--device", "cpu", "--json", str(file))
    assert sorted(listed) == sorted(result["code"] for result in json.loads(file.read_text())["results"])


@pytest.mark.parametrize(
    "reader", ["| true", "| head -1", "> /dev/full", "2> /dev/full | head -1", ">&- 2>&-"]
)
@pytest.mark.parametrize(
    ("verb", "code"),
    [("healthcheck verify", 3), ("healthcheck verify --device cpu", 0), ("bench run attention", 3)],
)
def test_the_reports_exit_code_is_the_process_own_whoever_reads_along(
    site: Path, tmp_path: Path, verb: str, code: int, reader: str
) -> None:
    file = tmp_path / "report.json"
    program, *arguments = verb.split()
    line = " ".join([*command(program, *arguments, "--json", str(file)), reader])
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}} > {tmp_path / 'code'}"],
        env=environment(site),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(file.read_text())["exit_code"] == code
    assert (tmp_path / "code").read_text() == f"{code}\n"
    assert "Traceback" not in done.stderr


def test_bench_list_names_the_scenarios(site: Path) -> None:
    assert call(site, "bench", "list").stdout.startswith("attention ")
    listed = json.loads(call(site, "bench", "list", "--json", "-").stdout)
    names = [s["name"] for s in listed]
    assert names == ["attention", "compile", "llama-attention", "roofline", "streams"]


def test_bench_run_measures_what_was_asked(site: Path) -> None:
    ended = call(site, "bench", "run", "attention", "--device", "cpu", "--json", "-")
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert [b["scenario"] for b in report["benchmarks"]] == ["attention"]


def test_bench_run_keeps_its_results_in_a_directory_of_their_own(site: Path, tmp_path: Path) -> None:
    asked = ("bench", "run", "attention", "streams", "--device", "cpu", "--output", str(tmp_path / "bench"))
    for runs in (1, 2):
        ended = call(site, *asked)
        assert ended.returncode == 0, ended.stderr
        directories = sorted((tmp_path / "bench").iterdir())
        assert len(directories) == runs
    for directory in directories:
        assert sorted(f.name for f in directory.iterdir()) == ["junit.xml", "log.txt", "report.json"]
        report = json.loads((directory / "report.json").read_text())
        assert [b["scenario"] for b in report["benchmarks"]] == ["attention", "streams"]
        assert ElementTree.parse(directory / "junit.xml").getroot().tag == "testsuites"
        log = (directory / "log.txt").read_text()
        assert "attention one a (1 of 1)" in log and "exit code 0" in log
    assert "attention one a (1 of 1)" in ended.stderr  # with no terminal, a line for each measurement
    assert f"Kept in {tmp_path / 'bench'}" in ended.stdout


def test_an_output_that_cannot_be_made_ends_with_3_before_anything_is_measured(site: Path) -> None:
    ended = call(site, "bench", "run", "attention", "--device", "cpu", "--output", "/dev/null")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1 and "/dev/null" in ended.stderr


def test_a_kept_report_is_shown_again_as_text_and_as_a_page(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    call(site, "bench", "run", "attention", "--device", "cpu", "--json", str(file))
    shown = call(site, "bench", "report", str(file))
    page = call(site, "bench", "report", str(file), "--markdown")
    assert (shown.returncode, page.returncode) == (0, 0)
    assert "attention" in shown.stdout
    assert page.stdout.startswith("# ") and "| " in page.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read"), ("{", "is no report"), ('{"schema_version": 1}', "is no report")],
)
def test_a_file_that_is_no_report_is_one_line_and_2(
    site: Path, tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "report.json"
    if content is not None:
        file.write_text(content)
    ended = call(site, "bench", "report", str(file))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1 and said in ended.stderr


def test_a_benchmark_where_cuda_does_not_start_has_the_verdict_and_the_cure_of_verify(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "collect", lambda device: HEALTHY)
    monkeypatch.setattr(
        exercises, "cuda_error", lambda deadline: "Error 804: forward compatibility was attempted"
    )
    found = bench._found("auto", budget.Deadline(60))
    assert (found.device, exit_code(found.results)) == ("cpu", Exit.UNUSABLE)
    (failed,) = [result for result in found.results if result.status is Status.FAIL]
    assert failed.code == "DYN-CUDA-002"
    assert "Upgrade the host's NVIDIA driver" in failed.remedy and "bench run" not in failed.remedy


def test_bench_run_without_a_gpu_ends_with_3_and_measures_nothing(site: Path) -> None:
    ended = call(site, "bench", "run", "attention", "--json", "-")
    assert ended.returncode == 3
    assert json.loads(ended.stdout)["benchmarks"] == []


def test_facts_are_json_and_quick_to_gather(site: Path) -> None:
    ended = call(site, "healthcheck", "facts", "--json", "-")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["container"]["uid"] == os.getuid()


def test_a_report_survives_a_terminal_that_knows_ascii_only(site: Path) -> None:
    assert call(site, "healthcheck", "verify", "--device=cpu", PYTHONIOENCODING="ascii").returncode == 0


def test_a_reader_that_goes_away_leaves_no_traceback(site: Path) -> None:
    code = f"{sys.executable} -m healthcheck facts | true"
    ended = subprocess.run(
        ["bash", "-c", code],
        env=environment(site),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr


def test_the_command_line_never_imports_the_stack() -> None:
    code = (
        "import sys; from healthcheck.cli import bench, health;"
        "from healthcheck.drive import exercises, scenarios;"
        "exercises.listed(); scenarios.listed();"
        "print(*{'torch', 'numpy', 'transformers', 'cv2'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


@pytest.mark.parametrize("redirection, code", [(">&-", 0), (">/dev/full", 3)])
def test_a_stdout_that_takes_nothing_leaves_no_traceback(site: Path, redirection: str, code: int) -> None:
    line = f'"$0" -m healthcheck facts --device cpu {redirection}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        env=environment(site),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert code == 0 or "No space left" in done.stderr


def test_a_directory_that_only_another_uid_may_write_names_the_way_round() -> None:
    stop = cannot_write(Path("/workspace/output/bench.json"), PermissionError(13, "Permission denied"))
    assert "DYNO_UID=$(id -u)" in str(stop) and stop.code is Exit.UNUSABLE
