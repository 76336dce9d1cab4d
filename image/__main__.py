"""`python3 -m image`: plan, build and examine the image."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from image import (
    arguments,
    base,
    build,
    clean,
    explain,
    install,
    localenv,
    lock,
    preflight,
    requirements,
    sbom,
    size,
)
from image.fault import Exit, Fault, Stop
from image.plan import TARGETS, Pins
from image.shell import run
from image.stack import STACK

ROOT = Path(__file__).resolve().parent.parent


def _say(line: str) -> None:
    print(line, flush=True)


def _pins() -> Pins:
    return Pins(STACK, requirements.read(ROOT / "requirements"))


def _plan(options: argparse.Namespace) -> int:
    chosen = arguments.gather(options, os.environ)
    made, facts = build.prepare(options.target, chosen, _pins(), ROOT, run)
    if options.name:
        _say(made.tags[0])
    else:
        _say(json.dumps(made.as_json(), indent=2) if options.json else explain.plan(made, facts))
    return Exit.OK


def _build(options: argparse.Namespace) -> int:
    chosen = arguments.gather(options, os.environ)
    code = build.build(options.target, chosen, _pins(), ROOT, run=run, say=_say, dry_run=options.dry_run)
    return Exit.OK if code == 0 else Exit.FAILED


def _base(options: argparse.Namespace) -> int:
    chosen = arguments.gather(options, os.environ)
    made, _ = build.prepare("runtime", chosen, _pins(), ROOT, run)
    mirror, epoch = made.debian_mirror, made.source_date_epoch
    found = base.ensure(chosen.base, run=run, say=_say, mirror=mirror, epoch=epoch, refresh=options.refresh)
    _say(f"identity: {found.identity}")
    return Exit.OK


def _engine(options: argparse.Namespace) -> int:
    chosen = arguments.gather(options, os.environ)
    install.ensure(run, _say, chosen.debian_mirror, with_bootstrap=True)
    return Exit.OK


def _preflight(options: argparse.Namespace) -> int:
    lines = preflight.read(run)
    for line in lines:
        _say(str(line))
    return preflight.exit_code(lines)


def _size(options: argparse.Namespace) -> int:
    _say(size.table(options.image, size.read(options.image, run)))
    return Exit.OK


def _sbom(options: argparse.Namespace) -> int:
    _say(json.dumps(sbom.bill(options.image, sbom.read(options.image, run)), indent=2))
    return Exit.OK


def _clean(_: argparse.Namespace) -> int:
    clean.clean(run, _say)
    return Exit.OK


def _lock(options: argparse.Namespace) -> int:
    if options.check:
        lock.check(ROOT, _say)
    else:
        lock.lock(ROOT, run, _say)
    return Exit.OK


def _env(options: argparse.Namespace) -> int:
    localenv.ensure(ROOT, run, _say, os.environ, torch=options.torch)
    return Exit.OK


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python3 -m image", description="Plans, builds and examines the image."
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, do: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(do=do)
        return made

    for name, do, text in (
        ("plan", _plan, "say what would be built, from what, and how long it takes"),
        ("build", _build, "build the image"),
    ):
        made = verb(name, do, text)
        made.add_argument("target", nargs="?", default=TARGETS[0], help=" or ".join(TARGETS))
        arguments.add_options(made)
    verbs.choices["plan"].add_argument("--json", action="store_true", help="print it as JSON")
    verbs.choices["plan"].add_argument("--name", action="store_true", help="print the image's name alone")
    verbs.choices["build"].add_argument("--dry-run", action="store_true", help="print what would be run")
    made = verb("base", _base, "find, pull or bootstrap the base image")
    made.add_argument("--refresh", action="store_true", help="make a new one even where one is there")
    arguments.add_options(made)
    made = verb("engine", _engine, "find a Docker engine; as root on Debian 12 or 13 install and start it")
    made.add_argument("--debian-mirror", metavar="DEBIAN_MIRROR", help=arguments.HELP["debian_mirror"])
    verb("preflight", _preflight, "can this host run the image on its GPU")
    verb("size", _size, "unpacked size of an image by layer").add_argument("image")
    verb("sbom", _sbom, "bill of materials of an image, CycloneDX 1.5 JSON").add_argument("image")
    verb("clean", _clean, "remove this project's images, say how to remove build cache")
    made = verb("lock", _lock, "resolve requirements/*.in to hash-locked *.lock, with uv")
    made.add_argument("--check", action="store_true", help="only say where locks and pins disagree")
    made = verb("env", _env, "make .venv for tests and for the self-test without an image")
    made.add_argument("--torch", action="store_true", help="with the torch trio")
    return top


def main() -> int:
    """Run one verb; a person's mistake is one line, never a traceback."""
    options = parser().parse_args()
    try:
        return int(options.do(options))
    except Stop as stop:
        for fault in stop.faults:
            print(f"image {options.verb}: {fault}", file=sys.stderr)
        return stop.exit
    except OSError as error:
        where = error.filename or "the system"
        fault = Fault(
            f"{where}: {error.strerror or error}", "to read or write it", "correct its rights", Exit.FAILED
        )
        print(f"image {options.verb}: {fault}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        print(f"image {options.verb}: ended by the keyboard", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
