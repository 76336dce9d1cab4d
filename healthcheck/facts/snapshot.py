"""What was found, all of it: one frozen value that checks judge and a report carries."""

from __future__ import annotations

from dataclasses import dataclass, field

from healthcheck import manifest
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
