"""The child's end of the pipe between Dyno's Python and the stack's Python. Standard library only.

A child answers with one JSON object a line on a descriptor of its own, so that whatever the stack prints on
stdout or stderr is noise and never mistaken for an answer.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

DESCRIPTOR = "DYNO_RESULT_FD"
_PR_SET_PDEATHSIG = 1


def emit(event: Mapping[str, Any]) -> None:
    """Send one event to the parent. Without a parent (run by hand) the event goes to stdout.

    Non-finite numbers are sent as null: JSON has no word for them, and a reader must not crash on a NaN.
    """
    line = json.dumps(_finite(event), allow_nan=False) + "\n"
    descriptor = int(os.environ.get(DESCRIPTOR, "1"))
    data = line.encode()
    while data:
        data = data[os.write(descriptor, data) :]


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, so that no killed self-test leaves a child."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
