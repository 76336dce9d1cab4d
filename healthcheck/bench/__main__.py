"""Run scenarios in the stack's Python and answer in events."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from healthcheck import wire
from healthcheck.bench import SCENARIOS, load
from healthcheck.bench.runner import Tools, run


def main(arguments: Sequence[str]) -> int:
    wire.die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m healthcheck.bench")
    parser.add_argument(
        "scenarios", choices=tuple(SCENARIOS), metavar="SCENARIO", nargs="+", help=", ".join(SCENARIOS)
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="for all of them; what would begin later is skipped")
    parser.add_argument("--short", action="store_true", help="a small workload, for a self-test")
    options = parser.parse_args(arguments)
    if options.short:  # a pool of compiler processes, each importing torch, takes longer than its few kernels
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    began = time.monotonic()
    for place, name in enumerate(options.scenarios):
        share = None
        if options.seconds is not None:
            share = (options.seconds - (time.monotonic() - began)) / (len(options.scenarios) - place)
        run(load(name), options.device, options.short, Tools(emit=wire.emit, budget=share))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
