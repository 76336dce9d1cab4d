"""What a command writes: files whole or not at all, and words to a terminal that may go away meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

from healthcheck.facts.container import LAYOUT
from healthcheck.result import Exit
from healthcheck.signals import Interrupted, heeded

STDOUT = "-"
_ROOM = 1 << 18  # bytes that a report may take: a full file system still makes empty files
_IN_PLACE = (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV)


class Stop(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


def write(target: str, text: str) -> None:
    """Write to stdout or a file; a file appears whole or not at all. Raises Stop when it cannot be."""
    if target == STDOUT:
        show(text)
        return
    path = Path(target)
    try:
        if path.exists() and not path.is_file():  # /dev/null, a pipe: never to be replaced by a file
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path.resolve(), text)
    except OSError as error:
        raise cannot_write(path, error) from None


def check_writable(path: Path) -> None:
    """Raise Stop where `write` would, before minutes of work and not after them."""
    if path.is_dir():
        raise Stop(f"cannot write {path}: it is a directory.", Exit.UNUSABLE)
    if path.exists() and not path.is_file():
        return
    target = path.resolve()
    try:
        with tempfile.TemporaryFile(dir=target.parent) as file:
            file.write(bytes(_ROOM))
    except OSError as error:
        if not (error.errno in _IN_PLACE and target.is_file() and os.access(target, os.W_OK)):
            raise cannot_write(path, error) from None


def fresh_directory(parent: Path, now: datetime) -> Path:
    """Make and return a directory in `parent` named after `now` (UTC); raises Stop when it cannot be.

    Made before anything is measured: that nothing can be written is to be known before, not after it.
    """
    if parent.exists() and not parent.is_dir():
        raise cannot_write(parent, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    stamp = f"{now:%Y-%m-%dT%H-%M-%SZ}"
    for name in (stamp, *(f"{stamp}-{number}" for number in range(2, 100))):
        try:
            (parent / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise cannot_write(parent / name, error) from None
        try:
            check_writable(parent / name / "report.json")
        except Stop:
            (parent / name).rmdir()
            raise
        return parent / name
    raise Stop(f"{parent} holds a hundred runs of this second; name another --output.", Exit.UNUSABLE)


def _replace(path: Path, text: str) -> None:
    """In place of what is there, at once; where only the file itself may be written, into it.

    A file that was mounted into a container cannot be replaced, and its directory may be another user's.
    """
    try:
        _replace_at_once(path, text)
    except OSError as error:
        if error.errno not in _IN_PLACE or not path.is_file():
            raise
        path.write_text(text, encoding="utf-8")


def _replace_at_once(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())  # mkstemp's 0600 would hide the report from a CI job's next step
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def cannot_write(path: Path, error: OSError) -> Stop:
    """What the user is told: the path, the system's words, and the way round."""
    output = LAYOUT["output"]
    cure = "name a file in a writable directory"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cure = "free some space there, or name a file elsewhere"
    elif error.errno == errno.EROFS:
        cure = f"mount a volume there: docker run -v dyno-output:{output}"
    elif str(path).startswith(output):
        cure = (
            f'this is uid {os.getuid()}: docker run --user "$(id -u):0", or DYNO_UID=$(id -u) docker compose'
        )
    return Stop(f"cannot write {path}: {error.strerror or error}; {cure}.", Exit.UNUSABLE)


def say(text: str, stream: TextIO, end: str = "\n") -> None:
    """Print for people; a reader that went away, or a full disk behind the stream, changes nothing else."""
    with tolerant(stream):
        stream.write(f"{text}{end}")
        stream.flush()


def show(text: str) -> None:
    """Write to stdout what the command was called for; raises Stop where a full disk is behind it."""
    with tolerant(sys.stdout, product=True):
        sys.stdout.write(text)


@contextlib.contextmanager
def tolerant(stream: TextIO, *, product: bool = False) -> Iterator[None]:
    """Let `stream` fail: what is written to it from then on goes nowhere, and the command goes on.

    A closed pipe (`| head`) is the reader's choice; anything else is said, once, where it still can be, and
    raises Stop where the text is all that the command was called for.
    """
    try:
        yield
        stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if error.errno == errno.EPIPE or stream is sys.stderr:
            return
        sentence = f"cannot write to {stream.name}: {error.strerror}; name a file with free space."
        if product:
            raise Stop(sentence, Exit.UNUSABLE) from None
        say(sentence, sys.stderr)


@contextlib.contextmanager
def ending(program: str) -> Iterator[None]:
    """Turn Stop into its line and code, and signals into an exit that takes the children along."""
    try:
        with heeded():
            yield
    except Stop as stop:
        say(f"{program}: {stop}", sys.stderr)
        raise SystemExit(int(stop.code)) from None
    except Interrupted as signal:
        if signal.name == "SIGINT":
            say(f"{program}: interrupted", sys.stderr)
        raise
