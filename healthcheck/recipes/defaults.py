"""Process-wide settings that cost nothing and often pay, by the API of the installed torch."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

_OLD_NAME, _NEW_NAME = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
Undo = Callable[[], None]


class Settings:
    """What `cuda_defaults` has set. Leaving it as a context, or `restore`, brings back what was found."""

    def __init__(self, undo: tuple[Undo, ...]) -> None:
        self._undo = list(undo)

    def restore(self) -> None:
        """Bring back what was found; a second time does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Settings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def cuda_defaults(
    *,
    tf32: bool | None = True,
    cudnn_benchmark: bool | None = True,
    expandable_segments: bool | None = True,
) -> Settings:
    """Set what most programs want on a GPU, from now on; None leaves a setting as it is.

        cuda_defaults()                    # at the start of a program
        with cuda_defaults(tf32=False):    # or for a while
            ...

    `tf32`: float32 products, convolutions and recurrent layers may use TF32 tensor cores (Ampere and newer).
    They keep float32's range and 10 bits of its mantissa: relative errors of 1e-3 instead of 1e-7.
    `cudnn_benchmark`: cuDNN tries its algorithms on the first call with each shape and keeps the fastest.
    Leave it out where shapes change all the time.
    `expandable_segments`: the allocator grows its segments rather than adding new ones, so that less memory
    is lost to fragmentation. Memory allocated so cannot be shared between processes. It holds for memory
    allocated from now on and for processes started from now on (environment variable PYTORCH_ALLOC_CONF, or
    PYTORCH_CUDA_ALLOC_CONF before torch 2.10). What the environment says of it already stands.

    All of it can be set without a GPU. Nothing is raised for a setting that the GPU cannot use.
    """
    undo: list[Undo] = []
    if tf32 is not None:
        undo.append(_set_tf32(tf32))
    if cudnn_benchmark is not None:
        undo.append(_set_benchmark(cudnn_benchmark))
    if expandable_segments is not None:
        undo.append(_set_expandable(expandable_segments))
    return Settings(tuple(undo))


def _set_tf32(allowed: bool) -> Undo:
    """By the older flags and, from torch 2.9 on, each operator's `fp32_precision`, so that both agree.

    Where they disagree, reading the older ones raises, and torch.compile of 2.9 and 2.10 reads them
    (pytorch#166387). The older setters bring the newer attributes along. What was
    found is read from the newer ones, which can always be read.
    """
    import torch

    cudnn: Any = torch.backends.cudnn
    attributes = [(owner, owner.fp32_precision) for owner in _precision_owners()]
    matmul, convolution = _readable(torch.get_float32_matmul_precision), _readable(lambda: cudnn.allow_tf32)

    def put(products: str, convolutions: bool) -> None:
        with _quiet():
            torch.set_float32_matmul_precision(products)
            cudnn.allow_tf32 = convolutions

    def undo() -> None:
        put(matmul or "highest", True if convolution is None else convolution)
        for owner, found in attributes:
            if owner.fp32_precision != found:
                owner.fp32_precision = found

    put("high" if allowed else "highest", allowed)
    for owner, _ in attributes:
        if owner.fp32_precision == "none":  # left to what a wider setting says
            owner.fp32_precision = "tf32" if allowed else "ieee"
    return undo


def _precision_owners() -> Iterator[Any]:
    """What has an `fp32_precision` that the older setters change: nothing before torch 2.9."""
    import torch

    backends: Any = torch.backends
    for owner in (
        backends.cuda.matmul,
        getattr(backends.cudnn, "conv", None),
        getattr(backends.cudnn, "rnn", None),
        getattr(backends.mkldnn, "matmul", None),
    ):
        if hasattr(owner, "fp32_precision"):
            yield owner


def _readable(read: Callable[[], Any]) -> Any:
    """What `read` returns, or None where old and new settings disagree."""
    with _quiet():
        try:
            return read()
        except RuntimeError:
            return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's advice to use the newer attributes alone, and its notes on private functions."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*new API")
        warnings.filterwarnings("ignore", message=".*_set_allocator_settings")
        yield


def _set_benchmark(on: bool) -> Undo:
    import torch

    cudnn: Any = torch.backends.cudnn
    found = cudnn.benchmark

    def undo() -> None:
        cudnn.benchmark = found

    cudnn.benchmark = on
    return undo


def _set_expandable(on: bool) -> Undo:
    """In the environment for processes to come, and in the running allocator where there is a GPU.

    The environment alone would not do: some versions read it when torch is imported.
    """
    name = _variable()
    found = os.environ.get(name)
    keys = {part.split(":")[0].strip() for part in (found or "").split(",")}
    if keys & {"expandable_segments", "backend"}:  # another backend has no segments
        return lambda: None

    def undo() -> None:
        if found is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = found
        _tell_allocator(_with_segments(found, False))

    os.environ[name] = _with_segments(found, on)
    _tell_allocator(os.environ[name])
    return undo


def _variable() -> str:
    """The environment variable that the installed torch obeys; one that is set already goes first."""
    import torch

    major, minor = (int(number) for number in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 10) or (_OLD_NAME in os.environ and _NEW_NAME not in os.environ):
        return _OLD_NAME  # 2.9 knows the new name and ignores it for CUDA (pytorch#183387)
    return _NEW_NAME


def _with_segments(settings: str | None, on: bool) -> str:
    """`settings` of the allocator with expandable segments added: the allocator forgets what is left out."""
    return ",".join([*([settings] if settings else []), f"expandable_segments:{on}"])


def _tell_allocator(settings: str) -> None:
    import torch

    if not torch.cuda.is_available():
        return
    memory: Any = torch.cuda.memory
    with _quiet():
        memory._set_allocator_settings(settings)
