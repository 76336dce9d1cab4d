"""Is there a GPU, and can this image's code run on it? Standard library only: the probe shares `visible`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from healthcheck.checks.base import (
    Check,
    Verdict,
    failed,
    passed,
    size,
    skipped,
    unknown,
    unusable,
    version,
    warned,
)
from healthcheck.facts.gpu import Selection, selected

if TYPE_CHECKING:
    from healthcheck.facts.driver import DriverTraces
    from healthcheck.facts.gpu import Gpu, GpuFacts
    from healthcheck.facts.snapshot import Facts
    from healthcheck.manifest import Manifest

HOW_TO_GIVE_A_GPU = """\
docker run --rm -it --gpus all dyno
docker compose run --rm shell
podman run --rm -it --device nvidia.com/gpu=all dyno
healthcheck verify --device cpu  # where no GPU is meant to be used"""
RECREATE = """\
docker rm -f CONTAINER && docker run --gpus all ...  # recreate the container
docker compose up --force-recreate  # the same with compose"""
_NO_GPU = "No GPU visible."
_HIDDEN = ("none", "void", "")
_TOO_NEW = (10, 0)  # first architecture that CUDA 12.4 cannot compile for
_TORCH_OLDEST = (7, 0)  # the oldest one in torch 2.8's CUDA 12.8 wheels


def visible(gpu: GpuFacts, traces: DriverTraces) -> Verdict:
    """Whether at least one GPU answers, and if none does, which of the known causes it is."""
    if gpu.gpus:
        return _answering(gpu.gpus)
    hidden = traces.nvidia_env.get("NVIDIA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in _HIDDEN:
        return unusable(
            f"NVIDIA_VISIBLE_DEVICES={hidden!r} hides every GPU from this container.",
            "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all ...\n"
            "docker run -e DYNO_DEVICE=cpu ...  # where no GPU is meant to be used",
        )
    if gpu.gpus is not None:
        return unusable("The driver answers, but it shows this container no GPU.", HOW_TO_GIVE_A_GPU)
    return _without_nvml(gpu, traces)


def _answering(gpus: tuple[Gpu, ...]) -> Verdict:
    lost = [gpu for gpu in gpus if gpu.error is not None]
    if lost:
        named = ", ".join(f"GPU {gpu.index} ({gpu.error})" for gpu in lost)
        all_lost = len(lost) == len(gpus)
        return (unusable if all_lost else failed)(f"Listed, but not answering: {named}.", RECREATE)
    return passed(", ".join(_named(gpu) for gpu in gpus), count=len(gpus))


def _named(gpu: Gpu) -> str:
    memory = f" with {size(gpu.memory_total)}" if gpu.memory_total else ""
    return f"{gpu.name or 'a GPU of unknown name'}{memory}"


def _without_nvml(gpu: GpuFacts, traces: DriverTraces) -> Verdict:
    """NVML could not be asked. What else of the driver is in the container tells the causes apart."""
    said = f"NVML: {gpu.error or 'no answer'}"
    if gpu.error_kind == "version-mismatch":
        return unusable(
            f"The driver library in this container and the host's kernel module differ in version ({said}): "
            "the host's driver was upgraded under a running container, or the image holds a driver library.",
            RECREATE + "\nsudo reboot  # on the host, when nvidia-smi fails there too",
        )
    if gpu.error_kind == "timeout":
        return unusable(
            f"The driver hangs ({said}).", "nvidia-smi  # on the host; reboot it when that hangs too"
        )
    if gpu.error_kind == "driver-not-loaded" and not traces.device_nodes:
        return unusable(
            f"The host's NVIDIA driver is not loaded ({said}).", "sudo modprobe nvidia  # on the host"
        )
    if traces.device_nodes and gpu.error_kind not in {"library-not-found", "no-nvml-module"}:
        return unusable(
            f"The GPU is gone from this container ({said}). A `systemctl daemon-reload` on the host, or a "
            "changed driver, takes it away from containers that are running.",
            RECREATE,
        )
    if traces.device_nodes and traces.libcuda:
        return warned(
            f"A GPU device and {traces.libcuda[0]} are here, but no NVML ({said}): the driver capability "
            "`utility` is missing, so version, memory and utilisation are unknown.",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,video ...",
        )
    return _started_without(traces)


def _started_without(traces: DriverTraces) -> Verdict:
    if traces.kernel_driver:
        host = (
            f"The host has driver {traces.kernel_driver} loaded, but this container was started without a GPU"
        )
    else:
        host = "No GPU is visible: the container was started without one, or the host has no NVIDIA driver"
    missing = [
        name
        for name, found in (
            ("device nodes (/dev/nvidia*)", traces.device_nodes),
            ("libcuda.so.1", traces.libcuda),
        )
        if not found
    ]
    return unusable(f"{host} (no {' and no '.join(missing) or 'NVML'}).", HOW_TO_GIVE_A_GPU)


def _visible(facts: Facts) -> Verdict:
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    return visible(facts.gpu, facts.driver)


def _architecture(facts: Facts) -> Verdict:
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    manifest = facts.manifest.manifest
    capable = [gpu for gpu in facts.gpu.gpus or () if version(gpu.capability)]
    if not capable:
        known = "No GPU whose compute capability is known." if facts.gpu.visible else _NO_GPU
        return skipped(known)
    if manifest is None:
        return skipped("No manifest says which architectures this environment was built for.")
    uncovered = [gpu for gpu in capable if not _covered(gpu, manifest)]
    built = ", ".join(manifest.gpu_archs)
    if not uncovered:
        return passed(f"built for {built}; here {', '.join(sorted({g.capability or '' for g in capable}))}")
    names = ", ".join(f"{gpu.name} ({gpu.capability})" for gpu in uncovered)
    if manifest.pruned or not all(_served_by_torch(gpu) for gpu in uncovered):
        return failed(f"This image was built for {built} and has no code for {names}.", _rebuild(uncovered))
    return warned(
        f"flash-attn was built for {built} and has no code for {names}; the rest of the stack has.",
        _rebuild(uncovered),
    )


def _covered(gpu: Gpu, manifest: Manifest) -> bool:
    """A cubin runs on GPUs of its own major version and the same or a higher minor one; there is no PTX.

    flash-attn is compiled once for a generation, for its first member, and so serves all of it.
    """
    capability = version(gpu.capability) or ()
    archs = [arch for arch in map(version, manifest.gpu_archs) if arch]
    if manifest.pruned:
        return any(arch[0] == capability[0] and arch <= capability for arch in archs)
    if manifest.flash_attn_route == "none" and _served_by_torch(gpu):
        return True
    return any(arch[0] == capability[0] for arch in archs)


def _served_by_torch(gpu: Gpu) -> bool:
    """Whether torch's own wheels have code for it that a driver of this image's floor can run."""
    return _TORCH_OLDEST <= (version(gpu.capability) or ()) < _TOO_NEW


def _rebuild(uncovered: list[Gpu]) -> str:
    found = sorted({version(gpu.capability) or () for gpu in uncovered})
    if found[-1] >= _TOO_NEW:
        return "Use an image built with CUDA 12.8 on a host driver 570 or newer; CUDA 12.4 ends at 9.0."
    if found[0] < _TORCH_OLDEST:
        return "Use an image with an older torch: torch 2.8's CUDA 12.8 build starts at 7.0."
    return f'make image GPU_ARCHS="{" ".join(".".join(map(str, arch)) for arch in found)}"'


def _compute_mode(facts: Facts) -> Verdict:
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    modes = {gpu.index: gpu.compute_mode for gpu in facts.gpu.gpus or () if gpu.compute_mode}
    for index, mode in sorted(modes.items(), key=lambda item: item[1] != "prohibited"):
        remedy = f"sudo nvidia-smi -i {index} -c DEFAULT  # on the host"
        if mode == "prohibited":
            return failed(f"GPU {index} is in compute mode `prohibited`: no program may use it.", remedy)
        if mode.startswith("exclusive"):
            return warned(f"GPU {index} is in compute mode `{mode}`: a second process on it fails.", remedy)
    if modes:
        return passed("default")
    return skipped("The compute mode is not known." if facts.gpu.visible else _NO_GPU)


def _mig(facts: Facts) -> Verdict:
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    sliced = [gpu for gpu in facts.gpu.gpus or () if gpu.mig]
    if not sliced:
        return passed("not in use") if facts.gpu.visible else skipped(_NO_GPU)
    counted = [gpu.mig_slices for gpu in sliced if gpu.mig_slices is not None]
    if len(counted) < len(sliced):
        return unknown("MIG is on; how many slices this container has is not known.", "nvidia-smi -L")
    slices = sum(counted)
    if slices == 0:
        return failed(
            "MIG is on, but no slice was given to this container.",
            "docker run --gpus '\"device=MIG-UUID\"' ...  # UUIDs: nvidia-smi -L on the host",
        )
    if slices > 1:
        return warned(
            f"{slices} MIG slices are visible; a process can use only one of them.",
            "docker run --gpus '\"device=MIG-UUID\"' ...  # UUIDs: nvidia-smi -L on the host",
        )
    return passed("one slice")


def _selection(facts: Facts) -> Verdict:
    """CUDA says nothing of a CUDA_VISIBLE_DEVICES that it cannot use: it just finds fewer GPUs, or none."""
    if facts.device == "cpu":
        return skipped("CPU use declared.")
    gpus = facts.gpu.gpus
    if not gpus:
        return skipped(_NO_GPU)
    asked = facts.driver.cuda_visible_devices
    found = selected(asked, tuple(gpu.uuid for gpu in gpus))
    if not found.fault:
        named = "as CUDA_VISIBLE_DEVICES says" if asked is not None else "CUDA_VISIBLE_DEVICES is not set"
        return passed(f"{len(found.indices or ()) or 'MIG'} of {len(gpus)} usable, {named}")
    summary = f"CUDA_VISIBLE_DEVICES={asked!r} shows CUDA {_so_many(found)}: {found.fault}."
    host = facts.driver.nvidia_env.get("NVIDIA_VISIBLE_DEVICES")
    if host is not None and host == asked:
        summary += " NVIDIA_VISIBLE_DEVICES takes the host's numbers; in the container they start at 0 again."
    cure = "unset CUDA_VISIBLE_DEVICES  # and leave it out of docker run, compose or the Dockerfile"
    if asked in ("", "-1"):
        cure += "\nhealthcheck verify --device cpu  # where no GPU is meant to be used"
    return (warned if found.indices else unusable)(summary, cure)


def _so_many(found: Selection) -> str:
    count = len(found.indices or ())
    return f"only {count} GPU{'s' if count > 1 else ''}" if count else "no GPU"


CHECKS = (
    Check("DYN-GPU-001", "GPU visible", _visible),
    Check("DYN-GPU-002", "GPU architecture", _architecture),
    Check("DYN-GPU-003", "compute mode", _compute_mode),
    Check("DYN-GPU-004", "MIG", _mig),
    Check("DYN-GPU-005", "CUDA_VISIBLE_DEVICES", _selection),
)
