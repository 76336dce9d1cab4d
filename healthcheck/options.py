"""What the commands share: options checked before anything runs, and files written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from healthcheck.result import Exit

DEVICES = ("auto", "cuda", "cpu")
STDOUT = "-"


class Stop(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Options:
    """The common options, valid. `time_limit` in seconds for the whole command."""

    device: str
    time_limit: float
    required: tuple[str, ...] = ()
    json: str | None = None
    junit: str | None = None

    @property
    def people(self) -> TextIO:
        """Where people read: stdout belongs to the machine as soon as a machine asked for it."""
        return sys.stderr if STDOUT in (self.json, self.junit) else sys.stdout


def check(
    *,
    device: str | None,
    time_limit: float | None,
    default_limit: float,
    required: list[str] | None,
    json: str | None,
    junit: str | None,
    env: Mapping[str, str] | None = None,
) -> Options:
    """Validate; raises Stop (usage, or unusable when a file cannot be written)."""
    if json == STDOUT and junit == STDOUT:
        raise Stop("--json - and --junit - both want stdout; give one of them a file.", Exit.USAGE)
    limit = default_limit if time_limit is None else time_limit
    if not (math.isfinite(limit) and limit > 0):
        raise Stop(f"--time-limit {limit}: a number of seconds above 0 is needed.", Exit.USAGE)
    for target in (json, junit):
        if target is not None and target != STDOUT:
            _writable(Path(target))
    codes = tuple(code.strip().upper() for code in required or ())
    return Options(choose_device(device, os.environ if env is None else env), limit, codes, json, junit)


def choose_device(option: str | None, env: Mapping[str, str]) -> str:
    """--device, else DYNO_DEVICE, else auto; raises Stop for a word that is none of them."""
    source, value = (
        ("--device", option) if option is not None else ("DYNO_DEVICE", env.get("DYNO_DEVICE") or "auto")
    )
    if value not in DEVICES:
        raise Stop(f"{source}={value}: one of {', '.join(DEVICES)} is needed.", Exit.USAGE)
    return value


def seconds(name: str, default: float, env: Mapping[str, str]) -> float:
    """A number of seconds above 0 from the environment variable `name`."""
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise Stop(f"{name}={text}: a number of seconds above 0 is needed.", Exit.USAGE)
    return value


def word(name: str, allowed: tuple[str, ...], env: Mapping[str, str]) -> str:
    """One of `allowed` from the environment variable `name`; the first is the default."""
    value = env.get(name) or allowed[0]
    if value not in allowed:
        raise Stop(f"{name}={value}: one of {', '.join(allowed)} is needed.", Exit.USAGE)
    return value


def write(target: str, text: str) -> None:
    """Write to stdout or a file; a file appears whole or not at all. Raises Stop when it cannot be."""
    if target == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    try:
        if path.exists() and not path.is_file():  # /dev/null, a pipe: never to be replaced by a file
            path.write_text(text)
        else:
            _replace(path.resolve(), text)
    except OSError as error:
        raise _cannot_write(path, error) from None


def fresh_directory(parent: Path, now: datetime) -> Path:
    """Make and return a directory in `parent` named after `now` (UTC); raises Stop when it cannot be.

    Made before anything is measured: that nothing can be written is to be known before, not after it.
    """
    if parent.exists() and not parent.is_dir():
        raise _cannot_write(parent, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    stamp = f"{now:%Y-%m-%dT%H-%M-%SZ}"
    for name in (stamp, *(f"{stamp}-{number}" for number in range(2, 100))):
        try:
            (parent / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_write(parent / name, error) from None
        return parent / name
    raise Stop(f"{parent} holds a hundred runs of this second; name another --output.", Exit.UNUSABLE)


def _replace(path: Path, text: str) -> None:
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


def _writable(path: Path) -> None:
    """Fail before minutes of work, not after them."""
    if path.is_dir():
        raise Stop(f"cannot write {path}: it is a directory.", Exit.UNUSABLE)
    if path.exists() and not path.is_file():
        return
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> Stop:
    cure = "name a file in a writable directory"
    if str(path).startswith("/workspace/output"):
        cure = (
            f'this is uid {os.getuid()}: docker run --user "$(id -u):0", or DYNO_UID=$(id -u) docker compose'
        )
    return Stop(f"cannot write {path}: {error.strerror or error}; {cure}.", Exit.UNUSABLE)


@contextlib.contextmanager
def ending(program: str) -> Iterator[None]:
    """Turn Stop into its line and code, and signals into an exit that takes the children along."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # unwinds through child.run, which kills its child

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except Stop as stop:
        print(f"{program}: {stop}", file=sys.stderr)
        raise SystemExit(int(stop.code)) from None
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:
        # The reader went away (`| head`): nothing is left to say, and nothing to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(Exit.OK)) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"{program}: cannot write the report: {error.strerror}; free some space.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(Exit.UNUSABLE)) from None
    finally:
        signal.signal(signal.SIGTERM, previous)
