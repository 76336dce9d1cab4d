"""Files whole or not at all, whatever the file system allows, and streams that may fail."""

from __future__ import annotations

import errno
import os
import pty
import struct
import tempfile
import termios
from datetime import datetime, timezone
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from healthcheck import output
from healthcheck.report import terminal
from healthcheck.result import Exit

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def refuse(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(owner, name, fail)


def test_a_file_that_is_mounted_by_itself_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    file.write_text("old and longer than the new")
    refuse(monkeypatch, Path, "replace", errno.EBUSY)
    output.check_writable(file)
    output.write(str(file), "new")
    assert file.read_text() == "new"
    assert [f.name for f in tmp_path.iterdir()] == ["report.json"]


def test_a_file_in_a_directory_of_another_user_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    refuse(monkeypatch, tempfile, "mkstemp", errno.EACCES)
    refuse(monkeypatch, tempfile, "TemporaryFile", errno.EACCES)
    output.check_writable(file)
    output.write(str(file), "new")
    assert file.read_text() == "new"


def test_a_new_file_there_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, tempfile, "TemporaryFile", errno.EACCES)
    with pytest.raises(
        output.Stop, match="Permission denied; name a file in a writable directory"
    ) as stopped:
        output.check_writable(tmp_path / "report.json")
    assert stopped.value.code is Exit.UNUSABLE


def test_a_full_disk_leaves_the_old_report_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    refuse(monkeypatch, os, "fdopen", errno.ENOSPC)
    with pytest.raises(output.Stop, match="No space left on device; free some space there"):
        output.write(str(file), "new")
    assert file.read_text() == "old"


def test_a_directory_that_cannot_hold_a_report_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, tempfile, "TemporaryFile", errno.ENOSPC)
    with pytest.raises(output.Stop, match="free some space"):
        output.fresh_directory(tmp_path, NOW)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EACCES, "DYNO_UID=$(id -u)"),
        (errno.ENOSPC, "free some space there"),
        (errno.EROFS, "docker run -v dyno-output:/workspace/output"),
    ],
)
def test_what_keeps_the_output_directory_from_being_written_has_its_own_cure(number: int, cure: str) -> None:
    stop = output.cannot_write(Path("/workspace/output/r.json"), OSError(number, os.strerror(number)))
    assert cure in str(stop) and os.strerror(number) in str(stop)
    assert stop.code is Exit.UNUSABLE


@pytest.mark.parametrize(("columns", "width"), [(40, 40), (200, 80), (5, 20), (0, 80)])
def test_a_terminal_is_used_to_its_width_and_no_further(columns: int, width: int) -> None:
    controller, terminal_end = pty.openpty()
    ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(terminal_end, "w") as stream:
        assert terminal.console(stream).width == width
    os.close(controller)


def test_a_file_has_80_columns_whatever_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with (tmp_path / "log").open("w") as stream:
        assert terminal.console(stream).width == 80
