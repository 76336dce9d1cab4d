"""The manifest baked into the image: what *should* be there. Without it there is only what is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATH = "/opt/dyno/manifest.json"
SCHEMA = 1


@dataclass(frozen=True)
class Manifest:
    """Below `driver_floor` a driver fails, below `driver_tested` it warns. `stack`: name -> version;
    `constrained` are those of it that were compiled against one another, which the constraint file holds.
    `pruned`: the whole stack carries device code for `gpu_archs` alone; else only flash-attn does."""

    build_id: str
    target: str
    python: str
    toolkit: str
    toolkit_installed: bool
    driver_floor: str
    driver_tested: str
    gpu_archs: tuple[str, ...]
    flash_attn_route: str
    flash_attn_version: str
    stack: Mapping[str, str] = field(default_factory=dict)
    constrained: tuple[str, ...] = ()
    pruned: bool = False


@dataclass(frozen=True)
class Reading:
    """Outcome of reading the file: a manifest, an error, or neither where there is no file (a local run)."""

    path: str = PATH
    manifest: Manifest | None = None
    error: str | None = None


def read(path: Path, *, expected: bool = False) -> Reading:
    """Read the manifest at `path`; damage becomes `error`, never an exception, and so does its absence where
    it is `expected` (in the image, which was built with one)."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return Reading(str(path), error="is missing" if expected else None)
    except (OSError, ValueError) as error:
        return Reading(str(path), error=f"cannot be read: {error}")
    try:
        return Reading(str(path), manifest=_parse(content))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return Reading(str(path), error=f"is no manifest of schema {SCHEMA}: {type(error).__name__} {error}")


def _parse(content: Any) -> Manifest:
    if content["schema"] != SCHEMA:
        raise ValueError(f"schema {content['schema']!r}")
    return Manifest(
        build_id=_text(content["build_id"]),
        target=_text(content["target"]),
        python=_text(content["python"]),
        toolkit=_text(content["cuda"]["toolkit"]),
        toolkit_installed=bool(content["cuda"]["toolkit_installed"]),
        driver_floor=_text(content["driver"]["floor"]),
        driver_tested=_text(content["driver"]["tested"]),
        gpu_archs=tuple(_text(arch) for arch in content["gpu_archs"]),
        flash_attn_route=_text(content["flash_attn"]["route"]),
        flash_attn_version=_text(content["flash_attn"].get("version") or ""),
        stack={_text(name): _text(version) for name, version in content["stack"].items()},
        constrained=tuple(_text(name) for name in content["constrained"]),
        pruned=bool(content["pruned"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value
