"""The four CUDA versions, always apart: none of them can be derived from another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from healthcheck.checks.base import Check, Verdict, failed, passed, skipped, version
from healthcheck.facts.stack import CPU_BUILD
from healthcheck.remedies import OUT_OF_MEMORY, known_remedy
from healthcheck.result import Result, Status

if TYPE_CHECKING:
    from healthcheck.facts.snapshot import Facts


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


def initialisation(error: str | None) -> Result:
    """Whether CUDA starts: `error` is what it said, "" where it does, None where nobody asked."""
    if error is None:
        return Result(*INITIALISATION, Status.SKIP, "needs a GPU")
    if not error:
        return Result(*INITIALISATION, Status.PASS, "a tensor was made on the GPU")
    remedy = known_remedy(error)
    if remedy == OUT_OF_MEMORY:  # the environment is sound, and only taken
        return Result(*INITIALISATION, Status.FAIL, f"The GPU's memory is full: {error}", remedy)
    return Result(
        *INITIALISATION,
        Status.FAIL,
        f"A GPU is listed, but CUDA does not start: {error}",
        remedy or "nvidia-smi  # on the host: does it list this GPU, and without an error?",
        unusable=True,
    )


CHECKS = (Check("DYN-CUDA-001", "four CUDA versions", _versions),)
