"""The options that the commands share, checked before anything runs."""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from healthcheck.output import STDOUT, Stop, check_writable
from healthcheck.result import Exit

DEVICES = ("auto", "cuda", "cpu")
LONGEST = 86_400.0  # seconds: a day; more is a typing error, and beyond 30 years clocks do not count
_SPAN = f"a number of seconds above 0 and up to {LONGEST:.0f}"


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
    known: Mapping[str, str],
    env: Mapping[str, str] | None = None,
) -> Options:
    """Validate; raises Stop (usage, or unusable when a file cannot be written).

    `known` are the codes that the command can answer with, and so those that can be required of it.
    """
    if json == STDOUT and junit == STDOUT:
        raise Stop("--json - and --junit - both want stdout; give one of them a file.", Exit.USAGE)
    limit = default_limit if time_limit is None else time_limit
    if not 0 < limit <= LONGEST:
        raise Stop(f"--time-limit {limit:g}: {_SPAN} is needed.", Exit.USAGE)
    named = (code for words in required or () for code in words.split(","))
    codes = tuple(_known(code.strip().upper(), known) for code in named)
    for target in (json, junit):
        if target is not None and target != STDOUT:
            check_writable(Path(target))
    return Options(choose_device(device, os.environ if env is None else env), limit, codes, json, junit)


def _known(code: str, known: Mapping[str, str]) -> str:
    if code in known:
        return code
    near = difflib.get_close_matches(code, known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    raise Stop(f"--require {code}: this command has no such check.{meant} --list names them all.", Exit.USAGE)


def choose_device(option: str | None, env: Mapping[str, str]) -> str:
    """--device, else DYNO_DEVICE, else auto; raises Stop for a word that is none of them."""
    source, value = (
        ("--device", option) if option is not None else ("DYNO_DEVICE", env.get("DYNO_DEVICE") or "auto")
    )
    if value not in DEVICES:
        raise Stop(f"{source}={value}: one of {', '.join(DEVICES)} is needed.", Exit.USAGE)
    return value


def seconds(name: str, default: float, env: Mapping[str, str]) -> float:
    """A number of seconds above 0, at most a day, from the environment variable `name`."""
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST:
        raise Stop(f"{name}={text}: {_SPAN} is needed.", Exit.USAGE)
    return value


def word(name: str, allowed: tuple[str, ...], env: Mapping[str, str]) -> str:
    """One of `allowed` from the environment variable `name`; the first is the default."""
    value = env.get(name) or allowed[0]
    if value not in allowed:
        raise Stop(f"{name}={value}: one of {', '.join(allowed)} is needed.", Exit.USAGE)
    return value
