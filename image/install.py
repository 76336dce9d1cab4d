"""Installs the engine on Debian 12 and 13, and starts it, with or without an init system. Twice is once."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from image import engine
from image.engine import Engine
from image.fault import Exit, Fault, Stop
from image.shell import Run

PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "docker-compose")
BOOTSTRAP = "mmdebstrap"
_LOG = Path("/var/log/dockerd.log")
_START_LIMIT = 60.0  # seconds; a first start on a slow disk was seen to take 8
_ALIVE_FILES = {  # pid file -> the program that must own the pid
    "docker.pid": "dockerd",
    "docker/containerd/containerd.pid": "containerd",
}
_SOCKETS = ("docker/containerd/containerd.sock", "docker/containerd/containerd-debug.sock")


@dataclass(frozen=True)
class System:
    """The host as far as installing depends on it: os-release fields, rights, init system, foreign engine."""

    os_release: Mapping[str, str]
    root: bool
    systemd: bool
    docker_ce: bool  # Docker's own packages, which Debian's would conflict with

    @property
    def debian(self) -> str:
        """ "12" or "13" where this program installs the engine, else ""."""
        version = self.os_release.get("VERSION_ID", "")
        return version if self.os_release.get("ID") == "debian" and version in ("12", "13") else ""


def parse_os_release(text: str) -> dict[str, str]:
    """The fields of /etc/os-release."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def read_system(run: Run) -> System:
    """Look at this host."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    ce = run(["dpkg-query", "--show", "--showformat", "${db:Status-Status}", "docker-ce"], time_limit=30)
    return System(
        os_release=parse_os_release(text),
        root=os.geteuid() == 0,
        systemd=Path("/run/systemd/system").is_dir(),
        docker_ce=ce.stdout == "installed",
    )


def command(system: System) -> str:
    """The one command that gets an engine on this host."""
    if system.docker_ce:
        packages = "docker-ce docker-ce-cli containerd.io docker-buildx-plugin docker-compose-plugin"
        return f"sudo apt-get update && sudo apt-get install {packages}"
    if system.debian:
        return "make engine" if system.root else "sudo make engine"
    if system.os_release.get("ID") == "ubuntu":
        return "sudo apt-get update && sudo apt-get install docker.io docker-buildx docker-compose-v2"
    return (
        f"install Docker >= {engine.NEED_ENGINE} with buildx >= {engine.NEED_BUILDX} and "
        f"compose >= {engine.NEED_COMPOSE}: https://docs.docker.com/engine/install/"
    )


def can_install(system: System) -> bool:
    """Whether this program may install: root, on a Debian it knows, with no other vendor's engine there."""
    return bool(system.debian) and system.root and not system.docker_ce


def apt_files(debian: str, mirror: str) -> dict[str, str]:
    """Files that let Debian 12 take the four packages, and nothing else, from Debian 13; else none."""
    if debian != "12":
        return {}
    source = (
        f"Types: deb\nURIs: {mirror}\nSuites: trixie\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    pin = "Package: {}\nPin: release n=trixie\nPin-Priority: {}\n"
    preferences = "\n".join([pin.format("*", 100), pin.format(" ".join(PACKAGES), 990)])
    return {
        "/etc/apt/sources.list.d/dyno-trixie.sources": source,
        "/etc/apt/preferences.d/dyno-trixie": preferences,
    }


def apt_commands(packages: Sequence[str]) -> list[list[str]]:
    """The commands that install `packages` and ask nothing."""
    return [
        ["apt-get", "update"],
        ["apt-get", "install", "--yes", "--no-install-recommends", *packages],
    ]


def apt(run: Run, packages: Sequence[str]) -> None:
    """Install Debian packages as root, visibly."""
    for argv in apt_commands(packages):
        done = run(argv, env={"DEBIAN_FRONTEND": "noninteractive"}, show=True)
        if not done.ok:
            found = f"{' '.join(argv[:2])} ended with {done.returncode}"
            remedy = "read its lines above; DEBIAN_MIRROR chooses another mirror for what Dyno adds"
            raise Stop([Fault(found, ", ".join(packages), remedy, Exit.UNUSABLE)])


def ensure(run: Run, say: Callable[[str], None], mirror: str, *, with_bootstrap: bool = False) -> Engine:
    """Return a working engine; install and start what is missing where that is possible, else stop."""
    found = engine.find(run)
    missing_bootstrap = with_bootstrap and not shutil.which(BOOTSTRAP)
    if not engine.problems(found) and not missing_bootstrap:
        say(f"engine: {describe(found)}: nothing to do")
        return found
    system = read_system(run)
    if not can_install(system):
        return _unaided(found, system, say, run)
    packages = [*(() if found.tools_complete else PACKAGES), *((BOOTSTRAP,) if missing_bootstrap else ())]
    if packages:
        say(f"engine: installing {', '.join(packages)} (root on Debian {system.debian})")
        _write(apt_files(system.debian, mirror), say)
        apt(run, packages)
    _start(run, system, say)
    found = engine.find(run)
    faults = engine.problems(found, command(system))
    if faults:
        raise Stop(faults)
    say(f"engine: {describe(found)}: ready")
    return found


def _unaided(found: Engine, system: System, say: Callable[[str], None], run: Run) -> Engine:
    """Not ours to install: a complete engine that only sleeps can still be started by root."""
    if system.root and found.tools_complete and not found.server:
        _start(run, system, say)
        found = engine.find(run)
    faults = engine.problems(found, command(system))
    if faults:
        raise Stop(faults)
    say(f"engine: {describe(found)}; {BOOTSTRAP} is left to you, it is needed for BASE=bootstrap alone")
    return found


def describe(found: Engine) -> str:
    """One clause with the versions."""
    return f"Docker {found.server}, buildx {found.buildx}, compose {found.compose}"


def _write(files: Mapping[str, str], say: Callable[[str], None]) -> None:
    for name, text in files.items():
        path = Path(name)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            say(f"engine: wrote {name}")


def _start(run: Run, system: System, say: Callable[[str], None]) -> None:
    if _answers(run):
        return
    if system.systemd:
        say("engine: systemctl enable --now docker")
        run(["systemctl", "enable", "--now", "docker"], show=True, time_limit=_START_LIMIT)
        _wait(run, None, say)
        return
    run_directory = Path("/var/run")
    for path in stale(run_directory, _program):
        path.unlink(missing_ok=True)
        say(f"engine: removed {path}, left by an engine that was ended hard")
    if _program(_pid(run_directory / "docker.pid")) == "dockerd":
        say("engine: dockerd runs already, waiting for its answer")
        _wait(run, None, say)
        return
    say(f"engine: starting dockerd, without an init system; its log is {_LOG}")
    with _LOG.open("ab") as log:
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    _wait(run, process, say)


def _wait(run: Run, process: subprocess.Popen[bytes] | None, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    while not _answers(run):
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() - started > _START_LIMIT:
            how = "ended at once" if ended else f"did not answer within {_START_LIMIT:.0f} s"
            raise Stop(
                [Fault(f"dockerd {how}: {_last_error()}", "a running engine", f"read {_LOG}", Exit.UNUSABLE)]
            )
        time.sleep(0.2)
    say(f"engine: answers after {time.monotonic() - started:.1f} s")


def _answers(run: Run) -> bool:
    # Not `docker info`: asked for one field, it exits with 0 where no engine answers.
    return run(["docker", "version", "--format", "{{.Server.Version}}"], time_limit=10).ok


def _last_error() -> str:
    with contextlib.suppress(OSError):
        lines = _LOG.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "its log is empty"
    return f"no {_LOG}"


def stale(run_directory: Path, program: Callable[[int], str]) -> list[Path]:
    """Pid files whose process is gone or is another program, and the sockets of a containerd that is gone.

    The engine itself trusts any living process with that number, and after a restart of the machine or the
    container small numbers are taken again. `program` names the program of a pid, "" where there is none.
    """
    files = []
    for name, owner in _ALIVE_FILES.items():
        path = run_directory / name
        if path.is_file() and program(_pid(path)) != owner:
            files.append(path)
            if owner == "containerd":
                files += [s for s in (run_directory / socket for socket in _SOCKETS) if s.exists()]
    return files


def _pid(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return 0


def _program(pid: int) -> str:
    if pid <= 0:
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return "" if rest.split()[:1] == ["Z"] else name  # a zombie holds its pid but runs nothing
