"""Facts about this host, read once: all effects of planning. Nothing is downloaded."""

from __future__ import annotations

import os
import platform
import shutil
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from image import base, engine, install, wheel
from image.arguments import Arguments
from image.engine import Engine
from image.install import System
from image.shell import Run
from image.stack import STACK
from image.wheel import Wheel

LATEST = "dyno:latest"
_GB = 1e9
_CA_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


@dataclass(frozen=True)
class Wheelhouse:
    """A directory of wheels: absolute path, whether it is there, the flash-attn wheels in it."""

    path: str
    exists: bool
    wheels: tuple[Wheel, ...] = ()


@dataclass(frozen=True)
class Host:
    """What the plan depends on. Memory and disk in GB (1e9 bytes); `gpu_archs` from nvidia-smi, "" never."""

    arch: str
    cores: int
    memory_gb: float
    memory_available_gb: float
    disk_free_gb: float
    disk_path: str
    gpu_archs: tuple[str, ...]
    engine: Engine
    system: System
    images: tuple[str, ...]
    latest_flash_attn: str  # the route of what dyno:latest names now, "" where there is none
    wheelhouse: Wheelhouse | None
    ca_bundle: str  # absolute path, or "" for none
    ca_bundle_fault: str  # why the engine's packages could not trust it, in a clause; "" for none
    source_date_epoch: int


def read(arguments: Arguments, root: Path, run: Run) -> Host:
    """Look at the host; `root` is the repository's root."""
    found = engine.find(run)
    total, available = memory(Path("/proc/meminfo"))
    ca_bundle = _ca_bundle(arguments.ca_bundle, os.environ)
    disk_path, free = _disk(found.root_dir, root)
    return Host(
        arch=platform.machine(),
        cores=_cores(),
        memory_gb=total,
        memory_available_gb=available,
        disk_free_gb=free,
        disk_path=disk_path,
        gpu_archs=gpu_archs(run),
        engine=found,
        system=install.read_system(run),
        images=base.present(run) if found.server else (),
        latest_flash_attn=latest_flash_attn(run) if found.server else "",
        wheelhouse=_wheelhouse(arguments.wheelhouse),
        ca_bundle=ca_bundle,
        ca_bundle_fault=certificate_fault(Path(ca_bundle)) if ca_bundle else "",
        source_date_epoch=_epoch(os.environ),
    )


def gpu_archs(run: Run) -> tuple[str, ...]:
    """Compute capabilities of the host's GPUs, each once; () without nvidia-smi or where it cannot say."""
    done = run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], time_limit=15)
    return parse_compute_capabilities(done.stdout) if done.ok else ()


def latest_flash_attn(run: Run) -> str:
    """The label of the image that dyno:latest names now: by which route flash-attn came into it."""
    label = '{{index .Config.Labels "dyno.flash-attn"}}'
    done = run(["docker", "image", "inspect", "--format", label, LATEST], time_limit=30)
    return done.stdout.strip() if done.ok else ""


def parse_compute_capabilities(text: str) -> tuple[str, ...]:
    """The lines that are a capability; `[N/A]` and its kind are not known, which is never a number."""
    found = {line.strip() for line in text.splitlines()}
    return tuple(sorted((f for f in found if _is_capability(f)), key=lambda f: tuple(map(int, f.split(".")))))


def _is_capability(text: str) -> bool:
    major, dot, minor = text.partition(".")
    return bool(dot) and major.isdigit() and minor.isdigit()


def parse_meminfo(text: str) -> tuple[float, float]:
    """(total, available) in GB; 0 where the kernel does not say."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def gigabytes(key: str) -> float:
        value = fields.get(key, "0").split()
        return int(value[0]) * 1024 / _GB if value and value[0].isdigit() else 0.0

    return gigabytes("MemTotal"), gigabytes("MemAvailable")


def memory(path: Path) -> tuple[float, float]:
    """(total, available) memory of this host in GB."""
    try:
        return parse_meminfo(path.read_text(encoding="utf-8"))
    except OSError:  # no /proc: not Linux, which the plan refuses by its architecture or engine
        return 0.0, 0.0


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _disk(root_dir: str, root: Path) -> tuple[str, float]:
    """Where the engine keeps images, and what is free there in GB. A remote engine's disk cannot be seen."""
    for path in (root_dir, "/var/lib", str(root)):
        if path and Path(path).is_dir():
            return path, shutil.disk_usage(path).free / _GB
    return str(root), 0.0


def _wheelhouse(directory: str) -> Wheelhouse | None:
    if not directory:
        return None
    path = Path(directory).expanduser().resolve()
    if not path.is_dir():
        return Wheelhouse(str(path), False)
    named = (wheel.parse(file.name) for file in path.iterdir())
    ours = sorted(w.file for w in named if w and w.name == "flash-attn")
    read_wheels = (wheel.read(path / file) or _unreadable(file) for file in ours)
    return Wheelhouse(str(path), True, tuple(read_wheels))


def _unreadable(file: str) -> Wheel:
    named = wheel.parse(file)
    assert named is not None
    return replace(named, version=f"{named.version} in a file that is no whole zip archive")


def _ca_bundle(asked: str, environment: Mapping[str, str]) -> str:
    """What the host trusts, unless told otherwise; a path that is asked for is returned even if absent."""
    if asked == "none":
        return ""
    if asked != "auto":
        return str(Path(asked).expanduser().resolve())
    candidates = (environment.get("SSL_CERT_FILE", ""), *_CA_FILES)
    return next((str(Path(c).resolve()) for c in candidates if c and Path(c).is_file()), "")


def certificate_fault(path: Path) -> str:
    """Why `path` holds no certificates in PEM form that a client can load, in a clause; "" where it does."""
    if not path.is_file():
        return "is no file"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:  # ssl's own errors are OSErrors
        return f"holds no certificate that can be read ({getattr(error, 'reason', None) or error})"
    return ""


def _epoch(environment: Mapping[str, str]) -> int:
    """The time for everything the build writes: SOURCE_DATE_EPOCH, else the stack's own.

    Not a commit's: every new commit would then rebuild every layer, and a tarball has none.
    """
    given = environment.get("SOURCE_DATE_EPOCH", "")
    return int(given) if given.isdigit() else STACK.source_date_epoch
