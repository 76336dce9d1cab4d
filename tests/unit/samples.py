"""Facts of a healthy image on an RTX 4090 D, and the words to change one thing about them."""

from __future__ import annotations

import dataclasses
from typing import Any

from healthcheck.facts.collect import Facts
from healthcheck.facts.container import ContainerFacts, Directory
from healthcheck.facts.driver import DriverTraces
from healthcheck.facts.gpu import Gpu, GpuFacts
from healthcheck.facts.stack import Program, StackFacts
from healthcheck.manifest import Manifest, Reading

STACK = {
    "torch": "2.8.0",
    "triton": "3.4.0",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "flash-attn": "2.8.2",
    "numpy": "2.5.0",
    "pydantic": "2.14.4",
    "opencv-python-headless": "4.12.0",
}
MANIFEST = Manifest(
    build_id="0123456789abcdef",
    target="runtime",
    python="3.13.5",
    toolkit="12.4.131",
    toolkit_installed=False,
    driver_floor="550",
    driver_tested="550.90.07",
    gpu_archs=("8.9",),
    flash_attn_route="wheelhouse",
    flash_attn_version="2.8.2",
    stack=STACK,
    constrained=("torch", "triton", "nvidia-cudnn-cu12", "flash-attn"),
)
GPU = Gpu(
    index=0,
    name="NVIDIA GeForce RTX 4090 D",
    uuid="GPU-1",
    capability="8.9",
    memory_total=25_757_220_864,
    memory_used=1 << 29,
    mig=False,
    compute_mode="default",
)
CACHE = "/workspace/.cache"
DIRECTORIES = tuple(
    Directory(role, path, exists=True, writable=True, executable=True, read_only=False)
    for role, path in {
        "workspace": "/workspace",
        "models": "/workspace/models",
        "output": "/workspace/output",
        "data": "/data",
        "cache": CACHE,
        "inductor cache": f"{CACHE}/inductor",
        "triton cache": f"{CACHE}/triton",
        "huggingface cache": f"{CACHE}/huggingface",
        "tmp": "/tmp",
        "home": "/workspace",
    }.items()
)
HEALTHY = Facts(
    device="auto",
    gpu=GpuFacts(driver="550.90.07", driver_cuda="12.4", gpus=(GPU,)),
    driver=DriverTraces(
        device_nodes=("/dev/nvidia0", "/dev/nvidiactl"),
        libcuda=("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
        kernel_driver="550.90.07",
        ld_library_path=(),
        nvidia_env={"NVIDIA_VISIBLE_DEVICES": "all"},
    ),
    container=ContainerFacts(
        inside=True,
        uid=1000,
        gid=0,
        has_passwd_entry=True,
        user="dyno",
        home="/workspace",
        shm_bytes=8 << 30,
        cpus=10,
        cpu_model="a CPU",
        read_only_root=False,
        directories=DIRECTORIES,
    ),
    stack=StackFacts(
        python="/opt/venv/bin/python",
        python_exists=True,
        site_packages="/opt/venv/lib/python3.13/site-packages",
        distributions=STACK,
        opencv_copies=("opencv-python-headless",),
        torch_version="2.8.0+cu128",
        torch_cuda="12.8",
        programs=(Program("ffmpeg", "/usr/bin/ffmpeg", "7.1.2"), Program("git", "/usr/bin/git", "2.47.3")),
    ),
    manifest=Reading(manifest=MANIFEST),
)
NO_GPU = dataclasses.replace(
    HEALTHY,
    gpu=GpuFacts(error="NVML Shared Library Not Found", error_kind="library-not-found"),
    driver=DriverTraces(device_nodes=(), libcuda=(), ld_library_path=(), nvidia_env={}),
)


def with_(facts: Facts, part: str, **changes: Any) -> Facts:
    """`with_(HEALTHY, "gpu", driver="535.1")`: the same facts with one part changed."""
    return dataclasses.replace(facts, **{part: dataclasses.replace(getattr(facts, part), **changes)})


def with_manifest(facts: Facts, **changes: Any) -> Facts:
    return dataclasses.replace(facts, manifest=Reading(manifest=dataclasses.replace(MANIFEST, **changes)))


def with_gpu(**changes: Any) -> Facts:
    return with_(HEALTHY, "gpu", gpus=(dataclasses.replace(GPU, **changes),))


def with_directory(facts: Facts, role: str, **changes: Any) -> Facts:
    found = tuple(
        dataclasses.replace(d, **changes) if d.role == role else d for d in facts.container.directories
    )
    return with_(facts, "container", directories=found)
