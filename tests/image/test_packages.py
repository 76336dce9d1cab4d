"""Every package of the lock is there, at its version, and is quiet."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .conftest import ROOT, Runner

# Each module in a process of its own, as a user would import it: what one prints, another's import must not hide.
IMPORT_ALL = """
import json, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions

NEEDS_TORCH_FIRST = {"flash_attn_2_cuda"}  # a bare extension: it finds torch's libraries only once torch has loaded them

def modules(distribution):
    tops = set()
    for file in distribution.files or ():
        parts = file.parts
        if parts[-1].endswith((".py", ".so")) and not parts[0].endswith((".dist-info", ".data")) and parts[0] != "..":
            tops.add(parts[0].split(".")[0] if len(parts) == 1 else parts[0])
    return sorted(t for t in tops if t.isidentifier() and not t.startswith("_"))

def load(module):
    before = "import torch; " if module in NEEDS_TORCH_FIRST else ""
    done = subprocess.run([sys.executable, "-c", f"{before}import {module}"], capture_output=True, text=True)
    return module, done.returncode, done.stdout + done.stderr

wanted = {m for d in distributions() for m in modules(d)} - {"nvidia"}
with ThreadPoolExecutor(2) as pool:
    print(json.dumps(list(pool.map(load, sorted(wanted)))))
"""


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M))


def test_the_stack_holds_exactly_the_lock(run: Runner, manifest: dict[str, Any]) -> None:
    listing = json.loads(run("pip", "list", "--format", "json", "--disable-pip-version-check").out)
    installed = {re.sub(r"[-_.]+", "-", p["name"]).lower(): p["version"] for p in listing}
    wanted = locked("stack")
    wanted["opencv-python"] = wanted["opencv-python-headless"]  # the stand-in
    if manifest["flash_attn"]["route"] != "none":
        wanted |= locked("flash-attn")
    assert {name: version.partition("+")[0] for name, version in installed.items()} == wanted


def test_every_module_imports_and_prints_nothing(run: Runner) -> None:
    loaded = json.loads(run("python", "-c", IMPORT_ALL).out)
    names = {module for module, _, _ in loaded}
    assert {
        "torch",
        "torchvision",
        "torchaudio",
        "xformers",
        "transformers",
        "diffusers",
        "bitsandbytes",
        "cv2",
    } <= names
    assert [(module, text) for module, code, text in loaded if code or text] == []


def test_pip_finds_no_broken_requirement(run: Runner) -> None:
    ran = run("pip", "check", "--disable-pip-version-check")
    assert ran.code == 0, ran


def test_torch_is_built_for_the_cuda_that_the_lock_brings(run: Runner) -> None:
    ask = "import torch; print(torch.__version__, torch.version.cuda, torch._C._cuda_getArchFlags())"
    version, cuda, *archs = run("python", "-c", ask).out.split()
    assert version.startswith(locked("stack")["torch"])
    assert locked("stack")["nvidia-cuda-runtime-cu12"].startswith(cuda + ".")
    assert {"sm_80", "sm_86", "sm_90"} <= set(archs)


def test_xformers_offers_our_flash_attention(run: Runner, manifest: dict[str, Any]) -> None:
    if manifest["flash_attn"]["route"] == "none":
        pytest.skip("this image was built without flash-attn (FLASH_ATTN=none)")
    info = run("python", "-m", "xformers.info").out
    version = locked("flash-attn")["flash-attn"]
    assert re.search(rf"memory_efficient_attention\.fa2F@{re.escape(version)}\S*:\s+available", info), info


def test_the_recipes_are_importable_in_the_users_python(run: Runner) -> None:
    assert run("python", "-c", "import healthcheck.recipes").code == 0


def test_dynos_tools_are_not_in_the_users_python(run: Runner) -> None:
    assert run("python", "-c", "import sys; sys.exit(any('/opt/dyno/venv' in p for p in sys.path))").code == 0
