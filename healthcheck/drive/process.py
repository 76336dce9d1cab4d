"""The parent's end: run a module in the stack's Python, with a time limit, and read what it answers.

A crash, a hang and noise are outcomes, never exceptions: the self-test has to outlive what it tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from healthcheck import wire
from healthcheck.facts.stack import stack_python

_TAIL = 8_000  # characters of noise kept: enough for a traceback, small enough for a report
_LINE = 16_000_000  # bytes of one event at most: a child gone wild must not take the parent's memory
_REAP = 2.0  # seconds to wait for a killed child; one stuck in the driver is left behind and reported


Progress = Callable[[str], None]  # told what runs now, in a few words


class Stopped(Exception):
    """Raised in the thread of a child that the caller wanted to end before its time."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended. `events` in order; `output` is the tail of stdout and stderr together.

    `interrupted` names the signal to this program that ended the child too.
    """

    events: tuple[dict[str, Any], ...]
    returncode: int | None
    timed_out: bool
    output: str
    seconds: float
    interrupted: str = ""

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out and not self.interrupted

    @property
    def cause(self) -> str:
        """One clause that says how the child ended, for the summary of a result."""
        if self.interrupted:
            return f"was ended, because {self.interrupted} interrupted the command"
        if self.timed_out:
            return f"did not finish within {self.seconds:.0f} s and was ended"
        if self.returncode is not None and self.returncode < 0:
            return f"was ended by {_signal_name(-self.returncode)}"
        return f"ended with exit code {self.returncode}"


Run = Callable[..., Outcome]  # the signature of `run`; tests give their own


def run(
    module: str,
    arguments: Sequence[str] = (),
    *,
    time_limit: float,
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run `python -m module arguments...` and return its outcome; `time_limit` is in seconds.

    `on_event` sees each event as it arrives, for progress. The child leads a process group of its own, and
    the whole group is killed at the limit. Signals reach the main thread only: a caller in another one is
    ended through `stop`, which kills the group too and raises Stopped.
    """
    started = time.monotonic()
    answer, answer_child = os.pipe()
    noise, noise_child = os.pipe()
    env = {**os.environ, **(environment or {}), wire.DESCRIPTOR: str(answer_child)}
    try:
        process = subprocess.Popen(
            [python or stack_python(), "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=noise_child,
            stderr=noise_child,
            pass_fds=(answer_child,),
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        for descriptor in (answer, answer_child, noise, noise_child):
            os.close(descriptor)
        return Outcome((), 127, False, f"{error}", time.monotonic() - started)
    os.close(answer_child)
    os.close(noise_child)
    events: list[dict[str, Any]] = []
    noise_text = bytearray()

    def accept(line: bytes) -> None:
        event = _decode(line)
        if event is not None:
            events.append(event)
            on_event(event)

    try:
        timed_out = _pump(
            process,
            answer,
            noise,
            deadline=started + time_limit,
            accept=accept,
            noise_text=noise_text,
            stop=stop,
        )
    finally:
        _end(process)
        os.close(answer)
        os.close(noise)
    return Outcome(
        events=tuple(events),
        returncode=process.returncode,
        timed_out=timed_out,
        output=noise_text.decode(errors="replace")[-_TAIL:],
        seconds=time.monotonic() - started,
    )


def _pump(
    process: subprocess.Popen[bytes],
    answer: int,
    noise: int,
    *,
    deadline: float,
    accept: Callable[[bytes], None],
    noise_text: bytearray,
    stop: threading.Event | None,
) -> bool:
    """Read both pipes until the child has ended or the deadline has passed; return whether it had passed.

    Raises Stopped as soon as `stop` is set. The child's end is what counts, not the pipes': a grandchild may
    hold them open for ever.
    """
    partial = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(answer, selectors.EVENT_READ)
        selector.register(noise, selectors.EVENT_READ)
        while True:
            if stop is not None and stop.is_set():
                raise Stopped
            ended = process.poll() is not None
            left = deadline - time.monotonic()
            ready = selector.select(0 if ended else min(0.1, max(left, 0)))
            for key, _ in ready:
                chunk = os.read(key.fd, 65_536)
                if not chunk:
                    selector.unregister(key.fd)
                elif key.fd == noise:
                    noise_text += chunk
                    del noise_text[: -4 * _TAIL]
                else:
                    partial += chunk
                    *lines, rest = bytes(partial).split(b"\n")
                    partial[:] = rest[-_LINE:]
                    for line in lines:
                        accept(line)
            if ended and not any(key.fd in selector.get_map() for key, _ in ready):
                return False
            if left <= 0:
                return not ended


def _decode(line: bytes) -> dict[str, Any] | None:
    """An event, or None for a line that is not one: a child that died while writing leaves half a line."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def environment(threads: int | None = None) -> dict[str, str]:
    """Variables for a child, on top of the caller's own. `threads` is its share of the cores, None for all.

    The package is put on the path and the current directory kept off it: a user's `random.py` or
    `healthcheck/` in the directory of the call must not be what is imported. PCI order makes CUDA's first
    GPU NVML's first, so that figures of both are of the same device.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    # Pools as wide as the machine, one in each of several children, would only wait for one another.
    share = {} if threads is None or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    return {
        **share,
        "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package,
        "PYTHONSAFEPATH": "1",
        # A user's wish for errors instead of warnings is for the user's code, not for the libraries' own.
        "PYTHONWARNINGS": "",
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    }


def last_words(outcome: Outcome) -> str:
    """The last line that a child printed, for a summary; "" when it said nothing."""
    lines = [line.strip() for line in outcome.output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def number(value: Any) -> float | None:
    """A number as a float, None for all else; True is not a number here."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
