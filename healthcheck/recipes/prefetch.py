"""Copy the next batch to the GPU while the current one is being computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from healthcheck.recipes.structure import map_tensors


def prefetch_to_device(
    batches: Iterable[Any], device: Any = "cuda", *, stream: Any = None, depth: int = 1
) -> Iterator[Any]:
    """Iterate over `batches` on `device`, each copied `depth` batches ahead by a stream of its own.

        for images, labels in prefetch_to_device(loader):  # DataLoader(..., pin_memory=True)
            loss = criterion(model(images), labels)

    `batches` is any iterable. A batch is a tensor of any shape and dtype, or tensors in tuples, named tuples,
    lists and mappings of any depth; what is no tensor, or lies on a GPU already, is passed on as it is. Host
    tensors have to be pinned (`DataLoader(pin_memory=True)` or `tensor.pin_memory()`), and must not be
    written to before the work on their batch is done. `stream` is the torch.cuda.Stream that copies, a new
    one when None. With a CPU as `device` every batch is passed on as it is.

    The stream that is current when a batch is asked for waits for that batch's copy alone. About
    `2 * depth + 2` batches lie on the GPU: before a further copy the host waits until the work on earlier
    ones is done, which leaves the GPU `depth` + 1 batches of work.

    An exception of `batches` comes out after the batches before it. Closing the iterator, or dropping it,
    waits for the copies under way and lets go of `batches`.

    Raises ValueError for a `depth` below 1, and for pageable memory, from which a copy cannot run beside
    computing; RuntimeError where `device` is a GPU and there is none.
    """
    import torch

    if depth < 1:
        raise ValueError(f"depth is {depth}; needs at least 1 batch ahead")
    target = torch.device(device)
    if target.type == "cpu":
        return (batch for batch in batches)
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"prefetching to {target} needs a GPU, and torch sees none; use device='cpu' to pass through"
        )
    if target.index is None:
        target = torch.device(target.type, torch.cuda.current_device())
    side = stream or torch.cuda.Stream(target)  # type: ignore[no-untyped-call]
    return _prefetched(batches, target, side, depth)


def _prefetched(batches: Iterable[Any], target: Any, side: Any, depth: int) -> Iterator[Any]:
    """Copies run `depth` batches ahead of the consumer, and the host no further ahead of its GPU."""
    import torch

    side.wait_stream(torch.cuda.current_stream(target))  # the source may still be written by queued work
    source = iter(batches)
    ahead: deque[tuple[Any, Any]] = deque()  # copies under way: (batch on the GPU, event of its arrival)
    done: deque[Any] = deque()  # events after the work on the batches before
    failure: Exception | None = None
    exhausted = False
    try:
        while True:
            current: Any = torch.cuda.current_stream(target)
            done.append(current.record_event())
            if len(done) > depth + 1:
                done.popleft().synchronize()
            while not exhausted and len(ahead) <= depth:
                try:
                    ahead.append(_copied(next(source), target, side))
                except StopIteration:
                    exhausted = True
                except Exception as error:  # comes out in its turn, after the batches before it
                    failure, exhausted = error, True
            if not ahead:
                break
            yield _arrived(*ahead.popleft(), current)
        if failure is not None:
            raise failure
    finally:
        for _, arrival in ahead:
            arrival.synchronize()


def _copied(batch: Any, target: Any, side: Any) -> tuple[Any, Any]:
    """Start copying `batch`; return it on the GPU, and the event that marks its arrival."""
    import torch

    def move(tensor: Any) -> Any:
        if tensor.device.type != "cpu":
            return tensor
        if tensor.numel() and not tensor.is_pinned():
            raise ValueError(
                f"a batch holds a tensor of shape {tuple(tensor.shape)} in pageable memory; overlapping "
                "needs pinned memory: use DataLoader(pin_memory=True) or tensor.pin_memory()"
            )
        return tensor.to(target, non_blocking=True)

    with torch.cuda.stream(side):
        return map_tensors(move, batch), side.record_event()


def _arrived(batch: Any, arrival: Any, current: Any) -> Any:
    """Make `current` wait for the copy, and keep its memory from being reused before that stream is done."""
    current.wait_event(arrival)

    def keep(tensor: Any) -> Any:
        if tensor.is_cuda:
            tensor.record_stream(current)
        return tensor

    return map_tensors(keep, batch)
