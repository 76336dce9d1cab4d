"""A healthy image on an RTX 4090 D: facts, benchmarks, a report, and words to change one thing about them."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from typing import Any

from healthcheck import verify
from healthcheck.checks import registry
from healthcheck.drive import budget
from healthcheck.facts.container import ContainerFacts, Directory
from healthcheck.facts.driver import DriverTraces
from healthcheck.facts.gpu import Gpu, GpuFacts
from healthcheck.facts.snapshot import Facts
from healthcheck.facts.stack import Program, StackFacts
from healthcheck.manifest import Manifest, Reading
from healthcheck.measure.activity import Activity, Figure
from healthcheck.report.model import Benchmark, Limit, Report, Variant
from healthcheck.result import Result

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


NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
LENSES = {
    "busy": "NVML: share of time in which any kernel ran",
    "sm-activity": "GPM: share of the multiprocessors that were busy",
    "tensor-activity": "GPM: share of time in which the multiprocessors ran tensor operations",
    "dram-activity": "GPM: memory bandwidth used over the most possible",
}


def activity(**seen: float | None) -> Activity:
    """`activity(busy=97.0, sm_activity=None)`: what the lenses saw; None = the GPU has no such lens."""
    named = {name.replace("_", "-"): value for name, value in seen.items()}
    return Activity(
        seconds=1.5,
        throttle=(),
        figures=tuple(
            Figure(
                name=name,
                lens=LENSES[name],
                unit="%",
                value=value,
                readings=0 if value is None else 9,
                reason="GPM is not supported" if value is None else "",
            )
            for name, value in named.items()
        ),
    )


def variant(name: str, median_ms: float | None = 1.0, **fields: Any) -> Variant:
    """A variant that ran and is right; the first of a benchmark is its baseline."""
    return Variant.model_validate(
        {"name": name, "label": name, "status": "ok", "correct": True, "median_ms": median_ms, **fields}
    )


def benchmark(*variants: Variant, **fields: Any) -> Benchmark:
    """A case measured on the RTX 4090 D. Baseline and gains follow from the order and the medians."""
    ran: list[Variant] = []
    rivals: list[Variant] = []
    for found in variants:
        changes: dict[str, Any] = {"baseline": not ran}
        if found.median_ms and found.status == "ok" and not found.part:
            if rivals:
                changes["step_gain"] = (rivals[-1].median_ms or 0) / found.median_ms
            rivals.append(found)
            if rivals[0] is variants[0]:
                changes["speedup"] = (rivals[0].median_ms or 0) / found.median_ms
        ran.append(found.model_copy(update=changes))
    return Benchmark.model_validate(
        {
            "scenario": "attention",
            "title": "Attention",
            "device": "cuda",
            "device_name": "NVIDIA GeForce RTX 4090 D",
            "status": "ok",
            "measured": NOW,
            "variants": ran,
            **fields,
        }
    )


def peak(share: float, **fields: Any) -> Limit:
    """A share of the 147.1 TFLOP/s of bf16 that the RTX 4090 D has."""
    return Limit.model_validate(
        {
            "kind": "datasheet",
            "name": "bf16 peak",
            "achieved": 147.1 * share,
            "limit": 147.1,
            "unit": "TFLOP/s",
            "share": share,
            "source": "datasheet",
            **fields,
        }
    )


SEEN = activity(busy=98.0, sm_activity=None, tensor_activity=None, dram_activity=None)
ATTENTION = benchmark(
    variant("math", 4.0, label="SDPA math", peak_vram_bytes=1 << 30),
    variant("flash", 0.4, label="SDPA flash", limits=[peak(0.58)], activity=SEEN, peak_vram_bytes=96 << 20),
    case="L2048",
    workload="B=1 H=32 L=2048 D=128 bf16 causal forward",
    short=True,
)
COMPILE = benchmark(
    variant("eager", 3.0, label="eager"),
    variant(
        "compiled", 1.5, label="torch.compile", compile_seconds=6.0, pays_after_calls=4000, activity=SEEN
    ),
    scenario="compile",
    title="Compilation",
    case="blocks",
    workload="2 ResNet bottleneck blocks, b64 256x56x56 fp32 inference",
    short=True,
    conditions={"batch": 64},
)
STREAMS = benchmark(
    variant("serial", 40.0, label="copy, then compute"),
    variant(
        "overlapped",
        21.0,
        label="copy beside compute",
        activity=SEEN,
        limits=[
            peak(
                20 / 21,
                kind="bound",
                name="copy or compute",
                achieved=21.0,
                limit=20.0,
                unit="ms",
                source="",
            )
        ],
    ),
    variant("copy", 20.0, part=True),
    scenario="streams",
    title="Streams",
    case="overlap",
    workload="8 chunks of 32 MiB to the GPU, 4096x4096 fp16 products on each",
    short=True,
)
START_UP = (ATTENTION, COMPILE, STREAMS)


def report_of(
    facts: Facts = HEALTHY,
    *results: Result,
    required: tuple[str, ...] = (),
    benchmarks: tuple[Benchmark, ...] = (),
    command: str = "verify",
    **fields: Any,
) -> Report:
    """What `command` would report of `facts`; `results` stand in for those of the checks."""
    found = verify.Verification(
        facts, "cuda", "", results or tuple(registry.judge(facts)), benchmarks=benchmarks
    )
    report = verify.assemble(command, found, deadline=budget.Deadline(60), required=required)
    return report.model_copy(update={"created": NOW, **fields})
