"""Stand-ins for the host and the command runner, for the builder's tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from image import requirements
from image.engine import Engine
from image.host import Host
from image.install import System
from image.plan import Pins
from image.shell import NOT_FOUND, Done
from image.stack import STACK

ROOT = Path(__file__).resolve().parents[2]
FILES = requirements.read(ROOT / "requirements")
PINS = Pins(STACK, FILES)
ENGINE = Engine(client="26.1.5", server="26.1.5", buildx="0.13.1", compose="2.26.1", builder="default")
DEBIAN = System({"ID": "debian", "VERSION_ID": "13"}, root=True, systemd=False, docker_ce=False)


@dataclass
class FakeRun:
    """Answers the commands it knows by their longest known beginning; any other is not installed."""

    answers: Mapping[Any, Done]
    seen: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], **_: Any) -> Done:
        self.seen.append(tuple(argv))
        known = [start for start in self.answers if tuple(argv[: len(start)]) == start]
        return self.answers[max(known, key=len)] if known else Done(NOT_FOUND, stderr=f"{argv[0]}: not found")


def host(**changes: Any) -> Host:
    """A machine on which everything is in order: 16 cores, 128 GB, no GPU."""
    facts: dict[str, Any] = {
        "arch": "x86_64",
        "cores": 16,
        "memory_gb": 128.0,
        "memory_available_gb": 120.0,
        "disk_free_gb": 100.0,
        "disk_path": "/var/lib/docker",
        "gpu_archs": (),
        "engine": ENGINE,
        "system": DEBIAN,
        "images": (),
        "latest_flash_attn": "",
        "wheelhouse": None,
        "ca_bundle": "",
        "ca_bundle_fault": "",
        "source_date_epoch": 1,
    }
    return Host(**{**facts, **changes})


def fat_binary(*entries: tuple[int, int], zeroed: bool = False) -> bytes:
    """A CUDA fat binary with the given (kind, architecture) entries."""
    body = b""
    for kind, arch in entries:
        payload = bytes(100) if zeroed else b"\x7fELF" + bytes(96)
        body += struct.pack("<HHIQ12xI", kind, 0x101, 64, len(payload), arch) + bytes(32) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
