"""Every pin that is not a Python package. Literal: a test holds the Dockerfile's defaults to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stack:
    """The versions that the image is made of. Python packages are pinned in requirements/*.in instead."""

    suite: str  # Debian release: its non-free section has the toolkit, its main section FFmpeg 7.1 with NVENC
    python: str  # the release's own, so that headers and interpreter are one build
    cuda_toolkit: str  # nvcc of the build; torch brings CUDA libraries of its own, of another version
    driver_floor: str  # below it the stack is refused
    driver_tested: str  # below it, down to the floor, a warning
    archs: tuple[str, ...]  # compute capabilities that this nvcc can target and flash-attn can run on
    default_arch: str
    archs_too_new: tuple[str, ...]  # need `newer_cuda` and `newer_driver`: this image cannot serve them
    newer_cuda: str
    newer_driver: str
    debian_mirror: str
    pypi_index: str
    source_date_epoch: int  # time of everything built, unless the environment says another


STACK = Stack(
    suite="trixie",
    python="3.13",
    cuda_toolkit="12.4.131",
    driver_floor="550",
    driver_tested="550.90.07",
    archs=("8.0", "8.6", "8.9", "9.0"),
    default_arch="8.9",
    archs_too_new=("10.0", "10.3", "12.0", "12.1"),
    newer_cuda="12.8",
    newer_driver="570",
    debian_mirror="http://deb.debian.org/debian",
    pypi_index="https://pypi.org/simple",
    source_date_epoch=1_754_006_400,  # 2025-08-01
)
