"""What a wheel's file name and its device code say of where it runs (PEP 427, CUDA fat binaries)."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from image.requirements import canonical

_FATBIN = struct.pack("<I", 0xBA55ED50)
_PTX, _CUBIN = 1, 2
# What zipfile raises for a file cut short, changed on its way, encrypted or packed in a way it does not know.
_DAMAGED = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError)
_LOOK = 64  # bytes; every payload begins with a magic number or compressed text


@dataclass(frozen=True)
class Wheel:
    """`cubins` and `ptx` are the architectures ("8.0") of its device code; empty if not read."""

    file: str
    name: str
    version: str
    local: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]
    cubins: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


def parse(file: str, cubins: Iterable[str] = (), ptx: Iterable[str] = ()) -> Wheel | None:
    """The wheel that a file name describes, or None where it is no wheel's name."""
    if not file.endswith(".whl"):
        return None
    parts = file[: -len(".whl")].split("-")
    if len(parts) not in (5, 6) or not all(parts):
        return None
    version, _, local = parts[1].partition("+")
    pythons, abis, platforms = (tuple(tags.split(".")) for tags in parts[-3:])
    return Wheel(
        file, canonical(parts[0]), version, local, pythons, abis, platforms, tuple(cubins), tuple(ptx)
    )


def mismatches(wheel: Wheel, *, version: str, python: str, torch: str, archs: Iterable[str]) -> list[str]:
    """Clauses "found X, needed Y" that say why the wheel does not serve this stack; empty when it does.

    `python` and `torch` are full or short versions ("3.13", "2.8.0"). The torch that a wheel was built
    for stands in its local version where its maker put it; a plain name says nothing: the build imports it.
    """
    tag = "cp" + "".join(python.split(".")[:2])
    wrong = []
    if wheel.version != version:
        wrong.append(f"version {wheel.version}, needed {version}")
    if tag not in wheel.pythons or not {tag, "abi3", "none"} & set(wheel.abis):
        wrong.append(f"Python {'.'.join(wheel.pythons)}-{'.'.join(wheel.abis)}, needed {tag}")
    if not any(re.fullmatch(r"(many)?linux\w*_x86_64", p) for p in wheel.platforms):
        wrong.append(f"platform {'.'.join(wheel.platforms)}, needed linux_x86_64")
    return wrong + _local_mismatches(wheel.local, torch) + _unserved(wheel, archs)


def _local_mismatches(local: str, torch: str) -> list[str]:
    short = ".".join(torch.split(".")[:2])
    wrong = []
    built_for = re.search(r"torch(\d+\.\d+)", local)
    if built_for and built_for[1] != short:
        wrong.append(f"built for torch {built_for[1]}, needed torch {short}")
    cuda = re.search(r"(?:^|[^a-z])cu(\d\d)", local)
    if cuda and cuda[1] != "12":
        wrong.append(f"built for CUDA {cuda[1]}, needed CUDA 12")
    if "abifalse" in local.lower():  # torch's own wheels have used the C++11 ABI alone since 2.6
        wrong.append("built for the old C++ ABI, needed cxx11abiTRUE")
    return wrong


def _unserved(wheel: Wheel, archs: Iterable[str]) -> list[str]:
    if not wheel.cubins and not wheel.ptx:
        return []
    missing = [arch for arch in archs if not serves(arch, wheel.cubins, wheel.ptx)]
    has = ", ".join([*wheel.cubins, *(f"{arch} PTX" for arch in wheel.ptx)])
    return [f"device code for {has}, needed {' '.join(missing)}"] if missing else []


def serves(arch: str, cubins: Iterable[str], ptx: Iterable[str]) -> bool:
    """Whether a GPU of `arch` can run it: a cubin of its major version not above it, or PTX not above it."""
    want = _number(arch)
    return any(_number(c)[0] == want[0] and _number(c) <= want for c in cubins) or any(
        _number(p) <= want for p in ptx
    )


def _number(arch: str) -> tuple[int, int]:
    major, minor = arch.split(".")
    return int(major), int(minor)


def read(path: Path) -> Wheel | None:
    """Parse the wheel at `path`, with the device code of its libraries. Not a wheel or not whole: None."""
    named = parse(path.name)
    if named is None:
        return None
    found: set[tuple[int, int]] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".so"):
                    found |= device_code(archive.read(member))
    except _DAMAGED:
        return None
    return parse(path.name, _archs(found, _CUBIN), _archs(found, _PTX))


def _archs(found: Iterable[tuple[int, int]], kind: int) -> tuple[str, ...]:
    return tuple(f"{arch // 10}.{arch % 10}" for k, arch in sorted(found) if k == kind)


def device_code(library: bytes) -> set[tuple[int, int]]:
    """(kind, architecture) of each entry of each fat binary in an ELF file: kind 1 PTX, 2 cubin; 89 = 8.9."""
    found: set[tuple[int, int]] = set()
    at = library.find(_FATBIN)
    while at >= 0:
        end = at + 4
        if at + 16 <= len(library):
            header, payload = struct.unpack_from("<HQ", library, at + 6)
            entries, size = _entries(library, at + header, payload)
            found |= entries
            end = max(end, at + size)
        at = library.find(_FATBIN, end)
    return found


def _entries(library: bytes, at: int, payload: int) -> tuple[set[tuple[int, int]], int]:
    """The entries of one container, and its size; nothing for one that does not parse to its end."""
    found: set[tuple[int, int]] = set()
    start, stop = at, at + payload
    while at < stop:
        if stop > len(library) or at + 32 > stop:
            return set(), 0
        kind, size, length, arch = struct.unpack_from("<HxxIQ12xI", library, at)
        if size < 32:
            return set(), 0
        if any(library[at + size : at + size + _LOOK]):  # pruned libraries keep headers over zeroed payloads
            found.add((kind, arch))
        at += size + length
    return (found, stop - start) if at == stop else (set(), 0)
