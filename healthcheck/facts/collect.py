"""All facts at once, in under a second."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from healthcheck import child, manifest
from healthcheck.facts import container, driver, gpu, stack


@dataclass(frozen=True)
class Facts:
    """What every check judges. `device` is what the user asked for: auto, cuda or cpu."""

    device: str = "auto"
    gpu: gpu.GpuFacts = field(default_factory=gpu.GpuFacts)
    driver: driver.DriverTraces = field(default_factory=driver.DriverTraces)
    container: container.ContainerFacts = field(default_factory=container.ContainerFacts)
    stack: stack.StackFacts = field(default_factory=stack.StackFacts)
    manifest: manifest.Reading = field(default_factory=manifest.Reading)


def collect(
    device: str,
    *,
    root: Path = Path("/"),
    env: Mapping[str, str] | None = None,
    nvml: Any = None,
    python: str | None = None,
    in_image: bool | None = None,
) -> Facts:
    """Gather everything. `root`, `env`, `nvml`, `python` and `in_image` replace the machine in tests."""
    env = os.environ if env is None else env
    return Facts(
        device=device,
        gpu=gpu.collect(nvml),
        driver=driver.collect(root, env),
        container=container.collect(root, env),
        stack=stack.collect(python or child.stack_python(), env.get("PATH")),
        manifest=manifest.read(
            Path(env.get("DYNO_MANIFEST") or manifest.PATH),
            expected=child.in_image() if in_image is None else in_image,
        ),
    )
