"""Where an image's gigabytes are: unpacked size by layer, with the instruction that made it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from image.fault import Exit, Fault, Stop
from image.shell import Run

_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_WIDTH = 84


@dataclass(frozen=True)
class Layer:
    """`size` in bytes, unpacked."""

    size: int
    instruction: str


def read(image: str, run: Run) -> list[Layer]:
    """The layers of `image`, the newest first."""
    done = run(
        ["docker", "history", "--no-trunc", "--human=false", "--format", "{{json .}}", image], time_limit=60
    )
    if not done.ok:
        raise Stop(
            [Fault(f"{image}: {done.last_line}", "an image that is here", "docker image ls", Exit.FAILED)]
        )
    return parse(done.stdout)


def parse(text: str) -> list[Layer]:
    """The layers in `docker history`'s JSON lines."""
    rows = (json.loads(line) for line in text.splitlines() if line.strip())
    return [
        Layer(_bytes(str(row["Size"])), _instruction(row["CreatedBy"] or row.get("Comment", "")))
        for row in rows
    ]


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([\d.]+)\s*([kMGT]?B)?", text.strip())
    return round(float(match[1]) * _UNITS[match[2] or "B"]) if match else 0


def _instruction(created_by: str) -> str:
    """The instruction without the shell's name and BuildKit's trailing remark, on one line."""
    text = re.sub(r"\s*# buildkit$", "", " ".join(created_by.split()))
    text = re.sub(r"^RUN \|\d+ .*? (?=/bin/(?:ba)?sh -)", "RUN ", text)
    return re.sub(r"^(RUN )?/bin/(?:ba)?sh (?:-\S+ )*(?:#\(nop\) )?", r"\1", text).strip()


def table(image: str, layers: list[Layer]) -> str:
    """Largest first, the empty ones left out, and the total."""
    total = sum(layer.size for layer in layers)
    rows = [
        f"{layer.size / 1e6:>9.1f} MB  {100 * layer.size / total:>3.0f} %  {_short(layer.instruction)}"
        for layer in sorted(layers, key=lambda layer: -layer.size)
        if layer.size
    ]
    empty = sum(not layer.size for layer in layers)
    return "\n".join(
        [*rows, f"{total / 1e6:>9.1f} MB         {image}, unpacked ({empty} instructions added no file)"]
    )


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
