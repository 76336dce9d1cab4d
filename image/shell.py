"""The one way in which the builder runs a command: an argument list, a time limit, an outcome as a value.

Every effect takes a `Run`, so that tests need no engine, no root and no network.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NOT_FOUND = 127
TIMED_OUT = 124
_REAP = 2.0  # seconds to wait for a killed command: nvidia-smi stuck in the driver cannot even be killed


@dataclass(frozen=True)
class Done:
    """How a command ended. 127: no such program. 124: over its time limit. Outputs are empty if shown."""

    returncode: int
    stdout: str = ""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def last_line(self) -> str:
        """The line that says what went wrong: by custom the last one of stderr."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.returncode}, no output"


class Run(Protocol):
    """Runs `argv`. `env` is added to the environment, `time_limit` is in seconds, `show` leaves the output on
    the terminal instead of capturing it, `cwd` is the directory to run in."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        time_limit: float | None = None,
        show: bool = False,
        cwd: Path | None = None,
    ) -> Done: ...


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    time_limit: float | None = None,
    show: bool = False,
    cwd: Path | None = None,
) -> Done:
    """The real `Run`."""
    pipe = None if show else subprocess.PIPE
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=None if show else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            text=True,
            errors="replace",
            start_new_session=not show,  # what is shown stays in the terminal's group, so that Ctrl-C ends it
        )
    except OSError as error:
        return Done(NOT_FOUND, stderr=f"{argv[0]}: {error.strerror}")
    try:
        stdout, stderr = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _end(process, group=not show)
        return Done(TIMED_OUT, stderr=f"{argv[0]}: no answer within {time_limit:g} s")
    except BaseException:
        _end(process, group=not show)
        raise
    return Done(process.returncode, stdout or "", stderr or "")


def _end(process: subprocess.Popen[str], *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_REAP)
