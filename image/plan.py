"""A pure function of choices, pins and host facts to a plan, or to every fault at once. Touches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from image import base, wheel
from image.arguments import Arguments
from image.fault import Exit, Fault
from image.host import LATEST, Host
from image.requirements import digest, parse
from image.stack import Stack
from image.wheel import Wheel

TARGETS = ("runtime", "devel")
ROUTES = ("auto", "source", "wheelhouse", "none")
CPU_SECONDS = 15_000  # to compile flash-attn for one GPU generation; 16 cores took 18 min, 2 cores 2 h
GB_A_JOB = 7  # memory of one nvcc at its worst
SOURCE_LIMIT = 45  # minutes: FLASH_ATTN=auto compiles below it, and does without above it
DISK_GB = 35  # of a first build: cache mounts, stages and the image together
DISK_AGAIN_GB = 8  # when the layers of an earlier build are there
_TAG = re.compile(r"\w[\w.-]{0,127}")
_NAME = re.compile(r"([a-z0-9][a-z0-9.-]*(:\d+)?/)?[a-z0-9][a-z0-9._/-]*(:\w[\w.-]{0,127})?")
_STACK_GB = 3.6  # downloads: the stack's wheels,
_DEBIAN_GB = 0.3  # Debian packages of the image,
_TOOLKIT_GB = 1.6  # and the CUDA toolkit, for compiling and for devel


@dataclass(frozen=True)
class Pins:
    """Every pin: the literal stack, and the text of each requirements file by its name."""

    stack: Stack
    files: Mapping[str, str]

    def version(self, name: str) -> str:
        """The locked version of a package of the stack (or of flash-attn)."""
        return self.locked()[name]

    def locked(self) -> dict[str, str]:
        """All locked versions of the stack, flash-attn with them."""
        return {**self._versions("stack.lock"), **self._versions("flash-attn.lock")}

    def named(self) -> dict[str, str]:
        """The versions of what the .in files list by name: what a person asks about."""
        listed = {r.name for f in ("stack.in", "flash-attn.in") for r in parse(self.files[f], f).requirements}
        return {name: version for name, version in sorted(self.locked().items()) if name in listed}

    def _versions(self, file: str) -> dict[str, str]:
        return parse(self.files[file], file).versions


@dataclass(frozen=True)
class FlashAttention:
    """The route, why, and what compiling would take: `minutes` on this host, whatever the route."""

    route: str  # "source" | "wheelhouse" | "none"
    version: str
    reason: str
    minutes: int
    wheel: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything the build is given. Sizes in GB; `..._from` says where a value came from."""

    target: str
    tags: tuple[str, ...]
    gpu_archs: tuple[str, ...]
    archs_from: str
    flash_attn: FlashAttention
    base: base.Choice
    max_jobs: int
    jobs_from: str
    wheelhouse: str
    debian_mirror: str
    pypi_index: str
    ca_bundle: str
    download_gb: float
    disk_gb: float
    disk_free_gb: float
    disk_path: str
    versions: Mapping[str, str]
    lock_digest: str
    build_id: str
    source_date_epoch: int
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values for `plan --json`."""
        return asdict(self)


def make(target: str, arguments: Arguments, pins: Pins, host: Host) -> Plan | tuple[Fault, ...]:
    """Return the plan, or every fault that stands against one."""
    archs, archs_from, faults = choose_archs(arguments.gpu_archs, host.gpu_archs, pins.stack)
    jobs, jobs_from, job_faults = choose_jobs(arguments.max_jobs, host.cores, host.memory_available_gb)
    minutes = compile_minutes(archs, jobs)
    flash, flash_faults = choose_flash_attention(arguments, pins, host, archs, minutes)
    faults += job_faults + flash_faults + _argument_faults(target, arguments, host) + host_faults(host)
    if faults or flash is None:
        return tuple(faults)
    lock_digest = digest(pins.files[f] for f in ("stack.lock", "tools.lock", "flash-attn.lock", "build.lock"))
    identity = [lock_digest, repr(sorted(asdict(pins.stack).items())), " ".join(archs), flash.route]
    toolkit = flash.route == "source" or target == "devel"
    return Plan(
        target=target,
        tags=tags(target, arguments.tag, pins, flash.route),
        gpu_archs=archs,
        archs_from=archs_from,
        flash_attn=flash,
        base=base.choose(arguments.base, host.images),
        max_jobs=jobs,
        jobs_from=jobs_from,
        wheelhouse=host.wheelhouse.path if host.wheelhouse and flash.route == "wheelhouse" else "",
        debian_mirror=arguments.debian_mirror,
        pypi_index=arguments.pypi_index,
        ca_bundle=host.ca_bundle,
        download_gb=round(_STACK_GB + _DEBIAN_GB + (_TOOLKIT_GB if toolkit else 0), 1),
        disk_gb=disk_needed(host.images),
        disk_free_gb=round(host.disk_free_gb, 1),
        disk_path=host.disk_path,
        versions=_versions(pins),
        lock_digest=lock_digest,
        build_id=digest(identity)[:16],
        source_date_epoch=host.source_date_epoch,
        notes=_notes(host, pins.stack, flash, arguments)
        + _moves(tags(target, arguments.tag, pins, flash.route), flash, host),
    )


def choose_archs(asked: str, seen: Iterable[str], stack: Stack) -> tuple[tuple[str, ...], str, list[Fault]]:
    """(architectures, where they came from, faults). Sorted, each once; `seen` on the host's GPUs."""
    if asked.strip():
        names = {name for name in re.split(r"[\s,;]+", asked) if name}
        faults = [fault for name in sorted(names) if (fault := _arch_fault(name, stack))]
        return _sorted(names & set(stack.archs)), "GPU_ARCHS", faults
    served = _sorted(set(seen) & set(stack.archs))
    if served:
        return served, "this machine's GPU, by nvidia-smi", []
    why = "no GPU here that this image serves" if tuple(seen) else "no GPU seen here"
    return (stack.default_arch,), f"the default: {why}", []


def _sorted(archs: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(archs, key=lambda arch: tuple(map(int, arch.split(".")))))


def _arch_fault(name: str, stack: Stack) -> Fault | None:
    known = " ".join(stack.archs)
    if name in stack.archs:
        return None
    if name in stack.archs_too_new:
        needs = f"CUDA {stack.newer_cuda} and driver {stack.newer_driver}"
        needed = f"{needs}; nvcc {stack.cuda_toolkit} cannot target it"
        return Fault(f"GPU_ARCHS has {name}", needed, f"choose from {known}: this image cannot serve {name}")
    if re.fullmatch(r"[3-7]\.\d", name):
        return Fault(f"GPU_ARCHS has {name}", "Ampere (8.0) or newer, for flash-attn", f"choose from {known}")
    if name == "8.7":
        return Fault("GPU_ARCHS has 8.7 (Jetson Orin)", "an x86-64 machine's GPU", f"choose from {known}")
    return Fault(f"GPU_ARCHS has {name!r}", f"one or more of {known}", "for example GPU_ARCHS='8.6 8.9'")


def choose_jobs(asked: str, cores: int, memory_available_gb: float) -> tuple[int, str, list[Fault]]:
    """(compilers at once, where the number came from, faults): what cores and memory allow, never none."""
    if asked:
        if asked.isdigit() and int(asked) > 0:
            return int(asked), "MAX_JOBS", []
        return 1, "MAX_JOBS", [Fault(f"MAX_JOBS={asked}", "a whole number from 1", "for example MAX_JOBS=4")]
    by_memory = int(memory_available_gb // GB_A_JOB)
    jobs = max(1, min(cores, by_memory))
    return jobs, f"{cores} cores, {memory_available_gb:.0f} GB of memory free at {GB_A_JOB} GB a job", []


def compile_minutes(archs: Iterable[str], jobs: int) -> int:
    """Minutes to compile flash-attn: one pass for each GPU generation, as code for 8.0 serves all of 8.x."""
    generations = {arch.split(".")[0] for arch in archs}
    return round(CPU_SECONDS * max(1, len(generations)) / jobs / 60)


def choose_flash_attention(
    arguments: Arguments, pins: Pins, host: Host, archs: tuple[str, ...], minutes: int
) -> tuple[FlashAttention | None, list[Fault]]:
    """The route by the rules of FLASH_ATTN, or the faults against it."""
    asked, version = arguments.flash_attn, pins.version("flash-attn")
    if asked not in ROUTES:
        return None, [
            Fault(f"FLASH_ATTN={asked}", f"one of {', '.join(ROUTES)}", "for example FLASH_ATTN=auto")
        ]
    if asked in ("source", "none"):
        return FlashAttention(asked, version, f"FLASH_ATTN={asked}", minutes), []
    if asked == "wheelhouse" or host.wheelhouse:
        found, faults = choose_wheel(host, pins, archs)
        if faults or not found:
            return None, faults
        return FlashAttention(
            "wheelhouse", version, "WHEELHOUSE has a matching wheel", minutes, found.file
        ), []
    if minutes < SOURCE_LIMIT:
        return FlashAttention("source", version, "no wheelhouse, and compiling is quick enough", minutes), []
    return FlashAttention("none", version, "no wheelhouse, and compiling takes too long", minutes), []


def choose_wheel(host: Host, pins: Pins, archs: tuple[str, ...]) -> tuple[Wheel | None, list[Fault]]:
    """The first flash-attn wheel that serves this stack; else a fault for every one that does not."""
    house, version = host.wheelhouse, pins.version("flash-attn")
    python = "cp" + pins.stack.python.replace(".", "")
    file = f"flash_attn-{version}-{python}-{python}-linux_x86_64.whl"
    needed = f"{file} for torch {pins.version('torch')} and GPU architecture {' '.join(archs)}"
    remedy = "put that wheel there, or FLASH_ATTN=source, or FLASH_ATTN=none without WHEELHOUSE"
    if house is None:
        return None, [Fault("FLASH_ATTN=wheelhouse without WHEELHOUSE", "a directory", "WHEELHOUSE=DIR")]
    if not house.exists:
        return None, [Fault(f"WHEELHOUSE={house.path} is no directory", needed, "correct WHEELHOUSE")]
    if not house.wheels:
        return None, [Fault(f"no flash-attn wheel in {house.path}", needed, remedy)]
    faults = []
    for candidate in house.wheels:
        wrong = wheel.mismatches(
            candidate, version=version, python=pins.stack.python, torch=pins.version("torch"), archs=archs
        )
        if not wrong:
            return candidate, []
        faults.append(Fault(f"{candidate.file} in {house.path}: {'; '.join(wrong)}", needed, remedy))
    return None, faults


def _argument_faults(target: str, arguments: Arguments, host: Host) -> list[Fault]:
    faults = []
    if target not in TARGETS:
        faults.append(Fault(f"target {target}", " or ".join(TARGETS), "for example: build devel"))
    for name, value in (
        ("BASE", arguments.base),
        ("DEBIAN_MIRROR", arguments.debian_mirror),
        ("PYPI_INDEX", arguments.pypi_index),
    ):
        if not value:
            faults.append(Fault(f"{name} is empty", "a value", f"leave {name} out for its default"))
    if arguments.ca_bundle not in ("auto", "none") and host.ca_bundle_fault:
        needed = "certificates in PEM form (-----BEGIN CERTIFICATE-----)"
        cure = "openssl x509 -inform der -in FILE -out FILE.pem converts one; or CA_BUNDLE=auto, or none"
        faults.append(Fault(f"CA_BUNDLE={host.ca_bundle} {host.ca_bundle_fault}", needed, cure))
    kind = _NAME if {"/", ":"} & set(arguments.tag) else _TAG
    if arguments.tag and not kind.fullmatch(arguments.tag):
        needed = "a tag, or an image name in lower case with one"
        faults.append(Fault(f"TAG={arguments.tag!r}", needed, "for example TAG=mine or TAG=me/dyno:mine"))
    return faults + [
        fault
        for name, url in (("DEBIAN_MIRROR", arguments.debian_mirror), ("PYPI_INDEX", arguments.pypi_index))
        if url and (fault := _url_fault(name, url))
    ]


def _url_fault(name: str, url: str) -> Fault | None:
    """What is wrong with it. It stays in the image's history, where anybody could read a password."""
    try:
        parts = urlsplit(url)
        host, secret = parts.hostname, parts.password or parts.username
    except ValueError:
        parts, host, secret = urlsplit(""), None, None
    if secret:
        cure = "let the mirror do without, or run one here that adds it (a caching proxy)"
        return Fault(f"{name} holds a user name or password", "an address without", cure)
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", url):
        return Fault(f"{name}={url!r}", "an http:// or https:// address", f"leave {name} out for its default")
    return None


def host_faults(host: Host) -> list[Fault]:
    """What keeps this host from building, whatever the arguments."""
    faults = []
    if host.arch not in ("x86_64", "amd64", "AMD64"):
        needed = "an x86-64 machine: PyTorch's CUDA stack of this version has no wheels for others"
        faults.append(Fault(f"a {host.arch} machine", needed, "build on an x86-64 machine", Exit.UNUSABLE))
    needed_gb = disk_needed(host.images)
    if host.disk_free_gb < needed_gb:
        found = f"{host.disk_free_gb:.0f} GB free at {host.disk_path}"
        remedy = "free some (docker system prune, docker builder prune), or move the engine's data-root"
        faults.append(Fault(found, f"about {needed_gb:.0f} GB", remedy, Exit.UNUSABLE))
    return faults


def disk_needed(images: Iterable[str]) -> float:
    """GB: less where an earlier image is there, whose layers are not made again."""
    return DISK_AGAIN_GB if any(image.startswith("dyno:") for image in images) else DISK_GB


def tags(target: str, asked: str, pins: Pins, route: str) -> tuple[str, ...]:
    """The image's names. A name that was asked for is used as it is typed, so that its user finds it."""
    devel = "-devel" if target == "devel" else ""
    if asked:
        name = asked if ":" in asked.rpartition("/")[2] or "@" in asked else _with_repository(asked)
        return (name if name.endswith(devel) else name + devel,)
    torch = ".".join(pins.version("torch").split(".")[:2])
    cuda = ".".join(pins.stack.cuda_toolkit.split(".")[:2])
    name = f"dyno:torch{torch}-cuda{cuda}{'-noflash' if route == 'none' else ''}{devel}"
    return (name,) if devel else (name, LATEST)


def _with_repository(asked: str) -> str:
    return f"{asked}:latest" if "/" in asked else f"dyno:{asked}"


def _versions(pins: Pins) -> dict[str, str]:
    own = {"debian": pins.stack.suite, "python": pins.stack.python, "cuda-toolkit": pins.stack.cuda_toolkit}
    return {**own, **pins.named()}


def _notes(host: Host, stack: Stack, flash: FlashAttention, arguments: Arguments) -> tuple[str, ...]:
    notes = []
    unserved = [arch for arch in host.gpu_archs if arch not in stack.archs]
    if unserved:
        notes.append(f"this machine has a GPU of {' and '.join(unserved)}, on which this image cannot run")
    if flash.route == "none":
        notes.append(
            "the image will be WITHOUT flash-attn: its label and its report say so, and verify warns"
        )
    if flash.route == "source" and not arguments.max_jobs and host.memory_available_gb < GB_A_JOB:
        notes.append(f"less than {GB_A_JOB} GB of memory is free: the compiler may be ended for want of it")
    if host.wheelhouse and flash.route != "wheelhouse":
        notes.append(f"WHEELHOUSE is not used, because FLASH_ATTN={arguments.flash_attn}")
    return tuple(notes)


def _moves(names: tuple[str, ...], flash: FlashAttention, host: Host) -> tuple[str, ...]:
    """What a user of dyno:latest would lose by this build: said before it, and how to keep it."""
    if LATEST not in names or flash.route != "none" or host.latest_flash_attn in ("", "none"):
        return ()
    return (
        f"{LATEST} names an image with flash-attn ({host.latest_flash_attn}) and will name this one, "
        "which has none; TAG=mine leaves it where it is",
    )
