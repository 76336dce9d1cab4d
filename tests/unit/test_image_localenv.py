"""The local environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from image_fakes import FILES, ROOT, FakeRun

from image import localenv, requirements
from image.fault import Stop
from image.shell import Done


def test_a_supported_python_is_used_as_it_is() -> None:
    assert localenv.find_python(FakeRun({}), (3, 12), "/usr/bin/python3") == "/usr/bin/python3"


def test_another_python_on_the_path_is_found_where_this_one_does_not_serve() -> None:
    run = FakeRun({("python3.12",): Done(0, "3 12\n"), ("python3.13",): Done(127, "", "shim")})
    assert localenv.find_python(run, (3, 14), "/usr/bin/python3") == "python3.12"


def test_without_any_the_line_says_found_and_needed() -> None:
    with pytest.raises(Stop, match=r"Python 3\.14, and no other on PATH; needed: Python 3\.11 to 3\.13"):
        localenv.find_python(FakeRun({}), (3, 14), "/usr/bin/python3")


def test_the_small_torch_leaves_out_the_trio_and_its_gpu_libraries_and_nothing_else() -> None:
    lock = FILES["local.lock"]
    all_names = {r.name for r in requirements.parse(lock, "l").requirements}
    kept = requirements.parse(localenv.without_gpu(lock), "l").requirements
    gone = all_names - {r.name for r in kept}
    assert {"torch", "torchvision", "torchaudio", "triton"} <= gone
    assert all(name in localenv.TRIO or name.startswith(("nvidia-", "triton")) for name in gone)
    assert all(r.hashes for r in kept)


def test_cutting_a_lock_into_entries_loses_none() -> None:
    for file in ("test.lock", "local.lock"):
        whole = requirements.parse(FILES[file], file)
        assert requirements.parse("".join(localenv.entries(FILES[file])), file) == whole


def test_a_stamp_that_matches_the_locks_is_all_a_second_call_reads(tmp_path: Path) -> None:
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    stamp = f"test {requirements.digest([FILES['test.lock']])}\n"
    (tmp_path / ".venv" / localenv._STAMP).write_text(stamp, encoding="utf-8")
    run = FakeRun({})
    localenv.ensure(tmp_path, run, print, {}, torch=False)
    assert run.seen == []


def test_an_environment_that_has_lost_its_python_is_filled_again_whatever_its_stamp_says(
    tmp_path: Path,
) -> None:
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to("/nowhere/python")
    stamp = venv / localenv._STAMP
    stamp.write_text(f"test {requirements.digest([FILES['test.lock']])}\n", encoding="utf-8")
    python = str(venv / "bin/python")
    run = FakeRun(
        {
            (python, "-c"): Done(127),
            (python,): Done(0),
            (str(venv / "bin/uv"),): Done(0),
            (sys.executable,): Done(0),
        }
    )
    localenv.ensure(tmp_path, run, print, {}, torch=False)
    assert [argv for argv in run.seen if argv[1:3] == ("pip", "install")], "the tests' packages are installed"
    assert localenv.read_stamp(stamp) == {"test": requirements.digest([FILES["test.lock"]])}
