"""Signals that end a command: the stack unwinds, so that children are ended and what was measured is kept."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from healthcheck.result import Exit

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(SystemExit):
    """Raised where a signal arrives; its exit code is the shell's, 128 and the signal's number."""

    def __init__(self, number: int) -> None:
        self.exit = Exit(128 + number)
        self.name = signal.Signals(number).name
        super().__init__(int(self.exit))


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Raise Interrupted at the first signal, and ignore those after it: they would cut off the writing."""

    def leave(number: int, frame: object) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    previous = {each: signal.getsignal(each) for each in _ENDING}
    for each, handler in previous.items():
        if handler is not signal.SIG_IGN:  # `nohup`, or a shell's background: the caller wants it ignored
            signal.signal(each, leave)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
