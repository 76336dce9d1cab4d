"""The four CUDA versions, always apart: none of them can be derived from another."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from healthcheck.checks.base import Check, Verdict, failed, passed, skipped, version
from healthcheck.facts.stack import CPU_BUILD
from healthcheck.result import Result, Status

if TYPE_CHECKING:
    from healthcheck.facts.collect import Facts


def four_versions(facts: Facts) -> dict[str, str | None]:
    """Driver, the newest CUDA it serves, the CUDA torch was built with, and the toolkit's; None = unknown."""
    manifest = facts.manifest.manifest
    nvcc = facts.stack.program("nvcc")
    toolkit = nvcc.version if nvcc else None
    if toolkit is None and manifest is not None:
        toolkit = f"{manifest.toolkit} (nvcc itself: devel image)"
    return {
        "driver": facts.gpu.driver,
        "driver's CUDA": facts.gpu.driver_cuda,
        "torch's CUDA": facts.stack.torch_cuda,
        "toolkit's CUDA": toolkit,
    }


def _versions(facts: Facts) -> Verdict:
    found = four_versions(facts)
    text = ", ".join(f"{name} {value or 'unknown'}" for name, value in found.items())
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    driver, torch = version(facts.gpu.driver_cuda), version(facts.stack.torch_cuda)
    if facts.gpu.visible and facts.stack.torch_cuda == CPU_BUILD:
        return failed(
            f"torch {facts.stack.torch_version} was built without CUDA, so it cannot use the GPU ({text}).",
            f"pip install --force-reinstall --no-deps torch=={_wanted_torch(facts)}",
            **found,
        )
    if driver is None or torch is None:
        return skipped(f"Nothing to compare: {text}.")
    if driver[0] < torch[0]:
        return failed(
            f"The driver serves CUDA {facts.gpu.driver_cuda}, torch was built with {facts.stack.torch_cuda}: "
            f"within one major version any pair works, across them none ({text}).",
            f"Upgrade the host's NVIDIA driver to one that serves CUDA {torch[0]}.",
            **found,
        )
    return passed(text, **found)


def _wanted_torch(facts: Facts) -> str:
    manifest = facts.manifest.manifest
    pinned = manifest.stack.get("torch") if manifest else None
    return pinned or (facts.stack.torch_version or "VERSION").partition("+")[0]


INITIALISATION = ("DYN-CUDA-002", "CUDA initialisation")
_UPGRADE = "Upgrade the host's NVIDIA driver to 550.90.07 or newer."
_OWN_LIBRARY = "unset LD_LIBRARY_PATH  # it puts another libcuda.so.1 before the host's"
# What the driver says, by number or in words -> the line that fixes it. The first that matches counts.
_REMEDIES = (
    (r"\b804\b|forward compatibility", f"{_UPGRADE}\n{_OWN_LIBRARY}"),
    (r"\b803\b|unsupported display driver", f"{_OWN_LIBRARY}\n{_UPGRADE}"),
    (r"\b802\b|not yet initialized", "sudo systemctl start nvidia-fabricmanager  # on the host"),
    (r"\b34\b|stub library", _OWN_LIBRARY),
    (r"\b35\b|driver version is insufficient|driver on your system is too old", _UPGRADE),
    (r"\b222\b|unsupported toolchain", _UPGRADE),
    (r"\b46\b|busy or unavailable", "sudo nvidia-smi -c DEFAULT  # on the host; or end what holds the GPU"),
    (r"\b100\b|no CUDA-capable|No CUDA GPUs|no NVIDIA driver", "docker run --rm -it --gpus all dyno"),
    (
        r"\b999\b|unknown error",
        "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm  # on the host; reboot it if that fails",
    ),
)


def initialisation(error: str | None) -> Result:
    """Whether CUDA starts: `error` is what it said, "" where it does, None where nobody asked."""
    if error is None:
        return Result(*INITIALISATION, Status.SKIP, "needs a GPU")
    if not error:
        return Result(*INITIALISATION, Status.PASS, "a tensor was made on the GPU")
    remedy = next((line for pattern, line in _REMEDIES if re.search(pattern, error, re.I)), None)
    return Result(
        *INITIALISATION,
        Status.FAIL,
        f"A GPU is listed, but CUDA does not start: {error}",
        remedy or "nvidia-smi  # on the host: does it list this GPU, and without an error?",
        unusable=True,
    )


CHECKS = (Check("DYN-CUDA-001", "four CUDA versions", _versions),)
