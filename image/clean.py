"""Removes this project's images. Build cache is shared by every project on the engine: said, not removed."""

from __future__ import annotations

from collections.abc import Callable

from image import base
from image.fault import Exit, Fault, Stop
from image.shell import Run

REPOSITORIES = ("dyno", base.REPOSITORY)


def clean(run: Run, say: Callable[[str], None]) -> None:
    """Remove the images by name, each said; one that a container uses stops nothing but is reported."""
    done = run(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], time_limit=30)
    if not done.ok:
        raise Stop([Fault(done.last_line, "a Docker engine that answers", "make engine", Exit.UNUSABLE)])
    ours = sorted(name for name in done.stdout.split() if name.split(":")[0] in REPOSITORIES)
    kept = []
    for name in ours:
        removed = run(["docker", "image", "rm", name], time_limit=300)
        say(f"clean: removed {name}" if removed.ok else f"clean: kept {name}: {removed.last_line}")
        kept += [] if removed.ok else [name]
    if not ours:
        say("clean: no image of this project is here")
    say(f"clean: {_cache(run)}; it is shared by every project here, `docker builder prune` removes it")
    if kept:
        remedy = "end their containers (docker ps --all), then make clean"
        raise Stop([Fault(f"{', '.join(kept)} in use", "images that no container uses", remedy, Exit.FAILED)])


def _cache(run: Run) -> str:
    done = run(["docker", "system", "df", "--format", "{{.Type}}={{.Size}}"], time_limit=120)
    sizes = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return f"build cache holds {sizes.get('Build Cache', 'an unknown amount')}"
