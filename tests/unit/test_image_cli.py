"""The command line and the command runner."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from image_fakes import ROOT

from image import arguments, shell
from image.fault import Exit


def test_an_option_goes_before_a_variable_and_an_empty_variable_is_not_set() -> None:
    options = Namespace(gpu_archs="9.0", base=None)
    got = arguments.gather(options, {"GPU_ARCHS": "8.6", "BASE": "", "TAG": " mine "})
    assert (got.gpu_archs, got.base, got.tag) == ("9.0", "auto", "mine")


def test_an_option_that_is_empty_is_what_was_typed() -> None:
    assert arguments.gather(Namespace(base=""), {}).base == ""


def _image(*argv: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "image", *argv]
    return subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_a_persons_mistakes_come_as_lines_and_never_as_a_traceback() -> None:
    done = _image("plan", "--gpu-archs", "12.0", "--max-jobs", "many", "--wheelhouse", "/no/such/place")
    assert done.returncode in (Exit.USAGE, Exit.UNUSABLE)  # 3 where the machine of the test is unfit as well
    assert all(word in done.stderr for word in ("12.0", "MAX_JOBS=many", "/no/such/place", "found:", "do:"))
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_verb_is_a_usage_error() -> None:
    assert _image().returncode == Exit.USAGE


def test_a_missing_program_is_an_outcome() -> None:
    assert shell.run(["/no/such/program"]).returncode == shell.NOT_FOUND


def test_a_command_over_its_time_limit_is_ended_with_its_children() -> None:
    done = shell.run(["sh", "-c", "sleep 60 & wait"], time_limit=0.5)
    assert done.returncode == shell.TIMED_OUT
    assert "0.5 s" in done.last_line


def test_the_environment_and_the_directory_reach_the_command(tmp_path: Path) -> None:
    done = shell.run(["sh", "-c", 'echo "$DYNO_X $(pwd)"'], env={"DYNO_X": "7"}, cwd=tmp_path)
    assert done.stdout == f"7 {tmp_path}\n"
