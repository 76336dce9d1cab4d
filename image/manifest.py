"""Write what was installed into the image, at build time: the manifest and the user's constraints.

The self-test reads the manifest to know what *should* be there. `constraints.txt` keeps a later `pip install`
or `uv pip install` from replacing the packages that only work together.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path

SCHEMA = 1
HOME = Path("/opt/dyno")
# Compiled against one another: replacing one breaks the rest, often without a word from the installer.
FAMILY = re.compile(
    r"torch|torchvision|torchaudio|torchao|torchcodec|triton|xformers|flash-attn|nvidia-[a-z0-9-]+-cu12"
)


def normal(name: str) -> str:
    """Return a distribution's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(paths: Iterable[Path]) -> dict[str, str]:
    """Return name -> version of every distribution under the site-packages directories `paths`."""
    found = distributions(path=[str(p) for p in paths])
    return dict(sorted((normal(d.metadata["Name"]), d.version) for d in found))


def constraints(stack: Mapping[str, str]) -> str:
    """Return the constraints file for `stack`: the family at exactly the installed versions."""
    pins = [f"{name}=={version}\n" for name, version in stack.items() if FAMILY.fullmatch(name)]
    return (
        "# Read by pip (PIP_CONSTRAINT) and uv (UV_CONSTRAINT): these are compiled against one another.\n"
        "# To install others all the same: PIP_CONSTRAINT= UV_CONSTRAINT= pip install ...\n" + "".join(pins)
    )


def manifest(
    arguments: Mapping[str, str],
    target: str,
    *,
    stack: Mapping[str, str],
    tools: Mapping[str, str],
    packages: Mapping[str, str],
    locks: Mapping[str, str],
) -> dict[str, object]:
    """Return the manifest; `arguments` are the Dockerfile's build arguments."""
    return {
        "schema": SCHEMA,
        "build_id": arguments.get("BUILD_ID") or build_id(arguments, locks),
        "target": target,
        "debian": {
            "suite": arguments["SUITE"],
            "base": arguments.get("BASE_IDENTITY", ""),
            "packages": packages,
        },
        "python": platform.python_version(),
        "cuda": {"toolkit": arguments["CUDA_TOOLKIT"], "toolkit_installed": target == "devel"},
        "driver": {"floor": arguments["DRIVER_FLOOR"], "tested": arguments["DRIVER_TESTED"]},
        "gpu_archs": arguments["GPU_ARCHS"].split(),
        "pruned": False,  # the wheels' device code is left whole; flash-attn alone is compiled for gpu_archs
        "flash_attn": {"route": arguments["FLASH_ATTN"], "version": stack.get("flash-attn")},
        "constrained": [name for name in stack if FAMILY.fullmatch(name)],
        "locks": locks,
        "stack": stack,
        "tools": tools,
    }


def build_id(arguments: Mapping[str, str], locks: Mapping[str, str]) -> str:
    """Return an identity for a build that was not started by `make image`, from the same things."""
    told = [arguments["GPU_ARCHS"], arguments["FLASH_ATTN"], *locks.values()]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def debian_packages() -> dict[str, str]:
    query = ["dpkg-query", "--show", "--showformat=${binary:Package} ${Version}\n"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(sorted(line.split() for line in lines))


def main(target: str) -> None:
    python = ".".join(platform.python_version_tuple()[:2])
    wanted = os.environ["PYTHON_VERSION"]
    if python != wanted:
        sys.exit(f"the base has Python {python}, this stack is locked for {wanted}: use BASE=bootstrap")
    stack = installed(Path("/opt/venv").glob("lib/python3*/site-packages"))
    tools = installed((HOME / "venv").glob("lib/python3*/site-packages"))
    locks = {
        name: hashlib.sha256(Path(f"/requirements/{name}.lock").read_bytes()).hexdigest()
        for name in ("stack", "tools", "flash-attn")
    }
    told = manifest(os.environ, target, stack=stack, tools=tools, packages=debian_packages(), locks=locks)
    (HOME / "manifest.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    (HOME / "constraints.txt").write_text(constraints(stack))


if __name__ == "__main__":
    main(sys.argv[1])
