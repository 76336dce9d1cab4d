"""What the engine is given to build from: a copy of the repository's parts, the same from every checkout.

The engine's cache goes by the content of files and their modes. A clone has the modes of its user's umask,
and an editor's leavings beside the files; a wheelhouse holds more than the one wheel that is taken.
"""

from __future__ import annotations

import shutil
from pathlib import Path

PARTS = ("Dockerfile", ".dockerignore", "docker-bake.hcl", "healthcheck", "image", "requirements")
WHEELS = "wheelhouse"  # in the copy: what bake takes for the wheelhouse
_LEAVINGS = shutil.ignore_patterns(
    "__pycache__", "*.pyc", "*.swp", "*.orig", "*.rej", "*~", ".#*", ".DS_Store"
)


def copy(root: Path, wheel: Path | None, into: Path) -> None:
    """Copy the parts of the repository at `root` and the one `wheel` below the empty directory `into`."""
    for part in PARTS:
        source = root / part
        if source.is_dir():
            shutil.copytree(source, into / part, symlinks=True, ignore=_LEAVINGS)
        else:
            shutil.copyfile(source, into / part)
    (into / WHEELS).mkdir()
    if wheel is not None:
        shutil.copyfile(wheel, into / WHEELS / wheel.name)
    for path in (into, *into.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
