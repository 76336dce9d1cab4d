"""Under what conditions was this measured? What torch knows; clocks and power are the parent's to add."""

from __future__ import annotations

import os
import platform
from typing import Any


def conditions(device: str) -> dict[str, Any]:
    """Device, versions and settings that move the numbers. An unknown one is null."""
    import torch

    shared: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
    }
    if device != "cuda":
        return {**shared, "cpu_count": len(os.sched_getaffinity(0))}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    cudnn: Any = torch.backends.cudnn
    return {
        **shared,
        "cudnn": cudnn.version(),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_cache_bytes": getattr(properties, "L2_cache_size", None),
        "memory_bytes": total,
        "memory_free_bytes": free,
    }


def device_name(device: str) -> str:
    """The GPU's name, or the processor's."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name(torch.cuda.current_device())
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
