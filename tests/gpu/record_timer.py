"""The timer against Triton's and against the GPU's own clock, as a page: python -m tests.gpu.record_timer

Kernels from about 10 us to 50 ms: additions are bound by memory, products by arithmetic.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
import triton
import triton.testing

from healthcheck.measure.timer import CudaStopwatch, Plan, measure
from tests.gpu.sleep_kernel import sleep

PLAN = Plan(warmup_seconds=0.2, seconds=0.5, least=20, most=500)
ALLOWED = 0.02
# Numbers added, then widths of fp16 products: ten kernels about evenly spaced in the logarithm of their time.
ADDITIONS = (4 * 2**20, 16 * 2**20, 64 * 2**20, 256 * 2**20, 1024 * 2**20)
PRODUCTS = (2048, 4096, 8192, 16384, 24576)
SLEEPS = (100_000, 1_000_000, 10_000_000)  # ns


@dataclass(frozen=True)
class Row:
    """One kernel: our median beside another's, in ms."""

    name: str
    ours: float
    other: float

    @property
    def away(self) -> float:
        return self.ours / self.other - 1

    @property
    def text(self) -> str:
        return f"| {self.name} | {self.ours:.4f} | {self.other:.4f} | {self.away:+.2%} |"


def timed(call: Callable[[], object]) -> float:
    return median(measure(call, CudaStopwatch(), PLAN))


def kernels() -> Iterator[tuple[str, Callable[[], object]]]:
    """Names and calls; the operands of one are let go before the next."""
    for count in ADDITIONS:
        a, b = (torch.rand(count, device="cuda", dtype=torch.float16) for _ in range(2))
        out = torch.empty_like(a)
        yield f"addition of {count / 2**20:.0f} Mi fp16", lambda a=a, b=b, out=out: torch.add(a, b, out=out)
    for width in PRODUCTS:
        a, b = (torch.rand(width, width, device="cuda", dtype=torch.float16) for _ in range(2))
        out = torch.empty_like(a)
        yield f"product of {width}x{width} fp16", lambda a=a, b=b, out=out: torch.mm(a, b, out=out)


def against_triton() -> list[Row]:
    rows = []
    for name, call in kernels():
        ours = timed(call)
        theirs = triton.testing.do_bench(call, warmup=200, rep=500, return_mode="median")
        rows.append(Row(name, ours, float(theirs)))
    return rows


def against_the_clock() -> list[Row]:
    return [Row(f"sleep of {ns / 1e6:g} ms", timed(lambda ns=ns: sleep(ns)), ns / 1e6) for ns in SLEEPS]


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return (
        subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0] or "unknown"
    )


def main() -> int:
    """Print the page; the exit code is 1 where a row is further away than allowed."""
    triton_rows, clock_rows = against_triton(), against_the_clock()
    lines = [
        "# The timer, checked",
        "",
        f"{torch.cuda.get_device_name()}, driver {driver()}, torch {torch.__version__}, Triton "
        f"{triton.__version__}, Python {platform.python_version()}. Medians in ms; written by "
        "`python -m tests.gpu.record_timer`.",
        "",
        "| kernel | Dyno | triton.testing.do_bench | difference |",
        "|---|---|---|---|",
        *(row.text for row in triton_rows),
        "",
        "A kernel that reads the GPU's own clock (`%globaltimer`) until its time is up:",
        "",
        "| kernel | Dyno | its length | difference |",
        "|---|---|---|---|",
        *(row.text for row in clock_rows),
    ]
    print("\n".join(lines))
    far = [row.name for row in (*triton_rows, *clock_rows) if abs(row.away) > ALLOWED]
    if far:
        print(f"more than {ALLOWED:.0%} away: {', '.join(far)}", file=sys.stderr)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
