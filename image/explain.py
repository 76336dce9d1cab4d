"""A plan in words, one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from image import base, engine, install
from image.host import Host
from image.plan import CPU_SECONDS, SOURCE_LIMIT, FlashAttention, Plan

_WIDTH = 100
_LABEL = 12


def plan(made: Plan, host: Host) -> str:
    """The plan for a person: what will be made, from what, how long it takes and how to choose otherwise."""
    rows = [
        ("image", f"{made.tags[0]} ({made.target})" + "".join(f", also {tag}" for tag in made.tags[1:])),
        ("GPU", f"architecture {' '.join(made.gpu_archs)}: {made.archs_from} (GPU_ARCHS='8.6 8.9' chooses)"),
        ("flash-attn", flash_attention(made.flash_attn, made.max_jobs)),
        ("jobs", f"MAX_JOBS={made.max_jobs}: {made.jobs_from}"),
        ("base", _base(made.base)),
        ("download", f"about {made.download_gb:g} GB on a first build"),
        ("disk", f"about {made.disk_gb:g} GB, {made.disk_free_gb:.0f} GB free at {made.disk_path}"),
        ("from", f"{made.debian_mirror}, {made.pypi_index}"),
        (
            "trust",
            f"{made.ca_bundle} as a build secret" if made.ca_bundle else "the base image's own certificates",
        ),
        ("engine", _engine(host)),
        ("versions", _versions(made.versions)),
        ("identity", f"build {made.build_id}, lock {made.lock_digest[:16]}"),
    ]
    lines = [_row(label, text) for label, text in rows]
    return "\n".join([*lines, *(_row("NOTE", note) for note in made.notes)])


def _row(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def flash_attention(flash: FlashAttention, jobs: int) -> str:
    """The route, its time and the other choices, in a sentence or two."""
    estimate = (
        f"compiling takes about {minutes(flash.minutes)} here "
        f"(about {CPU_SECONDS:,} CPU-seconds a GPU generation, {jobs} at once)"
    )
    if flash.route == "wheelhouse":
        return (
            f"{flash.version} from {flash.wheel}: {flash.reason}, nothing is compiled. "
            f"FLASH_ATTN=source compiles it: {estimate}"
        )
    if flash.route == "source":
        return (
            f"{flash.version} from source: {flash.reason}; {estimate}. "
            "WHEELHOUSE=DIR takes a wheel, FLASH_ATTN=none does without"
        )
    return (
        f"NONE: {flash.reason}; {estimate}. WHEELHOUSE=DIR takes a wheel, FLASH_ATTN=source compiles "
        f"whatever the time, FLASH_ATTN=auto compiles below {SOURCE_LIMIT} min"
    )


def minutes(value: int) -> str:
    """'18 min', '2 h 5 min'."""
    hours, rest = divmod(value, 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"


def _base(choice: base.Choice) -> str:
    does = {"use": "used as it is", "try-pull": "to be pulled", "bootstrap": "bootstrapped with mmdebstrap"}[
        choice.action
    ]
    return f"{choice.reference or 'a minimal Debian'}, {does} ({choice.reason})"


def _engine(host: Host) -> str:
    faults = engine.problems(host.engine, install.command(host.system))
    if not faults:
        return install.describe(host.engine)
    if install.can_install(host.system):
        missing = "; ".join(fault.found for fault in faults)
        return f"{missing}. `build` installs and starts what is missing (root on Debian)"
    return "; ".join(map(str, faults))


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
