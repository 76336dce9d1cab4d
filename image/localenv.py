"""`python3 -m image env`: .venv at the repository's root, for tests and for the self-test on the CPU."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from image import install, requirements
from image.fault import Exit, Fault, Stop
from image.shell import Done, Run
from image.stack import STACK

SUPPORTED = ((3, 11), (3, 12), (3, 13))  # what the locks of the local environment are made for
TRIO = ("torch", "torchvision", "torchaudio")
_GPU_ONLY = ("nvidia-", "triton")  # what the CPU builds of the trio do not ask for
_STAMP = ".dyno-installed"


def ensure(
    root: Path, run: Run, say: Callable[[str], None], environment: Mapping[str, str], *, torch: bool
) -> None:
    """Make .venv what the locks say; a second call with the same locks only reads a stamp."""
    texts = requirements.read(root / "requirements")
    index = environment.get("PYPI_INDEX") or STACK.pypi_index
    torch_index = environment.get("TORCH_INDEX", "")
    wanted = {"test": requirements.digest([texts["test.lock"]])}
    if torch:
        wanted["torch"] = requirements.digest([texts["local.lock"], torch_index])
    venv = root / ".venv"
    stamp = read_stamp(venv / _STAMP)
    if (venv / "bin/python").exists() and all(stamp.get(part) == value for part, value in wanted.items()):
        say("env: .venv is as the locks say")
        return
    if _make(venv, run, say):
        stamp = {}  # of the environment that was there before
    uv = _uv(venv, texts["test.lock"], index, run, say)
    if stamp.get("test") != wanted["test"]:
        say("env: tools and tests")
        _install(uv, venv, texts["test.lock"], index, run)
        stamp["test"] = wanted["test"]
    if torch and stamp.get("torch") != wanted["torch"]:
        _torch(uv, venv, texts, index=index, torch_index=torch_index, run=run, say=say)
        stamp["torch"] = wanted["torch"]
    (venv / _STAMP).write_text(
        "".join(f"{part} {value}\n" for part, value in stamp.items()), encoding="utf-8"
    )
    say("env: .venv is ready")


def read_stamp(path: Path) -> dict[str, str]:
    """What was installed last: part -> digest of what it was made from."""
    try:
        pairs = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    except OSError:
        return {}


def _torch(
    uv: str,
    venv: Path,
    texts: Mapping[str, str],
    *,
    index: str,
    torch_index: str,
    run: Run,
    say: Callable[[str], None],
) -> None:
    lock = texts["local.lock"]
    if not torch_index:
        say("env: torch with its CUDA libraries, 3.5 GB to download")
        say("     (TORCH_INDEX=https://download.pytorch.org/whl/cpu is the small form: 200 MB)")
        _install(uv, venv, lock, index, run)
        return
    say(f"env: torch from {torch_index}")
    _install(uv, venv, without_gpu(lock), index, run)
    versions = requirements.parse(lock, "local.lock").versions
    trio = [f"{name}=={versions[name]}" for name in TRIO if name in versions]
    argv = [uv, "pip", "install", "--no-config", "--python", str(venv / "bin/python"), "--no-deps"]
    _succeed(run([*argv, "--default-index", torch_index, *trio], show=True), "uv pip install", torch_index)


def without_gpu(lock: str) -> str:
    """The lock's text without the torch trio and what only its CUDA builds need."""
    kept = [block for block in entries(lock) if not _of_gpu(_name(block))]
    return "".join(kept)


def _of_gpu(name: str) -> bool:
    return name in TRIO or name.startswith(_GPU_ONLY)


def entries(lock: str) -> list[str]:
    """The lock's text cut at each package: name==version with its hashes and remarks."""
    return [block for block in re.split(r"(?m)^(?=[A-Za-z0-9])", lock) if block and not block.startswith("#")]


def _name(block: str) -> str:
    return requirements.canonical(re.split(r"[=\s\[;]", block, maxsplit=1)[0])


def _install(uv: str, venv: Path, lock: str, index: str, run: Run) -> None:
    with tempfile.TemporaryDirectory(prefix="dyno-env-") as directory:
        file = Path(directory) / "requirements.txt"
        file.write_text(lock, encoding="utf-8")
        argv = [uv, "pip", "install", "--no-config", "--python", str(venv / "bin/python"), "--require-hashes"]
        done = run([*argv, "--default-index", index, "--requirement", str(file)], show=True)
    _succeed(done, "uv pip install", index)


def _uv(venv: Path, lock: str, index: str, run: Run, say: Callable[[str], None]) -> str:
    """The locked uv in the environment, put there by pip from its hashes."""
    uv = venv / "bin/uv"
    version = requirements.parse(lock, "test.lock").versions["uv"]
    if uv.exists() and run([str(uv), "--version"]).stdout.split()[1:2] == [version]:
        return str(uv)
    say(f"env: uv {version}")
    with tempfile.TemporaryDirectory(prefix="dyno-env-") as directory:
        file = Path(directory) / "uv.txt"
        file.write_text("".join(block for block in entries(lock) if _name(block) == "uv"), encoding="utf-8")
        argv = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        argv += ["--require-hashes", "--no-deps", "--index-url", index, "--requirement", str(file)]
        _succeed(run(argv, show=True), "pip install uv", index)
    return str(uv)


def _succeed(done: Done, what: str, index: str) -> None:
    if not done.ok:
        remedy = "read its lines above; PYPI_INDEX and TORCH_INDEX choose other indexes"
        raise Stop(
            [
                Fault(
                    f"{what} ended with {done.returncode}", f"the packages, from {index}", remedy, Exit.FAILED
                )
            ]
        )


def _make(venv: Path, run: Run, say: Callable[[str], None]) -> bool:
    """Whether the environment had to be made anew, and is empty now."""
    own = run([str(venv / "bin/python"), "-c", "import sys, pip; print(*sys.version_info[:2])"])
    if own.ok and tuple(map(int, own.stdout.split())) in SUPPORTED:
        return False
    python = find_python(run)
    _need_ensurepip(python, run, say)
    say(f"env: making .venv with {python}")
    done = run([python, "-m", "venv", "--clear", str(venv)])
    if not done.ok:
        raise Stop(
            [
                Fault(
                    f"{python} -m venv: {done.last_line}",
                    "a virtual environment",
                    f"rm -r {venv}",
                    Exit.FAILED,
                )
            ]
        )
    return True


def find_python(
    run: Run, version: tuple[int, ...] = sys.version_info[:2], executable: str = sys.executable
) -> str:
    """This Python where it is of a supported version, else the newest supported one on PATH."""
    if tuple(version[:2]) in SUPPORTED:
        return executable
    for major, minor in reversed(SUPPORTED):
        name = f"python{major}.{minor}"
        done = run([name, "-c", "import sys; print(*sys.version_info[:2])"], time_limit=30)
        if done.ok and done.stdout.split() == [str(major), str(minor)]:
            return name
    oldest, newest = (".".join(map(str, v)) for v in (SUPPORTED[0], SUPPORTED[-1]))
    found = f"Python {'.'.join(map(str, version[:2]))}, and no other on PATH"
    needed = f"Python {oldest} to {newest}, for which the local environment is locked"
    raise Stop(
        [
            Fault(
                found, needed, "install one, for example: sudo apt-get install python3.12-venv", Exit.UNUSABLE
            )
        ]
    )


def _need_ensurepip(python: str, run: Run, say: Callable[[str], None]) -> None:
    if run([python, "-c", "import venv, ensurepip"]).ok:
        return
    system = install.read_system(run)
    if os.geteuid() == 0 and system.os_release.get("ID") == "debian" and shutil.which("apt-get"):
        say("env: installing python3-venv (root on Debian)")
        install.apt(run, ["python3-venv"])
        if run([python, "-c", "import venv, ensurepip"]).ok:
            return
    remedy = "sudo apt-get update && sudo apt-get install python3-venv"
    raise Stop([Fault(f"{python} without venv and ensurepip", "both, to make .venv", remedy, Exit.UNUSABLE)])
