"""Finds a Docker engine with BuildKit, buildx and compose, and says exactly what is missing.

The parsers are pure; `find` is the only effect. Installing and starting is `image/install.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from image.fault import Exit, Fault
from image.shell import Done, Run

NEED_ENGINE = "23.0"  # the first whose built-in BuildKit knows COPY --link and named contexts by itself
NEED_BUILDX = "0.13"
NEED_COMPOSE = "2.24"
_LIMIT = 30.0  # seconds; an engine that is starting answers late, a hung one never
_GUIDE = "https://docs.docker.com/engine/install/"


@dataclass(frozen=True)
class Engine:
    """What was found; "" where it was not. `error` says why the engine does not answer."""

    client: str = ""
    server: str = ""
    buildx: str = ""
    compose: str = ""
    error: str = ""
    root_dir: str = ""
    builder: str = ""  # of the docker driver: the only one that sees the images of this engine
    runtimes: tuple[str, ...] = ()
    cdi_directories: tuple[str, ...] = ()

    @property
    def tools_complete(self) -> bool:
        """Whether client, buildx and compose suffice, running engine or not."""
        return bool(self.client) and not [p for p in problems(self) if p.needed != _ANSWER]


_ANSWER = "an engine that answers"


def number(version: str) -> tuple[int, ...]:
    """(26, 1, 5) of "26.1.5+dfsg1", (0, 13, 1) of "v0.13.1"; () where there is no number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def at_least(version: str, needed: str) -> bool:
    """Whether `version` is `needed` or newer; an unreadable version is not."""
    found = number(version)
    want = number(needed)
    width = max(len(found), len(want))
    return bool(found) and found + (0,) * (width - len(found)) >= want + (0,) * (width - len(want))


def parse_version(done: Done) -> tuple[str, str, str]:
    """(client, server, error) of `docker version --format {{json .}}`."""
    answer = _json(done.stdout)
    client = (answer.get("Client") or {}).get("Version", "")
    server = (answer.get("Server") or {}).get("Version", "")
    return client, server, "" if server else done.last_line


def parse_buildx(text: str) -> str:
    """The version in `docker buildx version`; "" for anything else that answers there, as podman does."""
    match = re.match(r"github\.com/docker/buildx v?(\d+\.\d+\S*)", text.strip())
    return match[1] if match else ""


def parse_compose(text: str) -> str:
    """The version in `docker compose version --short`."""
    match = re.match(r"v?(\d+\.\d+\S*)", text.strip())
    return match[1] if match else ""


def find(run: Run) -> Engine:
    """Look for the engine behind the `docker` on PATH."""
    version = run(["docker", "version", "--format", "{{json .}}"], time_limit=_LIMIT)
    client, server, error = parse_version(version)
    if not client:
        return Engine(error=error)
    buildx = run(["docker", "buildx", "version"], time_limit=_LIMIT)
    compose = run(["docker", "compose", "version", "--short"], time_limit=_LIMIT)
    context = run(["docker", "context", "show"], time_limit=_LIMIT)
    info = (
        _json(run(["docker", "info", "--format", "{{json .}}"], time_limit=_LIMIT).stdout) if server else {}
    )
    return Engine(
        client=client,
        server=server,
        buildx=parse_buildx(buildx.stdout) if buildx.ok else "",
        compose=parse_compose(compose.stdout) if compose.ok else "",
        error=error,
        root_dir=info.get("DockerRootDir") or "",
        builder=context.stdout.strip() if context.ok else "default",
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi_directories=tuple(info.get("CDISpecDirs") or ()),
    )


def problems(engine: Engine, install: str = "make engine") -> tuple[Fault, ...]:
    """Everything that keeps this engine from building the image; `install` is the command that cures it."""
    if not engine.client:
        needed = f"Docker >= {NEED_ENGINE} with buildx >= {NEED_BUILDX} and compose >= {NEED_COMPOSE}"
        return (Fault(f"no Docker ({engine.error})", needed, install, Exit.UNUSABLE),)
    faults = []
    if not engine.server:
        faults.append(
            Fault(f"Docker {engine.client}: {engine.error}", _ANSWER, _wake(engine.error), Exit.UNUSABLE)
        )
    elif not at_least(engine.server, NEED_ENGINE):
        found, needed = f"Docker engine {engine.server}", f"{NEED_ENGINE} or newer, for BuildKit"
        faults.append(Fault(found, needed, f"upgrade it: {_GUIDE}", Exit.UNUSABLE))
    for name, found, needed in (
        ("buildx", engine.buildx, NEED_BUILDX),
        ("compose", engine.compose, NEED_COMPOSE),
    ):
        if not at_least(found, needed):
            said = f"docker {name} {found}" if found else f"no docker {name} plugin"
            faults.append(Fault(said, f"{needed} or newer", install, Exit.UNUSABLE))
    return tuple(faults)


def _wake(error: str) -> str:
    if "permission denied" in error.lower():
        return "sudo usermod -aG docker $USER, then log in again"
    return "make engine as root, or start it: sudo systemctl start docker"


def _json(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
