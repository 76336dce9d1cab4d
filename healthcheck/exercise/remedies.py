"""From the text of an error to the line that cures it. Only causes that have been seen are here."""

from __future__ import annotations

import importlib.metadata
import os
import re

_CACHE = "/workspace/.cache"


def _noexec(text: str) -> str:
    named = re.search(r"(/[^\s:'\"]+\.(?:so|o))\b", text)
    directory = _CACHE
    if named and not named.group(1).startswith(_CACHE + "/"):
        directory = os.path.dirname(named.group(1))  # noqa: PTH120 (a path inside a message, maybe not ours)
    return (
        f"Allow execution where compiled kernels are kept ({directory}): docker run --tmpfs {directory}:exec,"
        " or mount a named volume there."
    )


def _module(text: str) -> str:
    found = re.search(r"No module named '([\w.]+)'", text)
    return f"pip install {found.group(1).split('.')[0]}" if found else ""


_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"InvalidCxxCompiler|No working C\+\+ compiler|CppCompileError.*not found|'g\+\+'",
        "Install a C++ compiler, which torch.compile on the CPU needs: apt-get install g++",
    ),
    (r"Failed to find C compiler", "Install a C compiler, which Triton needs: apt-get install gcc"),
    (
        r"Python\.h: No such file",
        "Install the headers of the Python that runs the stack: apt-get install python3-dev",
    ),
    (
        r"libcuda\.so cannot found",
        "Start the container with the GPU (docker run --gpus all), then refresh the linker's cache: ldconfig",
    ),
    (
        r"no kernel image is available|no kernel image for",
        "This image holds no code for this GPU: rebuild it on this machine with make image, or name the GPU:"
        " make image GPU_ARCHS=<compute capability, such as 8.9>",
    ),
    (
        r"PTX was compiled with an unsupported toolchain|device kernel image is invalid",
        "The driver is older than the compiler of this code: update the NVIDIA driver to 570 or newer.",
    ),
    (
        r"driver version is insufficient|NVIDIA driver on your system is too old",
        "Update the host's NVIDIA driver (healthcheck verify says to which), or start the container with"
        " the GPU: docker run --gpus all ...",
    ),
    (
        r"Found no NVIDIA driver|no CUDA-capable device",
        "Start the container with the GPU: docker run --gpus all ...",
    ),
    (
        r"CUDA out of memory|CUDA error: out of memory",
        "Free GPU memory: nvidia-smi names the processes that hold it.",
    ),
    (
        r"libGL\.so|libxcb",
        "Keep only the headless OpenCV: pip uninstall -y opencv-python && "
        "pip install --force-reinstall --no-deps opencv-python-headless",
    ),
    (
        r"operator torchvision::nms does not exist",
        "torch and torchvision are not a pair; for torch 2.8.0: pip install torchvision==0.23.0",
    ),
    (
        r"cannot import name 'triton_key'",
        "triton and torch are not a pair; for torch 2.8.0: pip install triton==3.4.0",
    ),
    (
        r"libtorchcodec",
        "torchcodec does not fit torch or finds no FFmpeg libraries; for torch 2.8.0: pip install "
        "torchcodec==0.7.0, and check: ffmpeg -version",
    ),
    (
        r"numpy\.core\.multiarray failed|compiled using NumPy 1",
        "A package was built for NumPy 1: reinstall it, or pip install 'numpy<2'",
    ),
    (
        r"No usable temporary directory",
        "Give the container a writable temporary directory: docker run --tmpfs /tmp",
    ),
    (r"No space left on device", "Free disk space, or enlarge the tmpfs that the message names."),
    (
        r"Permission denied|Read-only file system",
        "Make the directory in the message writable: mount a volume there"
        f" (-v dyno-cache:{_CACHE}) or run with --user <your uid>:0",
    ),
)


def remedy_for(text: str, package: str) -> str:
    """The line that cures the error `text`; where the error is not a known one, the reinstall of `package`.

    `package` is a distribution name, or "" for a program.
    """
    if re.search(r"failed to map segment|\bnoexec\b", text):
        return _noexec(text)
    for pattern, remedy in _KNOWN:
        if re.search(pattern, text, re.DOTALL):
            return remedy
    return _module(text) or reinstall(package)


def reinstall(package: str) -> str:
    """The line that puts the installed version of `package` back as it was published."""
    if not package:
        return "Pull or build the image again: make image"
    try:
        version = f"=={importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return f"pip install --force-reinstall --no-deps {package}{version}"
