"""The base image: debian:trixie-slim where it can be had, else a minimal Debian from a mirror."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from image import install
from image.fault import Exit, Fault, Stop
from image.shell import Run
from image.stack import STACK

REPOSITORY = "dyno-base"
OFFICIAL = f"debian:{STACK.suite}-slim"
_PULL_LIMIT = 45.0  # seconds; where the registry cannot be reached the build must not wait for it
_BOOTSTRAP_LIMIT = 900.0  # seconds; 11 to 25 were seen on near mirrors
_OLD = 30  # days after which a kept base is called old: Debian's security fixes are not in it
_MIRROR_LABEL = "dyno.base.mirror"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Choice:
    """What is to be done for the base: use `reference` as it is, pull it, or bootstrap. `reason` says why."""

    action: str  # "use" | "try-pull" | "bootstrap"
    reference: str
    reason: str


@dataclass(frozen=True)
class Base:
    """The base as it is: `reference` for FROM, `identity` for the manifest, `note` for the person."""

    reference: str
    identity: str
    note: str


def choose(asked: str, present: Iterable[str], *, refresh: bool = False) -> Choice:
    """Decide from BASE and the references of the images that are there. Pure.

    A base that is there is kept even where a newer one could be had: another base rebuilds every layer.
    """
    official = OFFICIAL in present
    kept = sorted(p for p in present if p.startswith(f"{REPOSITORY}:{STACK.suite}-"))
    if asked not in ("auto", "bootstrap"):
        return Choice("use" if asked in present else "try-pull", asked, f"BASE={asked}")
    if asked == "auto" and official and not refresh:
        return Choice("use", OFFICIAL, f"BASE=auto and {OFFICIAL} is here")
    if kept and not refresh:
        return Choice("use", kept[-1], f"BASE={asked} and it was bootstrapped here before")
    if asked == "auto":
        return Choice(
            "try-pull",
            OFFICIAL,
            f"BASE=auto: where no registry answers, {STACK.suite} is bootstrapped instead",
        )
    return Choice("bootstrap", "", "BASE=bootstrap")


def present(run: Run) -> tuple[str, ...]:
    """References of the images that could serve as base; () without an engine."""
    done = run(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], time_limit=30)
    return tuple(sorted(done.stdout.split())) if done.ok else ()


def ensure(
    asked: str,
    *,
    run: Run,
    say: Callable[[str], None],
    mirror: str,
    epoch: int,
    refresh: bool = False,
) -> Base:
    """Return the base that BASE asks for; pull or bootstrap it if need be, and say which and why."""
    choice = choose(asked, present(run), refresh=refresh)
    reference = choice.reference
    if choice.action == "try-pull" and not _pull(reference, asked, run, say):
        choice = Choice("bootstrap", "", f"{reference} cannot be pulled")
    if choice.action == "bootstrap":
        reference = _bootstrap(run, say, mirror, epoch)
    if reference == asked:
        _need_suite(reference, run)
    base = _inspect(reference, choice.reason, run)
    say(f"base: {base.note}")
    return base


def _pull(reference: str, asked: str, run: Run, say: Callable[[str], None]) -> bool:
    say(f"base: pulling {reference} (at most {_PULL_LIMIT:.0f} s)")
    limit = _PULL_LIMIT if asked == "auto" else _BOOTSTRAP_LIMIT
    done = run(["docker", "pull", "--quiet", reference], time_limit=limit)
    if not done.ok and asked != "auto":
        remedy = "correct BASE, or BASE=bootstrap, which needs a Debian mirror alone"
        raise Stop(
            [Fault(f"BASE={asked}: {done.last_line}", "an image that is here or can be pulled", remedy)]
        )
    return done.ok


def _need_suite(reference: str, run: Run) -> None:
    """Stop where a base that was named is another system: the build would find out after its downloads."""
    argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "cat", reference, "/etc/os-release"]
    done = run(argv, time_limit=60)
    release = install.parse_os_release(done.stdout) if done.ok else {}
    if release.get("ID") == "debian" and release.get("VERSION_CODENAME") == STACK.suite:
        return
    unread = "without /etc/os-release" if done.ok else f"not to be read: {done.last_line}"
    found = release.get("PRETTY_NAME") or release.get("ID") or unread
    remedy = f"BASE=debian:{STACK.suite}-slim, an image made from it, or BASE=bootstrap"
    raise Stop([Fault(f"BASE={reference} is {found}", f"Debian {STACK.suite}", remedy)])


def sources(mirror: str, suite: str) -> list[str]:
    """apt lines for `suite` with its updates and, where the mirror has them, its security fixes.

    By custom a mirror holds the security archive beside the main one, at .../debian-security.
    """
    mirror = mirror.rstrip("/")
    lines = [f"deb {mirror} {suite} main", f"deb {mirror} {suite}-updates main"]
    if mirror.endswith("/debian"):
        lines.append(f"deb {mirror}-security {suite}-security main")
    return lines


def bootstrap_command(tar: str, mirror: str) -> list[str]:
    """The mmdebstrap call that writes a minimal Debian with certificates to the file `tar`."""
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        "--format=tar",
        "--quiet",
        STACK.suite,
        tar,
        *sources(mirror, STACK.suite),
    ]


def _bootstrap(run: Run, say: Callable[[str], None], mirror: str, epoch: int) -> str:
    _need_mmdebstrap(run, say)
    started = time.monotonic()
    reference = f"{REPOSITORY}:{STACK.suite}-{time.strftime('%Y%m%d', time.gmtime())}"
    say(f"base: bootstrapping {STACK.suite} from {mirror}")
    # Through a file, not a pipe: a bootstrap that fails half-way must not leave half a base behind.
    with tempfile.TemporaryDirectory(prefix="dyno-base-") as directory:
        tar = str(Path(directory) / "base.tar")
        # A fixed time makes the same packages the same layer, wherever and whenever they are unpacked.
        env = {"SOURCE_DATE_EPOCH": str(epoch)}
        done = run(bootstrap_command(tar, mirror), env=env, time_limit=_BOOTSTRAP_LIMIT)
        if not done.ok:
            needed = f"a Debian mirror that has {STACK.suite}"
            remedy = "DEBIAN_MIRROR=http://deb.debian.org/debian, or BASE=<image> you have"
            raise Stop([Fault(f"mmdebstrap: {_cause(done.stderr)}", needed, remedy, Exit.UNUSABLE)])
        changes = [f"LABEL {_MIRROR_LABEL}={mirror}", 'CMD ["bash"]']
        flags = [word for change in changes for word in ("--change", change)]
        done = run(["docker", "import", *flags, tar, reference], time_limit=300)
        if not done.ok:
            raise Stop(
                [
                    Fault(
                        f"docker import: {done.last_line}",
                        "an engine with room",
                        "docker system df",
                        Exit.FAILED,
                    )
                ]
            )
    say(f"base: bootstrapped {reference} in {time.monotonic() - started:.0f} s")
    return reference


def _cause(stderr: str) -> str:
    """The line of a failed bootstrap that says why: apt's errors come before mmdebstrap's closing ones."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("E: ", "Err:"))]
    return next(
        iter([line for line in telling if "mmdebstrap" not in line] or telling or lines[-1:]), "no output"
    )


def _need_mmdebstrap(run: Run, say: Callable[[str], None]) -> None:
    absent = [] if shutil.which(install.BOOTSTRAP) else [install.BOOTSTRAP]
    absent += [] if KEYRING.exists() else ["debian-archive-keyring"]
    if not absent:
        return
    system = install.read_system(run)
    if system.root and system.os_release.get("ID") == "debian":
        say(f"base: installing {', '.join(absent)} (root on Debian)")
        install.apt(run, absent)
        return
    remedy = f"sudo apt-get update && sudo apt-get install --no-install-recommends {' '.join(absent)}"
    needed = f"{' and '.join(absent)} to bootstrap the base, or BASE=<a Debian {STACK.suite} image>"
    raise Stop([Fault(f"no {' and no '.join(absent)}", needed, remedy, Exit.UNUSABLE)])


def _inspect(reference: str, reason: str, run: Run) -> Base:
    done = run(["docker", "image", "inspect", "--format", "{{json .}}", reference], time_limit=30)
    if not done.ok:
        raise Stop([Fault(f"{reference}: {done.last_line}", "a base image", "BASE=bootstrap", Exit.FAILED)])
    return describe(reference, reason, done.stdout, datetime.now(timezone.utc))


def describe(reference: str, reason: str, inspected: str, now: datetime) -> Base:
    """The base from what `docker image inspect` says of it. Pure.

    The identity names content (layers, registry digest), never a time: the same base is the same identity.
    """
    facts = json.loads(inspected)
    mirror = ((facts.get("Config") or {}).get("Labels") or {}).get(_MIRROR_LABEL)
    layers = (facts.get("RootFS") or {}).get("Layers") or [facts.get("Id", "unknown")]
    digests = facts.get("RepoDigests") or []
    if mirror:
        identity = f"{STACK.suite} bootstrapped from {mirror}, layer {layers[0]}"
    else:
        identity = digests[0] if digests else f"{reference}, layer {layers[-1]}"
    days = _age(facts.get("Created", ""), now)
    old = f"; {days} days old, `python3 -m image base --refresh` makes a new one" if days > _OLD else ""
    return Base(reference, identity, f"{reference} ({reason}{old})")


def _age(created: str, now: datetime) -> int:
    try:
        return (now - datetime.fromisoformat(created[:19] + "+00:00")).days
    except ValueError:
        return 0
