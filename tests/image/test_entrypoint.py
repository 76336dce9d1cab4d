"""What happens between `docker run` and the user's command."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from docker.models.containers import Container

from .conftest import Runner

# Stands where the image's own does, so that the entrypoint meets a self-test of the test's choosing.
FAKE = "printf '#!/bin/sh\\n%s\\n' \"$FAKE\" > /usr/local/bin/healthcheck; "
WITH_FAKE = {
    "user": "0:0",
    "entrypoint": [
        "sh",
        "-c",
        FAKE + 'exec /usr/bin/tini -s -g -- /usr/local/bin/dyno-entrypoint "$@"',
        "sh",
    ],
}


def faked(run: Runner, script: str, *command: str, **environment: str) -> Any:
    return run(*command, environment={"SELFTEST": "full", "FAKE": script, **environment}, **WITH_FAKE)


@pytest.mark.parametrize("kind", ["full", "verify"])
def test_without_a_gpu_the_report_names_the_flag_and_the_command_still_runs(run: Runner, kind: str) -> None:
    ran = run("python", "-c", "print(1)", environment={"SELFTEST": kind})
    assert (ran.code, ran.out) == (0, "1\n")
    assert "No GPU is visible" in ran.err and "--gpus all" in ran.err
    assert "Traceback" not in ran.err


def test_off_says_nothing(run: Runner) -> None:
    ran = run("echo", "hello", environment={"SELFTEST": "off"})
    assert (ran.code, ran.out, ran.err) == (0, "hello\n", "")


def test_strict_stops_the_start_with_the_self_tests_code(run: Runner) -> None:
    ran = run("echo", "never", environment={"SELFTEST": "verify", "SELFTEST_POLICY": "strict"})
    assert (ran.code, ran.out) == (3, "")
    assert "SELFTEST_POLICY=strict, so echo is not started" in ran.err


def test_strict_lets_a_good_self_test_pass(run: Runner) -> None:
    ran = faked(run, "exit 0", "echo", "started", SELFTEST_POLICY="strict")
    assert (ran.code, ran.out) == (0, "started\n")


def test_whatever_the_self_test_prints_stdout_is_the_commands(run: Runner) -> None:
    ran = faked(run, "echo noise", "echo", "mine")
    assert (ran.out, ran.err) == ("mine\n", "noise\n")


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_commands_exit_code_comes_out_unchanged(run: Runner, code: int) -> None:
    assert run("sh", "-c", f"exit {code}").code == code


def test_an_unknown_command_ends_with_127(run: Runner) -> None:
    assert run("no-such-command").code == 127


@pytest.mark.parametrize("policy, code, out", [("warn", 0, "after\n"), ("strict", 1, "")])
def test_a_hung_self_test_is_ended_at_its_limit_and_reported(
    run: Runner, policy: str, code: int, out: str
) -> None:
    ran = faked(
        run,
        "trap '' TERM; sleep 300 & wait; sleep 300",
        "echo",
        "after",
        SELFTEST_TIMEOUT="2",
        SELFTEST_POLICY=policy,
    )
    assert (ran.code, ran.out) == (code, out)
    assert "did not end within SELFTEST_TIMEOUT=2" in ran.err


def test_a_self_test_that_the_kernel_killed_is_not_called_slow(run: Runner) -> None:
    ran = run("echo", "after", environment={"SELFTEST": "verify"}, mem_limit="40m")
    assert (ran.code, ran.out) == (0, "after\n")
    assert "docker run --memory 8g" in ran.err and "did not end within" not in ran.err


@pytest.mark.parametrize("command", ["healthcheck", "bench"])
def test_dynos_own_commands_are_not_tested_twice(run: Runner, command: str) -> None:
    ran = run(command, "--help", environment={"SELFTEST": "full"})
    assert ran.code == 0 and "self-test, at most" not in ran.err


@pytest.mark.parametrize(
    "variable, value",
    [
        ("SELFTEST", "yes"),
        ("SELFTEST_POLICY", "hard"),
        ("SELFTEST_TIMEOUT", "soon"),
        ("SELFTEST_TIMEOUT", "0"),
        ("SELFTEST_TIMEOUT", "86401"),
        ("SELFTEST_TIMEOUT", "99999999999999999999"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(run: Runner, variable: str, value: str) -> None:
    ran = run("echo", "never", environment={"SELFTEST": "verify", variable: value})
    assert (ran.code, ran.out) == (2, "")
    assert (
        ran.err.startswith(f"dyno: {variable}={value} is not known; it must be") and ran.err.count("\n") == 1
    )


@pytest.mark.parametrize("init", [False, True], ids=["alone", "under docker's init"])
def test_a_stop_reaches_the_command(started: Callable[..., Container], init: bool) -> None:
    handler = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(42)); print('ready', flush=True); time.sleep(300)"
    container = started("python", "-c", handler, init=init)
    await_text(container, "ready")
    container.stop(timeout=60)
    assert container.wait()["StatusCode"] == 42


def test_an_interactive_shell_stops_at_once(started: Callable[..., Container]) -> None:
    container = started("bash", tty=True, stdin_open=True)
    while container.exec_run("pgrep -x bash").exit_code:
        time.sleep(0.1)
    container.stop(timeout=5)
    assert container.wait()["StatusCode"] != 137, "killed after the grace time instead of ending by itself"


def test_a_stop_during_the_self_test_ends_the_container(started: Callable[..., Container]) -> None:
    container = started("echo", "never", environment={"SELFTEST": "full"})
    await_text(container, "self-test")
    container.stop(timeout=60)
    assert container.wait()["StatusCode"] != 137, "had to be killed"
    assert "never" not in container.logs(stdout=True, stderr=False).decode()


def test_the_users_variables_reach_the_command_as_they_were(run: Runner) -> None:
    theirs = {"threads": "16", "quota": "5", "period": "x", "code": "keep"}
    command = ("sh", "-c", "echo $threads $quota $period $code")
    ran = run(*command, environment=theirs, nano_cpus=1_000_000_000)
    assert ran.out == "16 5 x keep\n"
    assert faked(run, "exit 1", *command, **theirs).out == "16 5 x keep\n"


def test_a_path_of_the_users_own_does_not_lose_the_self_test(run: Runner) -> None:
    ran = faked(run, "echo tested", "true", PATH="/usr/bin:/bin")
    assert "tested" in ran.err


def test_a_closed_stderr_does_not_stop_the_start(run: Runner) -> None:
    assert (
        run("sh", "-c", "SELFTEST=verify SELFTEST_TIMEOUT=1 dyno-entrypoint echo started 2>&-").out
        == "started\n"
    )


def test_a_login_shell_finds_the_stack(run: Runner) -> None:
    assert run("bash", "-lc", "command -v python").out == "/opt/venv/bin/python\n"


def test_a_program_of_the_same_name_is_not_taken_for_dynos(run: Runner) -> None:
    make = "printf '#!/bin/sh\\n' > /tmp/bench; chmod +x /tmp/bench; SELFTEST=verify SELFTEST_TIMEOUT=1 dyno-entrypoint /tmp/bench"
    assert "self-test" in run("sh", "-c", make).err


def test_threads_follow_the_cpu_limit(run: Runner) -> None:
    ask = ("sh", "-c", "echo $OMP_NUM_THREADS")
    assert run(*ask, nano_cpus=1_000_000_000).out == "1\n"
    assert run(*ask).out == "\n"
    assert run(*ask, nano_cpus=1_000_000_000, environment={"OMP_NUM_THREADS": "7"}).out == "7\n"


def await_text(container: Container, text: str) -> None:
    for _ in range(600):
        if text in container.logs().decode(errors="replace"):
            return
        time.sleep(0.1)
    raise AssertionError(f"the container never said {text!r}:\n{container.logs().decode(errors='replace')}")
