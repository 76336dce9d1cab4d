"""Independent pieces of work side by side on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from healthcheck.recipes.structure import tensors


class Branches:
    """Run pieces of work that do not depend on each other on `count` side streams of a GPU.

        branches = Branches(4)
        left, right = branches([lambda: f(x), lambda: g(x)])
        both = graphed(lambda x: branches([lambda: f(x), lambda: g(x)]), example)  # where it pays

    Calling it forks the side streams from the current stream, gives piece i to stream i modulo `count`, joins
    all to the current stream again and returns the results in the order of the pieces: what is queued before
    is done before, what is queued after sees the results. A piece may read what was made before the call, and
    must not write to what another piece uses. While a CUDA graph is captured the pieces become branches of
    that graph.

    That is where it pays: without a graph the host enqueues kernels one after another, so small ones seldom
    overlap, and large ones fill the GPU by themselves.

    `streams` are the side streams (torch.cuda.Stream), for a timer to join. On a CPU there are none, and the
    pieces run in turn. Raises ValueError for a `count` below 1, RuntimeError where `device` is a GPU and
    there is none. What a piece raises comes out, after the streams are joined.
    """

    def __init__(self, count: int, device: Any = "cuda") -> None:
        import torch

        if count < 1:
            raise ValueError(f"count is {count}; needs at least 1 branch")
        self._device = torch.device(device)
        self.streams: tuple[Any, ...] = ()
        if self._device.type == "cpu":
            return
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"branches on {self._device} need a GPU, and torch sees none; use device='cpu' to run in turn"
            )
        if self._device.index is None:
            self._device = torch.device(self._device.type, torch.cuda.current_device())
        self.streams = tuple(torch.cuda.Stream(self._device) for _ in range(count))  # type: ignore[no-untyped-call]

    def __call__(self, pieces: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run `pieces`; their results lie on the current stream."""
        import torch

        if not self.streams:
            return [piece() for piece in pieces]
        current = torch.cuda.current_stream(self._device)
        used = self.streams[: len(pieces)]
        results = []
        for stream in used:
            stream.wait_stream(current)
        try:
            for i, piece in enumerate(pieces):
                with torch.cuda.stream(self.streams[i % len(self.streams)]):
                    results.append(piece())
        finally:
            for stream in used:
                current.wait_stream(stream)
        for tensor in tensors(results):
            if tensor.is_cuda:  # its memory belongs to a side stream, and is used on this one from now on
                tensor.record_stream(current)
        return results
