"""Measure how long the image takes to do things, and write docs/timings.md.

    python -m tests.image.record_timings [--cold]

Run by hand: no test depends on a time. `--cold` first empties the build cache, to time a build from nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("DYNO_IMAGE", "dyno:latest")
REPEATS = 3


def seconds(command: list[str]) -> float:
    """Return the wall time of `command`, which must succeed."""
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def repeated(measure: Callable[[], float]) -> str:
    """Return the median of several runs, with their range."""
    runs = sorted(measure() for _ in range(REPEATS))
    return f"{statistics.median(runs):.2f} s ({runs[0]:.2f} to {runs[-1]:.2f}, {REPEATS} runs)"


def run(*command: str, selftest: str = "off", entrypoint: bool = True) -> list[str]:
    without = [] if entrypoint else ["--entrypoint", ""]
    return ["docker", "run", "--rm", "-e", f"SELFTEST={selftest}", *without, IMAGE, *command]


def inside(code: str) -> float:
    """Return what `code`, run by the image's Python, prints as seconds."""
    done = subprocess.run(run("python", "-c", code), check=True, capture_output=True, text=True)
    return float(done.stdout)


def edited_build() -> float:
    """Return the time of a rebuild after one healthcheck file has changed, and undo the change."""
    file = ROOT / "healthcheck" / "probe.py"
    before = file.read_text()
    try:
        file.write_text(before + f"# {time.time()}\n")
        return seconds(["make", "image"])
    finally:
        file.write_text(before)


def cold_build() -> float:
    subprocess.run(["docker", "builder", "prune", "--all", "--force"], check=True, stdout=subprocess.DEVNULL)
    return seconds(["make", "image"])


def lines(cold: bool) -> list[tuple[str, str]]:
    took_cold = f"{cold_build():.0f} s" if cold else "not measured this time"
    timed = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    return [
        ("`make image`, nothing cached", took_cold),
        ("`make image` after a change of one healthcheck file", f"{edited_build():.1f} s"),
        ("`import torch`, warm", repeated(lambda: inside(timed.format("torch")))),
        ("`import diffusers, transformers`, warm", repeated(lambda: inside(timed.format("diffusers, transformers")))),
        ("`docker run IMAGE true` without the entrypoint", repeated(lambda: seconds(run("true", entrypoint=False)))),
        ("`docker run IMAGE true`, `SELFTEST=off`", repeated(lambda: seconds(run("true")))),
        ("`docker run IMAGE true`, `SELFTEST=verify`, no GPU, caches cold", repeated(lambda: seconds(run("true", selftest="verify")))),
        ("`docker run IMAGE healthcheck probe`, `DYNO_DEVICE=cpu`", repeated(lambda: seconds(
            ["docker", "run", "--rm", "-e", "DYNO_DEVICE=cpu", IMAGE, "healthcheck", "probe"]))),
    ]  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--cold", action="store_true", help="empty the build cache first")
    rows = "".join(f"| {what} | {took} |\n" for what, took in lines(options.parse_args().cold))
    cores = len(os.sched_getaffinity(0))
    text = (
        "# Timings\n\n"
        f"Written by `python -m tests.image.record_timings` on {date.today()}: {cores} cores, "
        f"{platform.machine()}, Linux {platform.release().split('-')[0]}, no GPU. Medians; nothing is asserted.\n\n"
        f"| what | how long |\n|---|---|\n{rows}"
    )
    (ROOT / "docs" / "timings.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
