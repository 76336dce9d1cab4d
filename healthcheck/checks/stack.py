"""Is the stack the one that was installed? Judged from metadata, so that a broken one can be judged too."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from healthcheck.checks.base import Check, Verdict, failed, passed, skipped, unknown, version, warned
from healthcheck.checks.workspace import MORE_PROCESSES
from healthcheck.facts.stack import normalise

if TYPE_CHECKING:
    from healthcheck.facts.snapshot import Facts

_FFMPEG_OLDEST = 6
_MANY = 8  # more packages than this are not put on one line: a new container is the shorter way
_FEW = 3  # of the places that a package has lost
# On the index flash-attn has no wheel, and under the stand-in's name lies a second copy of cv2.
_OURS = frozenset({"flash-attn", "opencv-python"})
_NEW_CONTAINER = "docker run --rm -it --gpus all dyno  # a fresh container has the stack as it was built"


def bound_together(facts: Facts) -> frozenset[str]:
    """What was compiled against one another: a different version of one breaks the rest."""
    manifest = facts.manifest.manifest
    return frozenset(map(normalise, manifest.constrained)) if manifest else frozenset()


def _manifest(facts: Facts) -> Verdict:
    reading = facts.manifest
    if reading.error:
        return failed(f"The manifest {reading.path} {reading.error}.", "make image  # builds it anew")
    if reading.manifest is None:
        return skipped(f"No manifest at {reading.path}: not part of this environment.")
    return passed(f"build {reading.manifest.build_id}, {len(reading.manifest.stack)} distributions")


def _interpreter(facts: Facts) -> Verdict:
    stack = facts.stack
    if stack.python_exists is None:
        return unknown("The stack's Python is not known.", "export DYNO_STACK_PYTHON=/opt/venv/bin/python")
    if not stack.python_exists or stack.distributions is None:
        what = "packages beside it" if stack.python_exists else "such file"
        return failed(f"The stack's Python is {stack.python}, but there is no {what}.", _NEW_CONTAINER)
    return passed(f"{stack.python}, {len(stack.distributions)} distributions")


def _complete(facts: Facts) -> Verdict:
    """Nothing missing, and the packages compiled against one another at exactly their versions."""
    pair = _expected_and_found(facts)
    if isinstance(pair, Verdict):
        return pair
    expected, found = pair
    missing = [name for name in expected if name not in found]
    changed = [name for name in _changed(expected, found) if name in bound_together(facts)]
    lost = {name: gone for name, gone in facts.stack.lost.items() if name in expected}
    if not missing and not changed and not lost and not facts.stack.duplicates:
        return passed(f"all {len(expected)} distributions of the manifest are there")
    said = [f"{name} {expected[name]} is missing" for name in missing]
    said += [f"{name} is {found[name]}, built as {expected[name]}" for name in changed]
    said += [f"{name} has lost {_some(gone)} from site-packages" for name, gone in lost.items()]
    said += [f"{name} has two sets of metadata (a broken install)" for name in facts.stack.duplicates]
    wrong = {*missing, *changed, *lost, *facts.stack.duplicates} & set(expected)
    return failed(
        f"{'; '.join(said)}.",
        _reinstall(wrong, expected),
        missing=missing,
        changed=changed,
        lost={name: list(gone) for name, gone in lost.items()},
    )


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{', '.join(names[:_FEW])}{more}"


def _unchanged(facts: Facts) -> Verdict:
    pair = _expected_and_found(facts)
    if isinstance(pair, Verdict):
        return pair
    expected, found = pair
    changed = [name for name in _changed(expected, found) if name not in bound_together(facts)]
    if not changed:
        return passed("versions as built")
    said = "; ".join(f"{name} is {found[name]}, built as {expected[name]}" for name in changed)
    return warned(f"{said}.", _reinstall(changed, expected), changed=changed)


def _expected_and_found(facts: Facts) -> tuple[Mapping[str, str], Mapping[str, str]] | Verdict:
    manifest = facts.manifest.manifest
    if manifest is None:
        return skipped("No manifest says what should be here.")
    if facts.stack.distributions is None:
        return unknown(f"The packages of {facts.stack.python} cannot be read.", _NEW_CONTAINER)
    return {normalise(name): v for name, v in manifest.stack.items()}, facts.stack.distributions


def _changed(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Names at another version. A local part (`+cu128`) counts only where both sides have one."""
    return [name for name in expected if name in found and not _same(expected[name], found[name])]


def _same(one: str, other: str) -> bool:
    if "+" in one and "+" in other:
        return one == other
    return one.partition("+")[0] == other.partition("+")[0]


def _reinstall(names: Iterable[str], expected: Mapping[str, str]) -> str:
    names = sorted(names)
    if not names or len(names) > _MANY or _OURS & set(names):
        return _NEW_CONTAINER
    return f"pip install --force-reinstall --no-deps {' '.join(f'{n}=={expected[n]}' for n in names)}"


def _one_opencv(facts: Facts) -> Verdict:
    copies = facts.stack.opencv_copies
    if len(copies) > 1:
        keep = "opencv-python-headless" if "opencv-python-headless" in copies else copies[0]
        wanted = (facts.stack.distributions or {}).get(keep)
        others = " ".join(name for name in copies if name != keep)
        return failed(
            f"{' and '.join(copies)} each installed a copy of cv2 into the same directory.",
            f"pip uninstall -y {others} && pip install --force-reinstall --no-deps "
            f"{keep}{f'=={wanted}' if wanted else ''}",
        )
    return passed(f"cv2 comes from {copies[0]}") if copies else skipped("No OpenCV installed.")


def _flash_attn(facts: Facts) -> Verdict:
    if facts.stack.has("flash-attn"):
        return passed(f"flash-attn {(facts.stack.distributions or {})['flash-attn']}")
    manifest = facts.manifest.manifest
    if manifest is None:
        return skipped("Not part of this environment.")
    if manifest.flash_attn_route == "none":
        return warned(
            "This image was built without flash-attn; attention falls back on PyTorch's own kernels.",
            "make image FLASH_ATTN=source  # about 4 hours of one core, or WHEELHOUSE=DIR with a wheel",
        )
    return failed(f"flash-attn {manifest.flash_attn_version} was built in and is missing.", _NEW_CONTAINER)


def _ffmpeg(facts: Facts) -> Verdict:
    program = facts.stack.program("ffmpeg")
    install = "apt-get install ffmpeg  # as root; Debian 13 has 7.1"
    if program is None:
        return unknown("Whether FFmpeg is installed is not known.", "ffmpeg -version")
    if program.path is None:
        if facts.manifest.manifest is None:
            return skipped("ffmpeg is not on PATH: not part of this environment.")
        return failed("ffmpeg is not on PATH.", install)
    major = version((program.version or "").partition(".")[0])
    if major is None:
        remedy = MORE_PROCESSES if os.strerror(errno.EAGAIN) in (program.error or "") else _NEW_CONTAINER
        return failed(f"{program.path} says no version: {program.error or program.version}.", remedy)
    if major[0] < _FFMPEG_OLDEST:
        return failed(f"FFmpeg {program.version}; torchcodec needs {_FFMPEG_OLDEST} or newer.", install)
    return passed(f"FFmpeg {program.version}")


CHECKS = (
    Check("DYN-STACK-001", "manifest", _manifest),
    Check("DYN-STACK-002", "stack's Python", _interpreter),
    Check("DYN-STACK-003", "stack complete", _complete),
    Check("DYN-STACK-004", "versions as built", _unchanged),
    Check("DYN-STACK-005", "one OpenCV", _one_opencv),
    Check("DYN-STACK-006", "flash-attn", _flash_attn),
    Check("DYN-STACK-007", "FFmpeg", _ffmpeg),
)
