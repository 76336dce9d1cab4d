"""The probe says in one line whether the GPU is there, and stays light enough to run every few seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from healthcheck.probe import probe


class Broken(Exception):
    value = 999


def nvml(**calls: Any) -> Any:
    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA L4",
        **calls,
    }

    def call(answer: Any) -> Any:
        def answering(*_: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return answering

    return SimpleNamespace(**{name: call(answer) for name, answer in answers.items()})


def test_a_gpu_that_answers_is_0(tmp_path: Path) -> None:
    assert probe(tmp_path, {}, nvml()) == (0, "ok: NVIDIA L4")


def test_no_gpu_is_1_with_the_remedy(tmp_path: Path) -> None:
    code, line = probe(tmp_path, {}, nvml(nvmlDeviceGetCount=0))
    assert code == 1
    assert "docker run --rm -it --gpus all" in line
    assert "\n" not in line


def test_declared_cpu_use_is_0_without_asking(tmp_path: Path) -> None:
    assert probe(tmp_path, {"DYNO_DEVICE": "cpu"}, nvml(nvmlInit=Broken("no")))[0] == 0


def test_a_gpu_gone_from_a_running_container_says_to_recreate_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    code, line = probe(tmp_path, {}, nvml(nvmlInit=Broken("Unknown Error")))
    assert code == 1
    assert "gone from this container" in line and "recreate the container" in line


@pytest.mark.parametrize("command", [["-m", "healthcheck", "probe"], ["-m", "healthcheck.probe"]])
def test_the_command_prints_one_line(command: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, *command], env={"DYNO_DEVICE": "cpu"}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok: CPU use declared\n", "")


def test_the_probe_imports_neither_the_tools_nor_the_stack() -> None:
    code = (
        "import sys; from healthcheck import probe; probe.main(); "
        "print(*{'torch', 'typer', 'rich', 'pydantic', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr.strip() == ""
