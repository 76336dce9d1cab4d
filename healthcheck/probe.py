"""Is the GPU still there? For HEALTHCHECK and liveness probes: NVML alone, no torch, no CUDA context.

Prints one line. Exit codes: 0 a GPU answers, or CPU use is declared (DYNO_DEVICE=cpu); 1 otherwise. Imports
the standard library and pynvml only: this runs every few seconds in every container.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from healthcheck.checks import gpu as check
from healthcheck.facts import driver, gpu
from healthcheck.result import Status

_TIME_LIMIT = 5.0  # seconds; Docker's own default for a probe is 30


def probe(root: Path, env: Mapping[str, str], nvml: Any = None) -> tuple[int, str]:
    """Exit code and the line to print; `root`, `env` and `nvml` replace the machine in tests."""
    if env.get("DYNO_DEVICE") == "cpu":
        return 0, "ok: CPU use declared"
    verdict = check.visible(gpu.collect(nvml, _TIME_LIMIT), driver.collect(root, env))
    if verdict.status in (Status.PASS, Status.WARN):
        return 0, f"ok: {verdict.summary}"
    return 1, f"no GPU: {verdict.summary} Remedy: {verdict.remedy.splitlines()[0]}"


def main() -> int:
    """The command `healthcheck probe`."""
    code, line = probe(Path("/"), os.environ)
    print(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
