"""`make lock`: every requirements/*.in to its .lock with hashes, by uv, from the canonical index alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from image import requirements
from image.fault import Exit, Fault, Stop
from image.shell import Run
from image.stack import STACK, Stack

_UNIVERSAL = ("test", "local")  # for whatever Python the developer has
_FROM_SOURCE = "flash-attn"  # there is no wheel of it on the index, and its metadata needs torch to build
_OLDEST_PYTHON = "3.11"  # of the local environment: numpy and others have left 3.10 behind


def command(uv: str, name: str, stack: Stack) -> list[str]:
    """The uv call for `name`.in, to be run in requirements/."""
    target = ["--python-version", stack.python, "--python-platform", "x86_64-manylinux_2_28"]
    if name in _UNIVERSAL:
        target = ["--universal", "--python-version", _OLDEST_PYTHON]
    source = ["--no-config", "--only-binary", ":all:"]
    if name == _FROM_SOURCE:
        source = ["--config-file", "uv.toml", "--no-deps"]
    argv = [uv, "pip", "compile", f"{name}.in", "--output-file", f"{name}.lock"]
    argv += ["--generate-hashes", *source, *target]
    return [*argv, "--default-index", stack.pypi_index, "--custom-compile-command", "make lock", "--quiet"]


def find_uv(root: Path) -> str:
    """The local environment's uv, else the one on PATH."""
    own = root / ".venv/bin/uv"
    found = str(own) if own.is_file() else shutil.which("uv")
    if not found:
        raise Stop([Fault("no uv", "uv, to resolve", "python3 -m image env, or pip install uv", Exit.FAILED)])
    return found


def lock(root: Path, run: Run, say: Callable[[str], None]) -> None:
    """Regenerate every lock, then hold each to its pins."""
    uv = find_uv(root)
    for name in requirements.NAMES:
        done = run(command(uv, name, STACK), cwd=root / "requirements", show=True)
        if not done.ok:
            remedy = "read uv's lines above; the pins of that file are its input"
            found = f"uv ended with {done.returncode} on requirements/{name}.in"
            raise Stop([Fault(found, "pins that resolve together", remedy, Exit.FAILED)])
        say(f"lock: requirements/{name}.lock")
    check(root, say)


def check(root: Path, say: Callable[[str], None]) -> None:
    """Stop where a lock is not what its pins ask for."""
    wrong = requirements.all_disagreements(requirements.read(root / "requirements"))
    if wrong:
        needed = "locks that hold every pin with hashes and name no index"
        raise Stop([Fault(line, needed, "make lock", Exit.FAILED) for line in wrong])
    say("lock: every lock agrees with its pins")
