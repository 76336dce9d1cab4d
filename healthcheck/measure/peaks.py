"""The most that a GPU and its link can do: NVIDIA's figures (`peaks.toml`) and the limits that follow.

Importable without torch. A datasheet's figure goes by a boost clock that a GPU may exceed, so a result above
the datasheet is possible and one above `hard_limit` is not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib  # Python 3.11, which all environments that measure have at least

FILE = Path(__file__).with_name("peaks.toml")
HEADROOM = 1.15  # how far a GPU of unknown maximum clock may exceed its datasheet
_PCIE = {  # generation -> GT/s of a lane, bytes that carry packets over bytes on the wire
    1: (2.5, 8 / 10),
    2: (5.0, 8 / 10),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),  # a flit of 256 bytes has 8 of CRC and 6 of error correction
}
_PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)


@dataclass(frozen=True)
class Rate:
    """The dense rate of one engine: `tflops` as published (10^12 operations a second), which is
    `per_clock` operations per clock and SM at `mhz`."""

    tflops: float
    per_clock: int
    mhz: float


@dataclass(frozen=True)
class Peaks:
    """The published peaks of one GPU.

    `rates` by engine (fp32, tf32, fp16, bf16, fp8, int8; only those that it has), tensor rates with fp32
    accumulation as PyTorch uses them. `memory_gb_s` in 10^9 bytes a second, `source` the papers.
    """

    name: str
    reported: tuple[str, ...]
    capability: str
    sms: int
    memory_gb_s: float
    source: str
    rates: Mapping[str, Rate]


@functools.cache
def load(file: Path = FILE) -> tuple[Peaks, ...]:
    """Every GPU of peaks.toml; KeyError or TypeError for a file that does not follow its own head."""
    return tuple(_peaks(entry) for entry in tomllib.loads(file.read_text(encoding="utf-8"))["gpu"])


def find(device_name: str, sms: int | None = None) -> Peaks | None:
    """The peaks of the GPU that NVML or torch calls `device_name`; None where none are known.

    `sms` is its count of multiprocessors: another one than published means another GPU, or a slice of one.
    """
    wanted = _plain(device_name)
    for peaks in load():
        if wanted in map(_plain, peaks.reported):
            return peaks if sms in (None, peaks.sms) else None
    return None


def hard_limit(peaks: Peaks, engine: str, max_sm_mhz: float | None) -> float:
    """TFLOP/s that `engine` cannot exceed: all SMs at `max_sm_mhz`, the most that NVML says of their clock.

    Never below the datasheet; with an unknown clock (None or 0) the datasheet and `HEADROOM`. ValueError for
    an engine that the GPU has no rate of.
    """
    rate = peaks.rates.get(engine)
    if rate is None:
        raise ValueError(f"the {peaks.name} has no {engine} rate; it has {', '.join(peaks.rates)}")
    if not max_sm_mhz:
        return rate.tflops * HEADROOM
    return max(rate.tflops, peaks.sms * rate.per_clock * max_sm_mhz / 1e6)


def pcie_bandwidth(generation: int, width: int) -> float:
    """GB/s (10^9 bytes) of a PCIe link in one direction, after line coding and before packet headers.

    What is left after the headers depends on the size of packets: about 0.9 of it with 256 bytes. Source:
    PCI Express Base Specification. ValueError for a generation or a width that PCIe does not have.
    """
    if generation not in _PCIE or width not in _PCIE_WIDTHS:
        known = f"generation 1 to {max(_PCIE)} and width {', '.join(map(str, _PCIE_WIDTHS))}"
        raise ValueError(f"no PCIe link has generation {generation} and width {width}; there are {known}")
    gigatransfers, efficiency = _PCIE[generation]
    return gigatransfers * efficiency * width / 8


def _peaks(entry: Mapping[str, Any]) -> Peaks:
    rates = {engine: Rate(**rate) for engine, rate in entry["rates"].items()}
    return Peaks(**{**entry, "reported": tuple(entry["reported"]), "rates": rates})


def _plain(name: str) -> str:
    return name.strip().casefold().removeprefix("nvidia ")
