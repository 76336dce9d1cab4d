"""Copy the next batch to the GPU while the current one is being computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def prefetch_to_device(batches: Iterable[Any], stream: Any = None, depth: int = 1) -> Iterator[Any]:
    """Yield each of `batches`, copied to the current GPU by a stream of its own, `depth` batches ahead.

    `batches` holds tensors of any shape and type in pinned host memory (`DataLoader(pin_memory=True)` or
    `tensor.pin_memory()`). They must not be written to before the work on them is done. `stream` is the
    torch.cuda.Stream that copies, a new one when None. The stream that is current when a batch is asked for
    waits for its copy alone, and may use it until the next is asked for.

    Memory: about `depth` + 1 batches on the GPU. Raises ValueError for pageable memory, from which a copy
    cannot run beside computing, and for a `depth` below 1.
    """
    import torch

    if depth < 1:
        raise ValueError(f"depth is {depth}; needs at least 1 batch ahead")
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    ahead: list[tuple[Any, Any]] = []
    for batch in batches:
        ahead.append(_copy(batch, side))
        if len(ahead) > depth:
            yield _arrived(*ahead.pop(0))
    while ahead:
        yield _arrived(*ahead.pop(0))


def _copy(batch: Any, side: Any) -> tuple[Any, Any]:
    """Start copying; return the tensor on the GPU and the event that marks its arrival."""
    import torch

    if not batch.is_pinned():
        raise ValueError(
            f"a batch of shape {tuple(batch.shape)} is in pageable memory; overlapping needs pinned memory: "
            "use DataLoader(pin_memory=True) or tensor.pin_memory()"
        )
    with torch.cuda.stream(side):
        copy = batch.to("cuda", non_blocking=True)
        arrival: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record(side)
    return copy, arrival


def _arrived(copy: Any, arrival: Any) -> Any:
    """Make the current stream wait for the copy, and keep its memory from being reused under that stream."""
    import torch

    current = torch.cuda.current_stream()
    current.wait_event(arrival)
    copy.record_stream(current)
    return copy
