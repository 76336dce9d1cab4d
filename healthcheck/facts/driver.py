"""Traces of the host driver inside the container: what tells "no --gpus" from "driver broken"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
)
_DEVICE_GLOBS = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-caps/*", "dxg")


@dataclass(frozen=True)
class DriverTraces:
    """`libcuda` in the loader's order, first one wins. `kernel_driver`: version of the loaded module.

    `cuda_visible_devices` is the variable, None where it is not set.
    """

    device_nodes: tuple[str, ...] | None = None
    libcuda: tuple[str, ...] | None = None
    kernel_driver: str | None = None
    ld_library_path: tuple[str, ...] | None = None
    nvidia_env: Mapping[str, str] = field(default_factory=dict)
    cuda_visible_devices: str | None = None


def collect(root: Path, env: Mapping[str, str]) -> DriverTraces:
    """Read below `root` (tests give a directory of their own, everyone else `/`)."""
    path = tuple(p for p in env.get("LD_LIBRARY_PATH", "").split(":") if p)
    return DriverTraces(
        device_nodes=_device_nodes(root),
        libcuda=tuple(_libcuda(root, path)),
        kernel_driver=_kernel_driver(root),
        ld_library_path=path,
        nvidia_env={k: v for k, v in sorted(env.items()) if k.startswith("NVIDIA_")},
        cuda_visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
    )


def _device_nodes(root: Path) -> tuple[str, ...] | None:
    try:
        found = [p for pattern in _DEVICE_GLOBS for p in (root / "dev").glob(pattern)]
    except OSError:
        return None
    return tuple(sorted(f"/{p.relative_to(root)}" for p in found))


def _libcuda(root: Path, path: tuple[str, ...]) -> Iterator[str]:
    """Every libcuda.so.1 that a loader would meet. ldconfig is not asked: it may be off PATH or stale."""
    seen: set[Path] = set()
    for directory in (*path, *_LIBRARY_DIRS, *_configured(root)):
        library = root / directory.lstrip("/") / "libcuda.so.1"
        try:
            real = library.resolve()
            present = library.is_file()
        except OSError:
            continue
        if present and real not in seen:
            seen.add(real)
            yield f"{directory.rstrip('/')}/libcuda.so.1"


def _configured(root: Path) -> Iterator[str]:
    """Directories of /etc/ld.so.conf.d: CDI and the container toolkit add theirs there."""
    for file in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        yield from (line.strip() for line in lines if line.startswith("/"))


def _kernel_driver(root: Path) -> str | None:
    """The module's version from /proc, which is the host's own even where no GPU was handed in."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found.group(1) if found else None
