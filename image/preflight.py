"""Can this host run the image: engine, compose, NVIDIA driver, and whether Docker can hand a GPU on."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from image import engine, host, install
from image.engine import Engine, at_least
from image.fault import Exit
from image.shell import Done, Run
from image.stack import STACK, Stack

_CDI = ("/etc/cdi", "/var/run/cdi")
_HOOK = "nvidia-container-runtime-hook"  # what `--gpus` calls; the engine looks for it when it starts
_TOOLKIT = (
    "install nvidia-container-toolkit "
    "(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit), then: "
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)


@dataclass(frozen=True)
class Line:
    """One subject: `ok`, what was found, and where it is not ok the line that fixes it and the exit code."""

    subject: str
    ok: bool
    found: str
    remedy: str = ""
    exit: Exit = Exit.OK

    def __str__(self) -> str:
        mark = "ok  " if self.ok else "warn" if self.exit is Exit.OK else "FAIL"
        fix = f"\n                fix: {self.remedy}" if self.remedy else ""
        return f"{mark}  {self.subject:<8}  {self.found}{fix}"


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi; "" for a field that it does not know."""

    name: str
    driver: str
    compute_capability: str
    memory: str


def read(run: Run) -> list[Line]:
    """Look at everything."""
    found = engine.find(run)
    query = "--query-gpu=name,driver_version,compute_cap,memory.total"
    smi = run(["nvidia-smi", query, "--format=csv,noheader"], time_limit=15)
    if not smi.ok and "compute_cap" in smi.stdout + smi.stderr:  # drivers before 510 do not know the field
        smi = run(
            ["nvidia-smi", query.replace("compute_cap", "pci.bus_id"), "--format=csv,noheader"], time_limit=15
        )
    directories = [Path(d) for d in dict.fromkeys((*found.cdi_directories, *_CDI))]
    cdi = [str(f) for d in directories if d.is_dir() for f in sorted(d.iterdir()) if "nvidia" in f.name]
    lines = engine_lines(found, install.command(install.read_system(run)))
    lines += driver_lines(smi, STACK)
    lines.append(passing_line(found, shutil.which(_HOOK) or "", cdi))
    lines.append(memory_line(*host.memory(Path("/proc/meminfo"))))
    return lines


def engine_lines(found: Engine, command: str) -> list[Line]:
    """Engine and compose."""
    faults = engine.problems(found, command)
    if not faults:
        return [Line("engine", True, install.describe(found))]
    return [
        Line("engine", False, f"{fault.found}, needed {fault.needed}", fault.remedy, Exit.UNUSABLE)
        for fault in faults
    ]


def parse_gpus(text: str) -> list[Gpu]:
    """One GPU a line; `[N/A]`, `[Not Supported]` and their kind are unknown, and odd lines are no GPUs."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4:
            gpus.append(Gpu(*("" if field.startswith("[") else field for field in fields)))
    return gpus


def driver_lines(smi: Done, stack: Stack) -> list[Line]:
    """The driver against its floor and the tested version, and each GPU against what the image can serve."""
    gpus = parse_gpus(smi.stdout) if smi.ok else []
    if not gpus:
        said = (
            "no nvidia-smi on PATH: no NVIDIA driver here"
            if smi.returncode == 127
            else f"nvidia-smi: {smi.last_line}"
        )
        remedy = (
            f"install the NVIDIA driver {stack.driver_tested} or newer "
            "(after an update of the driver: reboot); without a GPU: healthcheck selftest --device cpu"
        )
        return [Line("driver", False, said, remedy, Exit.UNUSABLE)]
    return [_driver_line(gpus[0].driver, stack), *(_gpu_line(gpu, stack) for gpu in gpus)]


def _driver_line(driver: str, stack: Stack) -> Line:
    upgrade = f"upgrade the NVIDIA driver to {stack.driver_tested} or newer"
    if not at_least(driver, stack.driver_floor):
        found = f"driver {driver or 'of unknown version'}, needed {stack.driver_floor} or newer"
        return Line("driver", False, found, upgrade, Exit.UNUSABLE)
    if not at_least(driver, stack.driver_tested):
        found = f"driver {driver}: new enough to run, older than the tested {stack.driver_tested}"
        return Line("driver", False, found, upgrade)
    return Line("driver", True, f"driver {driver} (tested with {stack.driver_tested})")


def _gpu_line(gpu: Gpu, stack: Stack) -> Line:
    name = f"{gpu.name or 'GPU'}, {gpu.memory or 'memory unknown'}"
    if gpu.compute_capability in stack.archs:
        return Line("GPU", True, f"{name}, compute capability {gpu.compute_capability}")
    if not host.parse_compute_capabilities(gpu.compute_capability):
        remedy = "look it up at https://developer.nvidia.com/cuda-gpus and build with GPU_ARCHS=<it>"
        return Line("GPU", False, f"{name}, compute capability unknown", remedy)
    found = f"{name}, compute capability {gpu.compute_capability}: this image serves {' '.join(stack.archs)}"
    needs = (
        f"it needs an image with CUDA {stack.newer_cuda}"
        if gpu.compute_capability in stack.archs_too_new
        else ""
    )
    return Line(
        "GPU", False, found, needs or "use a GPU of the Ampere, Ada or Hopper generation", Exit.UNUSABLE
    )


def passing_line(found: Engine, hook: str, cdi: Iterable[str]) -> Line:
    """Whether Docker can hand a GPU to a container: by the hook that --gpus calls, a runtime, or CDI."""
    ways = [f"hook {hook}"] if hook else []
    ways += ["runtime nvidia"] if "nvidia" in found.runtimes else []
    ways += [f"CDI {', '.join(cdi)}"] if (cdi := list(cdi)) else []
    if not ways:
        return Line(
            "docker",
            False,
            "Docker cannot hand a GPU on: no NVIDIA runtime, hook or CDI file",
            _TOOLKIT,
            Exit.FAILED,
        )
    if ways[0].startswith("CDI") and not at_least(found.server, "28.2"):
        remedy = f"run with --device nvidia.com/gpu=all, or {_TOOLKIT}"
        return Line(
            "docker", False, f"{ways[0]} alone: --gpus all does not use it in Docker {found.server}", remedy
        )
    return Line("docker", True, f"can hand a GPU on: {'; '.join(ways)}")


def memory_line(total: float, available: float) -> Line:
    """Memory, for information: no figure here is a failure."""
    return Line("memory", True, f"{total:.0f} GB, {available:.0f} GB free")


def exit_code(lines: Iterable[Line]) -> Exit:
    """The highest of the lines: 3 where nothing can run, 1 where a setting is missing, 0 with warnings."""
    return max((line.exit for line in lines), default=Exit.OK)
