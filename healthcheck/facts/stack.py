"""The stack's Python and its distributions, read from their metadata.

What an import would execute is exactly what may be broken, so everything here is read from files.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

STACK_PYTHON = "/opt/venv/bin/python"
TOOLS = "/opt/dyno/venv"
CPU_BUILD = "none"  # torch_cuda of a torch that was built without CUDA, which is not the same as unknown


@dataclass(frozen=True)
class Program:
    """`path` None: not on PATH. `error` says why there is no version."""

    name: str
    path: str | None = None
    version: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class StackFacts:
    """`distributions` maps normalised names to versions, None where the directory could not be read.

    `opencv_copies` names the distributions that really installed files of cv2, `duplicates` those with more
    than one metadata directory (a half-finished install), `lost` those of whose modules and packages some
    are gone, and which.
    """

    python: str | None = None
    python_exists: bool | None = None
    site_packages: str | None = None
    distributions: Mapping[str, str] | None = None
    duplicates: tuple[str, ...] = ()
    opencv_copies: tuple[str, ...] = ()
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    torch_version: str | None = None
    torch_cuda: str | None = None
    programs: tuple[Program, ...] = field(default=())

    def program(self, name: str) -> Program | None:
        return next((p for p in self.programs if p.name == name), None)

    def has(self, distribution: str) -> bool | None:
        """Whether it is installed; None when the distributions are unknown."""
        return None if self.distributions is None else normalise(distribution) in self.distributions


def normalise(name: str) -> str:
    """Distribution names compare without case and with `-`, `_` and `.` alike."""
    return re.sub(r"[-_.]+", "-", name).lower()


def in_image() -> bool:
    """Whether this is the image's own copy of Dyno, which was built together with a stack and a manifest."""
    return sys.prefix == TOOLS


def stack_python() -> str:
    """The interpreter that holds the stack: DYNO_STACK_PYTHON, else the image's, else this one."""
    chosen = os.environ.get("DYNO_STACK_PYTHON")
    if chosen:
        return chosen
    # In the image it is the image's even when somebody has removed it: that is then the finding.
    return STACK_PYTHON if in_image() or Path(STACK_PYTHON).exists() else sys.executable


def collect(python: str, programs: tuple[Program, ...]) -> StackFacts:
    """Describe the environment of the interpreter `python`; `programs` are what it was found to call."""
    site = site_packages(Path(python))
    torch = _assignments(site / "torch/version.py") if site else {}
    return StackFacts(
        python=python,
        python_exists=Path(python).is_file(),
        site_packages=str(site) if site else None,
        **_distributions(site),
        torch_version=torch.get("__version__"),
        torch_cuda=_torch_cuda(torch),
        programs=programs,
    )


def site_packages(python: Path) -> Path | None:
    """The package directory beside an interpreter. A venv's link is not followed: it leads away."""
    prefix = python.parent.parent
    patterns = (
        "lib/python3.*/site-packages",
        "local/lib/python3.*/dist-packages",
        "lib/python3/dist-packages",
    )
    for pattern in patterns:
        found = sorted(prefix.glob(pattern), key=_minor)
        if found:
            return found[-1]
    return None


def _minor(path: Path) -> int:
    found = re.search(r"python3\.(\d+)", str(path))
    return int(found.group(1)) if found else 0


def _distributions(site: Path | None) -> dict[str, Any]:
    """The fields of StackFacts that the metadata in `site` give; none where there is no such directory."""
    if site is None or not site.is_dir():
        return {}
    versions: dict[str, str] = {}
    duplicates: set[str] = set()
    copies: set[str] = set()
    lost: dict[str, tuple[str, ...]] = {}
    there = _Entries(site)
    for distribution in metadata.distributions(path=[str(site)]):
        identity = _identity(distribution)
        if identity is None:
            continue
        name, version = identity
        if name in versions:
            duplicates.add(name)
        versions[name] = version
        installed = _skeleton(distribution)
        if name.startswith("opencv-") and "cv2" in installed:
            copies.add(name)
        gone = [path for path in sorted(installed) if path not in there]
        if gone:
            lost[name] = tuple(path for path in gone if str(Path(path).parent) not in gone)
    return {
        "distributions": dict(sorted(versions.items())),
        "duplicates": tuple(sorted(duplicates)),
        "opencv_copies": tuple(sorted(copies)),
        "lost": dict(sorted(lost.items())),
    }


def _identity(distribution: metadata.Distribution) -> tuple[str, str] | None:
    """Name and version, or None for the remains of a removal, which have lost their METADATA."""
    try:
        name, version = distribution.metadata["Name"], distribution.version
    except Exception:  # importlib.metadata raises differently on each kind of damage and version of Python
        return None
    return (normalise(name), version) if name and version else None


class _Entries:
    """Whether a path below a directory exists, at most two names deep. Each directory is read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, frozenset[str]] = {}

    def __contains__(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        if parent not in self._read:
            try:
                found = frozenset(entry.name for entry in (self._root / parent).iterdir())
            except OSError:
                found = frozenset()
            self._read[parent] = found
        return name in self._read[parent]


def _skeleton(distribution: metadata.Distribution) -> frozenset[str]:
    """What a distribution installed, by its RECORD, in outline; nothing where that cannot be read.

    Single modules, packages with their __init__.py, and the directories in them: these tell a package that
    is gone, wholly or in part, where a look at each of the stack's 40,000 files would take too long.
    """
    try:
        record = distribution.read_text("RECORD") or ""
    except (OSError, UnicodeDecodeError):
        return frozenset()
    found: set[str] = set()
    for line in record.splitlines():
        top, *rest = line.lstrip('"').partition(",")[0].split("/")
        if top in ("", "..", "__pycache__"):
            continue
        found.add(top)
        if rest[:1] == ["__init__.py"] or (len(rest) > 1 and rest[0] != "__pycache__"):
            found.add(f"{top}/{rest[0]}")
    return frozenset(found)


def _assignments(file: Path) -> dict[str, str | None]:
    """Top-level `name = "text"` and `name = None` of a Python file, without running it."""
    try:
        tree = ast.parse(file.read_text())
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, str | None] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
            values |= {t.id: value.value for t in targets if isinstance(t, ast.Name)}
    return values


def _torch_cuda(torch: Mapping[str, str | None]) -> str | None:
    if "cuda" not in torch:
        return None
    return torch["cuda"] or CPU_BUILD
