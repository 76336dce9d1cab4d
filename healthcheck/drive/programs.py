"""The programs beside the stack: where they are, and the version that each says when it is asked."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from healthcheck.facts.stack import Program

_VERSION_LIMIT = 5.0  # seconds for a program to say its version
_PROGRAMS = {
    "ffmpeg": (("-version",), r"ffmpeg version n?(\d[\w.]*)"),
    "git": (("--version",), r"git version (\S+)"),
    "nvcc": (("--version",), r"\bV(\d+\.\d+\.\d+)"),
}


def versions(path: str | None) -> tuple[Program, ...]:
    """Each program as `path` (PATH) finds it, with its version or the reason why there is none."""
    ask = functools.partial(_program, path=path)
    try:
        with ThreadPoolExecutor(len(_PROGRAMS)) as pool:
            return tuple(pool.map(ask, _PROGRAMS))
    except RuntimeError:  # no thread to be had: the container's limit was met
        return tuple(map(ask, _PROGRAMS))


def _program(name: str, path: str | None) -> Program:
    arguments, pattern = _PROGRAMS[name]
    found = shutil.which(name, path=path)
    if found is None:
        return Program(name)
    try:
        ended = subprocess.run(
            [found, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_LIMIT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Program(name, found, error=f"{error}")
    version = re.search(pattern, ended.stdout)
    if ended.returncode != 0 or version is None:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        return Program(name, found, error=said[-1] if said else f"exit code {ended.returncode}")
    return Program(name, found, version.group(1))
