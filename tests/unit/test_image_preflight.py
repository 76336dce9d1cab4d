"""Whether a host can run the image, from what nvidia-smi and Docker say."""

from __future__ import annotations

import pytest
from image_fakes import ENGINE

from image import preflight
from image.engine import Engine
from image.fault import Exit
from image.shell import Done
from image.stack import STACK


def _smi(text: str) -> Done:
    return Done(0, text)


@pytest.mark.parametrize(
    ("driver", "ok", "code"),
    [
        ("535.104.05", False, Exit.UNUSABLE),
        ("549.99", False, Exit.UNUSABLE),
        ("550.54.14", False, Exit.OK),
        ("550.90.07", True, Exit.OK),
        ("570.86.10", True, Exit.OK),
        ("[N/A]", False, Exit.UNUSABLE),
    ],
)
def test_the_driver_is_refused_below_the_floor_and_warned_below_the_tested(
    driver: str, ok: bool, code: Exit
) -> None:
    line = preflight.driver_lines(_smi(f"NVIDIA GeForce RTX 4090, {driver}, 8.9, 24564 MiB\n"), STACK)[0]
    assert (line.ok, line.exit) == (ok, code)
    assert line.ok or line.remedy


@pytest.mark.parametrize(
    ("capability", "ok", "code"),
    [
        ("8.9", True, Exit.OK),
        ("12.0", False, Exit.UNUSABLE),
        ("7.5", False, Exit.UNUSABLE),
        ("[N/A]", False, Exit.OK),
        ("[Not Supported]", False, Exit.OK),
    ],
)
def test_each_gpu_is_held_to_what_the_image_serves(capability: str, ok: bool, code: Exit) -> None:
    text = f"A, 570.1, 8.6, 1 MiB\nB, 570.1, {capability}, [N/A]\n"
    line = preflight.driver_lines(_smi(text), STACK)[2]
    assert (line.ok, line.exit) == (ok, code)


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Done(127, stderr="nvidia-smi: No such file"), "no NVIDIA driver here"),
        (Done(124, stderr="nvidia-smi: no answer within 15 s"), "no answer within 15 s"),
        (Done(255, "Failed to initialize NVML: Driver/library version mismatch\n"), "version mismatch"),
        (Done(0, "No devices were found\n"), "No devices were found"),
    ],
)
def test_without_a_gpu_the_host_cannot_run_the_image_and_the_line_says_why(done: Done, said: str) -> None:
    (line,) = preflight.driver_lines(done, STACK)
    assert said in line.found
    assert line.exit is Exit.UNUSABLE
    assert line.remedy


def test_docker_hands_a_gpu_on_by_hook_runtime_or_cdi() -> None:
    assert preflight.passing_line(ENGINE, "/usr/bin/nvidia-container-runtime-hook", []).ok
    assert preflight.passing_line(Engine(**{**vars(ENGINE), "runtimes": ("nvidia", "runc")}), "", []).ok
    assert preflight.passing_line(
        Engine(**{**vars(ENGINE), "server": "28.3.0"}), "", ["/etc/cdi/nvidia.yaml"]
    ).ok


def test_docker_without_any_of_them_fails_with_the_line_that_fixes_it() -> None:
    line = preflight.passing_line(ENGINE, "", [])
    assert (line.ok, line.exit) == (False, Exit.FAILED)
    assert "nvidia-ctk runtime configure" in line.remedy


def test_an_older_engine_with_cdi_alone_is_told_the_device_form() -> None:
    line = preflight.passing_line(ENGINE, "", ["/etc/cdi/nvidia.yaml"])
    assert (line.ok, line.exit) == (False, Exit.OK)
    assert "--device nvidia.com/gpu=all" in line.remedy


def test_the_exit_code_is_the_gravest_lines() -> None:
    fine = preflight.memory_line(10, 5)
    missing = preflight.passing_line(ENGINE, "", [])
    (unusable,) = preflight.driver_lines(Done(127), STACK)
    assert preflight.exit_code([fine]) is Exit.OK
    assert preflight.exit_code([fine, missing]) is Exit.FAILED
    assert preflight.exit_code([unusable, missing]) is Exit.UNUSABLE
