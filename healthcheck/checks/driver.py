"""Is the host's driver new enough, and is it the one that programs will load?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from healthcheck.checks.base import Check, Verdict, passed, skipped, unknown, unusable, version, warned

if TYPE_CHECKING:
    from healthcheck.facts.snapshot import Facts
    from healthcheck.manifest import Manifest


_NONE = "No driver in this container."


def _driver(facts: Facts) -> Verdict:
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    # The module's own version stands in where NVML is not mounted: it is the same driver.
    found = facts.gpu.driver or (facts.driver.kernel_driver if facts.driver.device_nodes else None)
    if found is None and not facts.driver.device_nodes:
        return skipped(_NONE)
    if facts.manifest.manifest is None:
        return skipped(f"Driver {found or 'unknown'}; no manifest says which one this environment needs.")
    return _gate(found, facts.manifest.manifest)


def _gate(found: str | None, manifest: Manifest) -> Verdict:
    floor, tested = version(manifest.driver_floor), version(manifest.driver_tested)
    have = version(found)
    if have is None or floor is None or tested is None:
        return unknown(
            f"The driver's version is not known (found {found!r}); {manifest.driver_floor} is needed.",
            "nvidia-smi --query-gpu=driver_version --format=csv  # on the host",
        )
    upgrade = f"Upgrade the host's NVIDIA driver to {manifest.driver_tested} or newer."
    if have < floor:
        return unusable(
            f"Host driver {found}; this image needs {manifest.driver_floor} or newer. (CUDA's forward "
            "compatibility packages help on data-centre GPUs only.)",
            upgrade,
        )
    if have < tested:
        return warned(
            f"Host driver {found} is older than {manifest.driver_tested}, the oldest one tested.", upgrade
        )
    return passed(f"{found} (tested from {manifest.driver_tested})")


def _library_path(facts: Facts) -> Verdict:
    """A compat directory overrides the host's driver; a stub makes every call fail with error 34."""
    bad = [p for p in facts.driver.ld_library_path or () if {"compat", "stubs"} & set(p.split("/"))]
    first = (facts.driver.libcuda or ("none found",))[0]
    if bad:
        good = [p for p in facts.driver.ld_library_path or () if p not in bad]
        return warned(
            f"LD_LIBRARY_PATH puts {', '.join(bad)} before the host's driver (libcuda.so.1: {first}).",
            f"export LD_LIBRARY_PATH={':'.join(good)}",
        )
    if not facts.driver.libcuda:
        return skipped(_NONE)
    return passed(f"libcuda.so.1: {first}", libcuda=list(facts.driver.libcuda))


def _require(facts: Facts) -> Verdict:
    names = [n for n in facts.driver.nvidia_env if n.startswith("NVIDIA_DISABLE_REQUIRE")]
    if names:
        return warned(
            f"{names[0]} is set: the container runtime did not check the driver before the start.",
            f"unset {names[0]}  # and leave it out of docker run, compose or the Dockerfile",
        )
    if not facts.driver.libcuda and not facts.driver.device_nodes:
        return skipped(_NONE)
    return passed("not disabled")


CHECKS = (
    Check("DYN-DRIVER-001", "driver version", _driver),
    Check("DYN-DRIVER-002", "driver library path", _library_path),
    Check("DYN-DRIVER-003", "runtime requirement check", _require),
)
