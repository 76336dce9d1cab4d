"""From the text of an error to the line that cures it: one table for the checks and for the exercises.

Only causes that have been seen are here. Standard library alone: the stack's Python reads it too.
"""

from __future__ import annotations

import importlib.metadata
import os
import re

_CACHE = "/workspace/.cache"
_UPGRADE = "Upgrade the host's NVIDIA driver to 550.90.07 or newer."
_UPGRADE_FOR_PTX = "Upgrade the host's NVIDIA driver to 570 or newer: this code was compiled by CUDA 12.8."
_OWN_LIBRARY = "unset LD_LIBRARY_PATH  # it puts another libcuda.so.1 before the host's"
OUT_OF_MEMORY = "nvidia-smi  # names the processes that hold the GPU's memory: end one, or choose another GPU"


def _error(number: int) -> str:
    """The pattern of a CUDA error by its number: only as one, for a text may count anything else by it."""
    return rf"\berrors?(?: code)?[\s:=(]*{number}\b(?!\.\d)"


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


# The first that matches counts. In lower case or not: drivers and libraries differ in it.
_KNOWN: tuple[tuple[str, str], ...] = (
    (rf"{_error(804)}|forward compatibility", f"{_UPGRADE}\n{_OWN_LIBRARY}"),
    (rf"{_error(803)}|unsupported display driver", f"{_OWN_LIBRARY}\n{_UPGRADE}"),
    (
        rf"{_error(802)}|system not yet initialized",
        "sudo systemctl start nvidia-fabricmanager  # on the host",
    ),
    (rf"{_error(34)}|stub library", _OWN_LIBRARY),
    (rf"{_error(222)}|unsupported toolchain|device kernel image is invalid", _UPGRADE_FOR_PTX),
    (rf"{_error(35)}|driver version is insufficient|driver on your system is too old", _UPGRADE),
    (
        rf"{_error(46)}|busy or unavailable|DevicesUnavailable",
        "sudo nvidia-smi -c DEFAULT  # on the host; or end what holds the GPU",
    ),
    (r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY", OUT_OF_MEMORY),
    (
        r"no kernel image is available|no kernel image for",
        "make image GPU_ARCHS=CAPABILITY  # this GPU's, such as 8.9; on its own machine make image finds it",
    ),
    (
        rf"{_error(100)}|no CUDA-capable device|No CUDA GPUs|no NVIDIA driver",
        "docker run --rm -it --gpus all dyno",
    ),
    (
        rf"{_error(999)}|CUDA unknown error|CUDA error: unknown error",
        "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm  # on the host; reboot it if that fails",
    ),
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


def known_remedy(text: str) -> str:
    """The line that cures the error `text`, "" where it is not a known one."""
    if re.search(r"failed to map segment|\bnoexec\b", text):
        return _noexec(text)
    for pattern, remedy in _KNOWN:
        if re.search(pattern, text, re.DOTALL | re.IGNORECASE):
            return remedy
    return _module(text)


def remedy_for(text: str, package: str) -> str:
    """The line that cures the error `text`; where the error is not a known one, the reinstall of `package`.

    `package` is a distribution name, or "" for a program.
    """
    return known_remedy(text) or reinstall(package)


def reinstall(package: str) -> str:
    """The line that puts the installed version of `package` back as it was published."""
    if not package:
        return "Pull or build the image again: make image"
    try:
        version = f"=={importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return f"pip install --force-reinstall --no-deps {package}{version}"
