"""What a person may choose: the variables of the Makefile, each with an option of the same name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields

from image.stack import STACK


@dataclass(frozen=True)
class Arguments:
    """Choices as typed; the plan judges them. Defaults stand for what is neither an option nor set."""

    gpu_archs: str = ""
    flash_attn: str = "auto"
    wheelhouse: str = ""
    base: str = "auto"
    debian_mirror: str = STACK.debian_mirror
    pypi_index: str = STACK.pypi_index
    ca_bundle: str = "auto"
    tag: str = ""
    max_jobs: str = ""


HELP = {
    "gpu_archs": "GPU architectures to build for, as '8.6 8.9' (default: this machine's GPU, else 8.9)",
    "flash_attn": "auto, source, wheelhouse or none",
    "wheelhouse": "directory with a flash-attn wheel",
    "base": "auto, bootstrap or an image",
    "debian_mirror": "Debian mirror",
    "pypi_index": "PyPI index",
    "ca_bundle": "PEM file the build trusts, as a secret: auto (what this host trusts), none or a path",
    "tag": "name of the image, as 'mine' (dyno:mine) or 'registry/name:tag'",
    "max_jobs": "compilers at once for flash-attn",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """One option for each variable."""
    for name, text in HELP.items():
        variable = name.upper()
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=variable, help=f"{text}  [env {variable}]")


def gather(options: argparse.Namespace, environment: Mapping[str, str]) -> Arguments:
    """Option before variable before default. A variable that is set but empty counts as not set."""
    chosen = {}
    for field in fields(Arguments):
        option = getattr(options, field.name, None)
        value = option if option is not None else environment.get(field.name.upper()) or None
        if value is not None:
            chosen[field.name] = value.strip()
    return Arguments(**chosen)
