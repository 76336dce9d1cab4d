"""A kernel of a known length: one thread block that reads the GPU's nanosecond clock until its time is up."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _nanoseconds():
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.uint64, is_pure=False, pack=1
    )


@triton.jit
def _sleep(nanoseconds):
    began = _nanoseconds()
    while _nanoseconds() - began < nanoseconds:
        pass


def sleep(nanoseconds: int) -> None:
    """Keep one multiprocessor busy for so long, on the current stream. The clock ticks about once in 32 ns
    to 1 us, so that it may last one tick more."""
    _sleep[(1,)](nanoseconds, num_warps=1)
