"""The container as a process in it sees it: user, limits, /dev/shm and the directories it will write to."""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WORKSPACE = "/workspace"
# Role -> path. Caches come from the environment, since that is what the libraries read.
LAYOUT = {
    "workspace": WORKSPACE,
    "models": f"{WORKSPACE}/models",
    "output": f"{WORKSPACE}/output",
    "data": "/data",
}
CACHES = {
    "cache": "XDG_CACHE_HOME",
    "inductor cache": "TORCHINDUCTOR_CACHE_DIR",
    "triton cache": "TRITON_CACHE_DIR",
    "huggingface cache": "HF_HOME",
}
_TRIED = 1 << 14  # bytes: more than a file system keeps beside the name of a file
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True)
class Directory:
    """`writable`, `executable` and `read_only` describe the path, or its nearest ancestor where it is absent.

    `executable` is False on a noexec mount, `read_only` True on a read-only one, `full` True where there was
    no space, or no quota, for a few kilobytes. `free_bytes` are those of its file system.
    """

    role: str
    path: str
    exists: bool | None = None
    writable: bool | None = None
    executable: bool | None = None
    read_only: bool | None = None
    full: bool | None = None
    free_bytes: int | None = None


@dataclass(frozen=True)
class ContainerFacts:
    """Sizes in bytes, `cpu_limit` in cores, `process_limit` in processes and threads together.

    A limit of None is unknown or not set: neither binds a check.
    """

    inside: bool | None = None
    uid: int | None = None
    gid: int | None = None
    has_passwd_entry: bool | None = None
    user: str | None = None
    home: str | None = None
    shm_bytes: int | None = None
    cpus: int | None = None
    cpu_model: str | None = None
    cpu_limit: float | None = None
    memory_limit: int | None = None
    process_limit: int | None = None
    read_only_root: bool | None = None
    directories: tuple[Directory, ...] = ()

    def directory(self, role: str) -> Directory | None:
        return next((d for d in self.directories if d.role == role), None)


def collect(root: Path, env: Mapping[str, str]) -> ContainerFacts:
    """Read below `root`; all that is written is an unnamed temporary file in each directory, gone at once."""
    return ContainerFacts(
        inside=_inside(root, env),
        uid=os.getuid(),
        gid=os.getgid(),
        has_passwd_entry=_has_passwd_entry(os.getuid()),
        user=env.get("USER") or env.get("LOGNAME"),
        home=env.get("HOME"),
        shm_bytes=_size(root / "dev/shm"),
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_cpu_model(root),
        cpu_limit=_cpu_limit(root),
        memory_limit=_memory_limit(root),
        process_limit=_number(root, "pids.max", "pids/pids.max"),
        read_only_root=_flag(root, os.ST_RDONLY),
        directories=_directories(root, env),
    )


def _directories(root: Path, env: Mapping[str, str]) -> tuple[Directory, ...]:
    paths = dict(LAYOUT)
    paths |= {role: env[name] for role, name in CACHES.items() if env.get(name)}
    paths["tmp"] = env.get("TMPDIR") or "/tmp"
    if env.get("HOME"):
        paths["home"] = env["HOME"]
    return tuple(_directory(root, role, path) for role, path in paths.items())


def _directory(root: Path, role: str, path: str) -> Directory:
    place = root / path.lstrip("/")
    try:
        exists = place.is_dir()
        nearest = next(p for p in (place, *place.parents) if p.is_dir())
    except (OSError, StopIteration):
        return Directory(role, path)
    noexec = _flag(nearest, os.ST_NOEXEC)
    refusal = _refusal(nearest)
    return Directory(
        role=role,
        path=path,
        exists=exists,
        writable=refusal is None,
        executable=None if noexec is None else not noexec,
        read_only=_flag(nearest, os.ST_RDONLY),
        full=refusal in (errno.ENOSPC, errno.EDQUOT),
        free_bytes=_free(nearest),
    )


def _refusal(path: Path) -> int | None:
    """Why a file cannot be written there, as errno; None where it can.

    Tried, with a few bytes in it: permission bits say nothing about read-only mounts, ACLs, quotas and full
    disks, and a full disk still makes an empty file.
    """
    try:
        with tempfile.TemporaryFile(dir=path, prefix=".dyno-") as file:
            file.write(bytes(_TRIED))
    except OSError as error:
        return error.errno or errno.EIO
    return None


def _free(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _flag(path: Path, flag: int) -> bool | None:
    try:
        return bool(os.statvfs(path).f_flag & flag)
    except OSError:
        return None


def _size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _inside(root: Path, env: Mapping[str, str]) -> bool | None:
    """True on a marker that engines leave. Nothing marks a host, so there is no False."""
    markers = (root / ".dockerenv", root / "run/.containerenv")
    marked = any(m.exists() for m in markers) or "KUBERNETES_SERVICE_HOST" in env or "container" in env
    return True if marked else None


def _has_passwd_entry(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _cpu_model(root: Path) -> str | None:
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip() or None
    return None


def _cpu_limit(root: Path) -> float | None:
    modern = (_read(root / "sys/fs/cgroup/cpu.max") or "").split()
    if len(modern) == 2:
        return _ratio(modern[0], modern[1])
    old = root / "sys/fs/cgroup/cpu"
    return _ratio(_read(old / "cpu.cfs_quota_us"), _read(old / "cpu.cfs_period_us"))


def _ratio(quota: str | None, period: str | None) -> float | None:
    try:
        value = int(quota or "") / int(period or "")
    except (ValueError, ZeroDivisionError):
        return None
    return value if value > 0 else None


def _memory_limit(root: Path) -> int | None:
    value = _number(root, "memory.max", "memory/memory.limit_in_bytes")
    return value if value is not None and value < _UNLIMITED else None


@dataclass(frozen=True)
class LimitsMet:
    """How often so far the kernel refused a process or thread, and ended a process for want of memory.

    Counted by the container's cgroup; None = not counted here.
    """

    processes: int | None = None
    memory: int | None = None


def limits_met(root: Path = Path("/")) -> LimitsMet:
    """Read the counters as they are now."""
    return LimitsMet(
        processes=_counter(root, "max", "pids.events", "pids/pids.events"),
        memory=_counter(root, "oom_kill", "memory.events", "memory/memory.oom_control"),
    )


def _counter(root: Path, name: str, *files: str) -> int | None:
    """The number behind `name` in the first of `files` (cgroup v2's, v1's) that is there."""
    for file in files:
        for line in (_read(root / "sys/fs/cgroup" / file) or "").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == name and words[1].isdecimal():
                return int(words[1])
    return None


def _number(root: Path, *files: str) -> int | None:
    """The number in the first of `files` that is there; None for "max"."""
    text = next((found for file in files if (found := _read(root / "sys/fs/cgroup" / file))), "")
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
