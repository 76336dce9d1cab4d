"""Reads requirements/*.in (the pins) and *.lock (what they resolved to), and says where the two disagree."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from image.fault import Exit, Fault, Stop

NAMES = ("stack", "tools", "flash-attn", "build", "test", "local")  # in the order in which they are locked
_ENTRY = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(?:==\s*([^\s;,]+))?\s*(?:;\s*(.*))?$"
)
_HASH = re.compile(r"--hash=(\w+:[0-9a-f]+)")


@dataclass(frozen=True)
class Requirement:
    """One line: `version` is "" where it is left to a constraint, `hashes` are empty in a .in file."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """One file: its requirements, and the files that it names with -r and -c."""

    requirements: tuple[Requirement, ...]
    includes: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        return {r.name: r.version for r in self.requirements if r.version}


def canonical(name: str) -> str:
    """The name by which an index knows a package: `Flash_Attn` and `flash-attn` are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str, source: str) -> Listing:
    """Parse a .in or .lock file; `source` names it in the fault for a line that is neither pin nor option."""
    requirements, includes, constraints = [], [], []
    for line in _logical_lines(text):
        option, _, operand = line.partition(" ")
        if option in ("-r", "--requirement"):
            includes.append(operand.strip())
        elif option in ("-c", "--constraint"):
            constraints.append(operand.strip())
        else:
            hashes = tuple(_HASH.findall(line))
            match = _ENTRY.match(_HASH.sub("", line).strip())
            if not match:
                found = f"{source}: {line!r}"
                raise Stop(
                    [Fault(found, "name==version, -r FILE or -c FILE", f"correct {source}", Exit.FAILED)]
                )
            name, version, marker = match.groups()
            requirements.append(Requirement(canonical(name), version or "", (marker or "").strip(), hashes))
    return Listing(tuple(requirements), tuple(includes), tuple(constraints))


def _logical_lines(text: str) -> list[str]:
    bare = (re.sub(r"(^|\s)#.*$", "", line) for line in text.splitlines())
    joined = re.sub(r"\\\s*\n", " ", "\n".join(line.rstrip() for line in bare))
    return [line.strip() for line in joined.splitlines() if line.strip()]


@dataclass(frozen=True)
class Pins:
    """What one .in file asks for: names that its lock must hold, and versions that bind any name in it."""

    names: frozenset[str]
    versions: Mapping[str, str]


def pins(listings: Mapping[str, Listing], name: str) -> Pins:
    """The pins of `name`.in with what it includes and is constrained by; `listings` by file name."""
    listing = listings[f"{name}.in"]
    names = {r.name for r in listing.requirements}
    versions = dict(listing.versions)
    for other in listing.includes:
        included = pins(listings, Path(other).stem)
        names |= included.names
        versions |= included.versions
    for other in listing.constraints:
        versions |= pins(listings, Path(other).stem).versions
    return Pins(frozenset(names), versions)


def disagreements(asked: Pins, lock: str, source: str) -> list[str]:
    """Sentences that say where the text of a lock is not what the pins ask for; empty when it is."""
    locked = parse(lock, source).requirements
    found = {r.name for r in locked}
    wrong = [f"{source} lacks {name}, which its .in file lists" for name in sorted(asked.names - found)]
    wrong += [
        f"{source} has {r.name} {r.version or 'without a version'}, the pin is {asked.versions[r.name]}"
        for r in locked
        if r.name in asked.versions and r.version != asked.versions[r.name]
    ]
    wrong += [
        f"{source}: {r.name} has no version" for r in locked if not r.version and r.name not in asked.versions
    ]
    wrong += [f"{source}: {r.name} has no hash" for r in locked if not r.hashes]
    if "://" in lock:
        wrong.append(f"{source} names a URL: a lock must serve every index, so it may name none")
    return wrong


def read(directory: Path) -> dict[str, str]:
    """The text of every .in and .lock file by file name; a missing one is a fault that names it."""
    files = [directory / f"{name}.{kind}" for name in NAMES for kind in ("in", "lock")]
    absent = [f.name for f in files if not f.is_file()]
    if absent:
        remedy = "make lock" if all(f.endswith(".lock") for f in absent) else "restore it from the repository"
        raise Stop(
            [Fault(f"no {', '.join(absent)} in {directory}", "every pin and its lock", remedy, Exit.FAILED)]
        )
    return {f.name: f.read_text(encoding="utf-8") for f in files}


def all_disagreements(files: Mapping[str, str]) -> list[str]:
    """The disagreements of every lock in `files`, as `read` gives them."""
    listings = {f: parse(text, f) for f, text in files.items() if f.endswith(".in")}
    return [
        line
        for name in NAMES
        for line in disagreements(pins(listings, name), files[f"{name}.lock"], f"{name}.lock")
    ]


def digest(texts: Iterable[str]) -> str:
    """sha256 (hex) over texts, each ended so that no two lists of texts share one digest."""
    total = hashlib.sha256()
    for text in texts:
        total.update(f"{len(text.encode())}:".encode() + text.encode())
    return total.hexdigest()
