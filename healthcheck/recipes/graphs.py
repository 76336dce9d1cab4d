"""A function as a CUDA graph: its kernels are launched all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def graphed(function: Callable[..., Any], *examples: Any, warmup: int = 3) -> Callable[..., Any]:
    """Capture `function` in a CUDA graph (torch.cuda.graph) and return a callable that replays it.

        step = graphed(model, torch.empty(1, 3, 224, 224, device="cuda"))
        scores = step(image).clone()

    `examples` are CUDA tensors of one GPU with the shapes and dtypes of all later calls; their values only
    serve the `warmup` calls that come before the capture. A call of the result takes as many tensors, copies
    them into the graph's own inputs and replays it on the current stream. What it returns lies in the graph's
    own memory and is **overwritten by the next call**: clone what is to be kept. Replays must not overlap.

    `function` must launch the same kernels each time: no `.item()`, no `.cpu()`, no shape or branch that
    depends on values. It may use side streams that it forks and joins (`Branches`). Tensors that it uses
    besides its arguments are read where they lie when a replay runs: update them in place, if at all. It runs
    without gradients; to train through a graph use torch.cuda.make_graphed_callables.

    Raises RuntimeError where there is no GPU or the capture fails, ValueError for a `warmup` below 1 and for
    tensors of another shape, dtype or device than the examples', TypeError for what is no tensor or another
    number of arguments.
    """
    import torch

    if warmup < 1:
        raise ValueError(f"warmup is {warmup}; needs at least 1 call before the capture")
    if not torch.cuda.is_available():
        raise RuntimeError("a CUDA graph needs a GPU, and torch sees none; call the function itself")
    device = _device(examples)
    with torch.cuda.device(device), torch.no_grad():
        inputs = tuple(example.detach().clone() for example in examples)
        graph, outputs = _captured(function, inputs, warmup)

    def replay(*arguments: Any) -> Any:
        _check(arguments, inputs)
        with torch.cuda.device(device), torch.no_grad():
            for own, given in zip(inputs, arguments, strict=True):
                own.copy_(given, non_blocking=True)
            graph.replay()
        return outputs

    replay.__wrapped__ = function  # type: ignore[attr-defined]  # what the function holds must outlive it
    return replay


def _captured(function: Callable[..., Any], inputs: tuple[Any, ...], warmup: int) -> tuple[Any, Any]:
    """The graph and its outputs. Warming up on the stream that captures lets libraries set up there."""
    import torch

    current, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            function(*inputs)
    current.wait_stream(stream)
    graph: Any = torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    with torch.cuda.graph(graph, stream=stream):
        outputs = function(*inputs)
    return graph, outputs


def _device(examples: tuple[Any, ...]) -> Any:
    """The one GPU on which all `examples` lie; the current one when there are none."""
    import torch

    for i, example in enumerate(examples):
        if not isinstance(example, torch.Tensor):
            raise TypeError(f"example {i} is of type {type(example).__name__}; a graph takes CUDA tensors")
        if not example.is_cuda:
            raise ValueError(f"example {i} is on {example.device}; a graph takes CUDA tensors: use .cuda()")
    devices = {str(example.device) for example in examples}
    if len(devices) > 1:
        raise ValueError(f"the examples are on {', '.join(sorted(devices))}; a graph has one GPU")
    return examples[0].device if examples else torch.device("cuda", torch.cuda.current_device())


def _check(arguments: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
    """Raise, saying what was found and what is needed, unless `arguments` fit the graph's `inputs`."""
    import torch

    if len(arguments) != len(inputs):
        raise TypeError(f"{len(arguments)} arguments; the graph was captured with {len(inputs)}")
    for i, (given, own) in enumerate(zip(arguments, inputs, strict=True)):
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"argument {i} is of type {type(given).__name__}; the graph takes tensors")
        for what in ("shape", "dtype", "device"):
            found, needed = getattr(given, what), getattr(own, what)
            if found != needed:
                text = (
                    f"argument {i} has {what} {_plain(found)}; the graph was captured with {_plain(needed)}"
                )
                raise ValueError(f"{text}: capture another graph for it")


def _plain(value: Any) -> str:
    """A shape as a tuple, all else as it prints."""
    return str(tuple(value)) if isinstance(value, tuple) else str(value)
