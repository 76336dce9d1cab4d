"""All facts at once, in under a second."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from healthcheck import manifest
from healthcheck.drive import programs
from healthcheck.facts import container, driver, gpu, stack
from healthcheck.facts.snapshot import Facts


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
        stack=stack.collect(python or stack.stack_python(), programs.versions(env.get("PATH"))),
        manifest=manifest.read(
            Path(env.get("DYNO_MANIFEST") or manifest.PATH),
            expected=stack.in_image() if in_image is None else in_image,
        ),
    )
