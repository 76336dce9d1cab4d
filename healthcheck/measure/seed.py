"""Seeds for inputs."""

from __future__ import annotations

import os


def fresh_seed() -> int:
    """A seed that no earlier run has used, so that a stale or cached answer is never the right one."""
    return int.from_bytes(os.urandom(4), "little")
