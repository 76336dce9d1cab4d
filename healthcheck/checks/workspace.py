"""Can programs write, cache, execute and share memory where they will try to?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from healthcheck.checks.base import Check, Verdict, failed, passed, size, skipped, unknown, unusable, warned
from healthcheck.facts.container import CACHES, LAYOUT, WORKSPACE, ContainerFacts, Directory, LimitsMet

if TYPE_CHECKING:
    from healthcheck.facts.snapshot import Facts

_SHM_LEAST = 1 << 30
_PROCESSES_LEAST = 256
_MEMORY_LEAST = 4 << 30
MORE_PROCESSES = "docker run --pids-limit -1 ..."
MORE_MEMORY = "docker run --memory 8g ..."
_MOUNT_BELOW = (
    f'docker run -v "$PWD":{WORKSPACE}/project ...  # below {WORKSPACE}, which belongs to the image\n'
    "sudo chown -R 1000:0 DIRECTORY  # or, on the host: make the one that is mounted there the user's"
)
_COMPILED = ("cache", "inductor cache", "triton cache")  # shared objects are loaded from these


def _layout(facts: Facts) -> Verdict:
    if not _applies(facts):
        return skipped("Not part of this environment.")
    missing = [d.path for d in _directories(facts, tuple(LAYOUT)) if d.exists is False]
    if not missing:
        return passed(", ".join(LAYOUT.values()))
    workspace = facts.container.directory("workspace")
    if workspace is not None and workspace.writable is False:
        return warned(f"Missing: {', '.join(missing)}; and {WORKSPACE} cannot be written.", _MOUNT_BELOW)
    return warned(f"Missing: {', '.join(missing)}.", f"mkdir -p {' '.join(missing)}")


def _output(facts: Facts) -> Verdict:
    if not _applies(facts):
        return skipped("Not part of this environment.")
    output = facts.container.directory("output")
    if output is None or output.writable is None:
        return unknown(
            "Whether the output directory can be written is not known.", f"ls -ld {LAYOUT['output']}"
        )
    if output.writable:
        return passed(f"{output.path} is writable")
    if output.full:
        return unusable(f"{_full(output)}: nothing can be saved there.", _more_room(output.path))
    if output.read_only:
        # Whoever mounts read-only does so on purpose: results then go to stdout or a volume.
        return warned(
            f"{output.path} is on a read-only file system: nothing can be saved there.",
            f"docker run -v dyno-output:{output.path} ...",
        )
    return unusable(
        f"{output.path} cannot be written by uid {facts.container.uid}, gid {facts.container.gid}.",
        # Made before: a directory that the engine makes for a mount is root's.
        f'mkdir -p output && docker run --user "$(id -u):0" -v "$PWD/output:{output.path}" ...',
    )


def _caches(facts: Facts) -> Verdict:
    found = _directories(facts, tuple(CACHES))
    full = [d for d in found if d.full]
    bad = [d for d in found if d.writable is False]
    if full:
        return failed(
            f"{'; '.join(dict.fromkeys(map(_full, full)))}: nothing can be kept there.",
            _more_room(_outermost(full)),
        )
    if bad:
        return failed(
            f"Cannot be written by uid {facts.container.uid}: {_listed(bad)}.",
            f"docker run -v dyno-cache:{_outermost(bad)} ...",
        )
    return passed("writable") if found else skipped("No cache directory is set.")


def _cache_exec(facts: Facts) -> Verdict:
    """docker mounts a tmpfs noexec unless told otherwise, and a kernel compiled there cannot be loaded."""
    bad = [d for d in _directories(facts, _COMPILED) if d.executable is False]
    if bad:
        return failed(
            f"Mounted noexec, so that compiled kernels cannot be loaded from there: {_listed(bad)}.",
            f"docker run --tmpfs {_outermost(bad)}:exec ...",
        )
    if not _directories(facts, _COMPILED):
        return skipped("No cache directory is set.")
    return passed("compiled code can be loaded from the caches")


def _temporary(facts: Facts) -> Verdict:
    tmp = facts.container.directory("tmp")
    if tmp is None or tmp.writable is None:
        return unknown("Whether the temporary directory can be written is not known.", "ls -ld /tmp")
    if not tmp.writable:
        why = _full(tmp) if tmp.full else f"{tmp.path} cannot be written"
        return failed(f"{why}: Python finds no temporary directory.", _temporary_remedy(tmp))
    if tmp.executable is False:
        return warned(
            f"{tmp.path} is mounted noexec: programs that compile and load code there fail.",
            _temporary_remedy(tmp),
        )
    return passed(f"{tmp.path} is writable")


def _temporary_remedy(tmp: Directory) -> str:
    """The line that gives a container a temporary directory in which everything is allowed."""
    return f"docker run --tmpfs {tmp.path}:exec ..."


def _shared_memory(facts: Facts) -> Verdict:
    found = facts.container.shm_bytes
    remedy = "docker run --shm-size=8g ...  # compose: shm_size: 8g"
    if found is None:
        return unknown("The size of /dev/shm is not known.", remedy)
    if found < _SHM_LEAST:
        return warned(
            f"/dev/shm has {size(found)}; data loader workers and NCCL need 1 GiB, or end with a bus error.",
            remedy,
        )
    return passed(size(found))


def _user(facts: Facts) -> Verdict:
    """torch.compile asks for the user's name, and getpwuid fails for a uid without a passwd entry."""
    container = facts.container
    if container.has_passwd_entry is False and not container.user:
        return failed(
            f"uid {container.uid} has no passwd entry and USER is not set: torch.compile needs a name.",
            "docker run -e USER=dyno -e HOME=/workspace ...",
        )
    home = container.directory("home")
    if home is not None and home.writable is False and not home.read_only:
        said = f"HOME is {home.path}, which uid {container.uid} cannot write: settings and logins are lost."
        workspace = container.directory("workspace")
        if home.path == WORKSPACE or (workspace is not None and workspace.writable is False):
            return warned(said, _MOUNT_BELOW)
        return warned(said, f"docker run -e HOME={WORKSPACE} ...")
    return passed(f"uid {container.uid}, {container.user or 'named in passwd'}")


def _processes(facts: Facts) -> Verdict:
    limit = facts.container.process_limit
    if limit is not None and limit < _PROCESSES_LEAST:
        return warned(
            f"The container may hold {limit} processes and threads; PyTorch, its compilers and data loader "
            f"workers need {_PROCESSES_LEAST}.",
            MORE_PROCESSES,
        )
    return passed("no limit known" if limit is None else f"{limit} processes and threads")


def _memory(facts: Facts) -> Verdict:
    limit = facts.container.memory_limit
    if limit is not None and limit < _MEMORY_LEAST:
        return warned(
            f"The container may use {size(limit)} of memory; PyTorch with its CUDA libraries and a compiler "
            f"need {size(_MEMORY_LEAST)}.",
            MORE_MEMORY,
        )
    return passed("no limit known" if limit is None else size(limit))


def shortage(before: LimitsMet, after: LimitsMet, container: ContainerFacts) -> str:
    """The line that lifts the limit of the container which was met between the two, "" where none was."""
    if (after.memory or 0) > (before.memory or 0):
        limit = container.memory_limit
        which = f"the memory limit of {size(limit)}" if limit else "the end of the host's memory"
        return f"{MORE_MEMORY}  # {which} was met"
    if (after.processes or 0) > (before.processes or 0):
        limit = container.process_limit
        which = f"the limit of {limit}" if limit else "the host's limit of"
        return f"{MORE_PROCESSES}  # {which} processes and threads was met"
    return ""


def _full(directory: Directory) -> str:
    free = "" if directory.free_bytes is None else f" ({size(directory.free_bytes)} free)"
    return f"{directory.path} is full{free}"


def _more_room(path: str) -> str:
    return f"docker run -v /path/with/space:{path} ...  # or delete what is not needed there"


def _applies(facts: Facts) -> bool:
    """The layout is the image's promise; a local environment has it only by chance."""
    if facts.manifest.manifest is not None or facts.manifest.error is not None:
        return True
    return any(d.exists for d in _directories(facts, ("workspace",)))


def _directories(facts: Facts, roles: tuple[str, ...]) -> list[Directory]:
    return [d for d in facts.container.directories if d.role in roles]


def _listed(directories: list[Directory]) -> str:
    return ", ".join(dict.fromkeys(d.path for d in directories))


def _outermost(directories: list[Directory]) -> str:
    """The directory to mount: the caches lie inside one another, and the shortest path holds the rest."""
    return min((d.path for d in directories), key=len)


CHECKS = (
    Check("DYN-WORK-001", "workspace layout", _layout),
    Check("DYN-WORK-002", "output writable", _output),
    Check("DYN-WORK-003", "caches writable", _caches),
    Check("DYN-WORK-004", "caches executable", _cache_exec),
    Check("DYN-WORK-005", "temporary directory", _temporary),
    Check("DYN-WORK-006", "shared memory", _shared_memory),
    Check("DYN-WORK-007", "user and home", _user),
    Check("DYN-WORK-008", "process limit", _processes),
    Check("DYN-WORK-009", "memory limit", _memory),
)
