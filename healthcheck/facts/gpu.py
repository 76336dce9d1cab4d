"""GPUs and driver as NVML describes them. No CUDA context is opened: an exclusive GPU stays free."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# NVML's return codes are part of its ABI; the names are ours and appear in reports.
_KINDS = {
    4: "no-permission",
    9: "driver-not-loaded",
    12: "library-not-found",
    15: "gpu-lost",
    16: "reset-required",
    18: "version-mismatch",
    999: "unknown",
}
TIME_LIMIT = 10.0  # seconds; a healthy driver answers in milliseconds, a cold one in two or three seconds
_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}

_NONE = ("", "-1")  # words that end CUDA_VISIBLE_DEVICES


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in bytes; `capability` like "8.9"; `error` is set when it did not answer at all."""

    index: int
    name: str | None = None
    uuid: str | None = None
    capability: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    mig: bool | None = None
    mig_slices: int | None = None
    compute_mode: str | None = None
    ecc: bool | None = None
    error: str | None = None


@dataclass(frozen=True)
class GpuFacts:
    """`gpus` is None when NVML could not be asked; an empty tuple means that it answered: none.

    `error` is NVML's own text, `error_kind` one word of a closed list: those of `_KINDS`, "timeout",
    "no-nvml-module" and "other".
    """

    driver: str | None = None
    driver_cuda: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    error: str | None = None
    error_kind: str | None = None

    @property
    def visible(self) -> bool:
        return any(gpu.error is None for gpu in self.gpus or ())


def collect(nvml: Any = None, time_limit: float = TIME_LIMIT) -> GpuFacts:
    """Ask NVML; `nvml` stands in for the pynvml module in tests. Never raises.

    A driver in trouble can hold a call for ever, so it is made in a thread that is left behind after
    `time_limit` seconds.
    """
    answer: list[GpuFacts] = []
    thread = threading.Thread(target=lambda: answer.append(_ask(nvml)), daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the container's limit of processes and threads
        return GpuFacts(error=f"{error}", error_kind="other")
    thread.join(time_limit)
    return answer[0] if answer else GpuFacts(error=f"no answer within {time_limit:g} s", error_kind="timeout")


def _ask(nvml: Any) -> GpuFacts:
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            return GpuFacts(error=f"{error}", error_kind="no-nvml-module")
    try:
        with session(nvml):
            return _read(nvml)
    except Exception as error:  # whatever a broken driver library does, it is a finding
        return GpuFacts(error=_text(error), error_kind=_kind(error))


@dataclass(frozen=True)
class Selection:
    """What CUDA_VISIBLE_DEVICES selects: NVML's indices, None where they cannot be told (a MIG slice).

    `fault` says in a clause why that is not all that was asked for.
    """

    indices: tuple[int, ...] | None
    fault: str = ""


def selected(visible: str | None, uuids: tuple[str | None, ...]) -> Selection:
    """Read CUDA_VISIBLE_DEVICES as CUDA does, None = not set.

    An empty text or -1 hides every GPU, a GPU named twice does too, and a name without a GPU hides itself and
    what follows it. `uuids` are those of all GPUs in NVML's order, which CUDA shares under
    CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    if visible is None:
        return Selection(tuple(range(len(uuids))))
    found: list[int] = []
    words = [word.strip() for word in visible.split(",")]
    for place, word in enumerate(words):
        if word.startswith("MIG-"):
            return Selection(None)
        if found and word in _NONE:
            hidden = ",".join(words[place + 1 :])
            return Selection(tuple(found), f"{word!r} in it hides {hidden!r}" if hidden else "")
        index = _named(word, uuids)
        if index is None:
            return Selection(tuple(found), _no_gpu(word, uuids))
        if index in found:
            return Selection((), f"it names GPU {index} twice")
        found.append(index)
    return Selection(tuple(found))


def _named(word: str, uuids: tuple[str | None, ...]) -> int | None:
    """The GPU that one name means: a number, or a UUID or its beginning where only one GPU has it."""
    if word.isascii() and word.isdecimal():
        number = word.lstrip("0") or "0"
        return next((index for index in range(len(uuids)) if str(index) == number), None)
    matching = _matching(word, uuids)
    return matching[0] if len(matching) == 1 else None


def _matching(word: str, uuids: tuple[str | None, ...]) -> list[int]:
    return [i for i, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid and uuid.startswith(word)]


def _no_gpu(word: str, uuids: tuple[str | None, ...]) -> str:
    count = len(uuids)
    if word in _NONE:
        return "that hides every GPU"
    if _matching(word, uuids):
        return f"it names {word!r}, with which the UUIDs of several GPUs begin"
    there = "no GPU" if not count else "GPU 0 alone" if count == 1 else f"GPUs 0 to {count - 1}"
    return f"it names {word!r}, and this container has {there}"


def first_visible(visible: str | None, uuids: tuple[str | None, ...]) -> int | None:
    """NVML's index of CUDA's first device, None where there is none or it cannot be told."""
    indices = selected(visible, uuids).indices
    return indices[0] if indices else None


@contextlib.contextmanager
def session(nvml: Any) -> Iterator[None]:
    """NVML initialised for the length of the block."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _read(nvml: Any) -> GpuFacts:
    count = nvml.nvmlDeviceGetCount()
    return GpuFacts(
        driver=_known(lambda: _string(nvml.nvmlSystemGetDriverVersion())),
        driver_cuda=_known(lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion())),
        gpus=tuple(_gpu(nvml, index) for index in range(count)),
    )


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        return Gpu(index, error=_text(error))
    memory: Any = _known(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    mig = _known(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
    return Gpu(
        index=index,
        name=_known(lambda: _string(nvml.nvmlDeviceGetName(handle))),
        uuid=_known(lambda: _string(nvml.nvmlDeviceGetUUID(handle))),
        capability=_known(lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        memory_total=_known(lambda: int(memory.total)),
        memory_used=_known(lambda: int(memory.used)),
        mig=mig,
        mig_slices=_known(lambda: _mig_slices(nvml, handle)) if mig else None,
        compute_mode=_known(lambda: _COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(handle)]),
        ecc=_known(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
    )


def _mig_slices(nvml: Any, handle: Any) -> int:
    """How many slices this container can open; NVML lists the places, most of them empty."""
    found = 0
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(Exception):
            nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            found += 1
    return found


def _known(read: Callable[[], T]) -> T | None:
    """The value, or None: one field that a GPU does not support must not hide the others."""
    try:
        return read()
    except Exception:
        return None


def _string(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cuda_version(number: int) -> str:
    """12040 -> "12.4"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _kind(error: Exception) -> str:
    value = getattr(error, "value", None)
    return _KINDS.get(value, "other") if isinstance(value, int) else "other"


def _text(error: Exception) -> str:
    return f"{error}".strip() or type(error).__name__
