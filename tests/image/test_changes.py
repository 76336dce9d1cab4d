"""What users do to the stack: refused where it would break, named where it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import docker
import pytest

from .conftest import ROOT, Ran, Runner, results

VERIFY = "healthcheck verify --device cpu --json -"


def shell(run: Runner, script: str, **options: Any) -> Ran:
    return run("bash", "-euo", "pipefail", "-c", script, **options)


def found(ran: Ran) -> list[dict[str, Any]]:
    """The results that are neither pass nor skip."""
    return [r for r in results(ran).values() if r["status"] not in ("pass", "skip")]


def named(ran: Ran, *words: str) -> bool:
    """Whether one failed or warned result holds all of `words`."""
    return any(all(word in r["summary"] + r["remedy"] + r["title"] for word in words) for r in found(ran))


@pytest.mark.parametrize("installer", ["pip install", "uv pip install"])
def test_another_torch_is_refused(run: Runner, online: dict[str, Any], installer: str) -> None:
    ran = run(
        "sh",
        "-c",
        f"{installer} 'torch==2.7.1'; echo code $?; python -c 'import torch; print(torch.__version__)'",
        **online,
    )
    assert "code 0" not in ran.out and "2.8.0" in ran.out, ran
    said = (ran.out + ran.err).lower()
    assert "(constraint) torch==2.8.0" in said or "unsatisfiable" in said


@pytest.mark.parametrize("installer", ["pip install --quiet", "uv pip install --quiet"])
def test_a_package_that_wants_opencv_python_gets_the_headless_one(
    run: Runner, online: dict[str, Any], installer: str
) -> None:
    before = "python -c 'import cv2, torch; print(cv2.__version__, cv2.__file__, torch.__version__)'"
    package = (
        'mkdir /tmp/p && printf \'[project]\\nname="wants-cv"\\nversion="1"\\ndependencies=["opencv-python>=4.5"]\\n'
        "[tool.setuptools]\\npy-modules=[]\\n' > /tmp/p/pyproject.toml"
    )
    ran = shell(
        run,
        f"{before}; {package}; {installer} /tmp/p >&2; {before}; ls -d /opt/venv/lib/python3*/site-packages/opencv_python*.dist-info",
        **online,
    )
    first, second, *folders = ran.out.splitlines()
    assert ran.code == 0 and first == second, ran
    assert len(folders) == 2, folders  # the headless one and the stand-in: no second copy


def test_users_may_install_what_the_constraint_does_not_cover(run: Runner, online: dict[str, Any]) -> None:
    ran = shell(
        run,
        "pip install --quiet six && uv pip install --quiet tomli && python -c 'import six, tomli'",
        user="4242:0",
        **online,
    )
    assert ran.code == 0, ran


def test_a_broken_stack_does_not_break_the_tool_that_says_so(run: Runner, online: dict[str, Any]) -> None:
    break_it = (
        "pip uninstall --quiet --yes numpy; pip install --quiet --no-deps 'pydantic==2.11.0' 2>/dev/null"
    )
    ran = shell(run, f"{break_it}; {VERIFY}", **online)
    assert ran.code == 1, ran
    assert named(ran, "numpy") and named(ran, "pydantic", "2.11.0")
    assert "Traceback" not in ran.err


SITE = "/opt/venv/lib/python3.13/site-packages"


@pytest.mark.parametrize(
    "fault, words",
    [
        (f"mv {SITE}/einops-*.dist-info /tmp/ && rm -r {SITE}/einops", ("einops",)),
        (
            f"sed -i 's/^Version: .*/Version: 9.9/' {SITE}/torchvision-*.dist-info/METADATA",
            ("torchvision", "9.9"),
        ),
        (f"echo 'raise ImportError(\"planted\")' > {SITE}/safetensors/__init__.py", ("planted",)),
        (
            f"echo 'def nms(b, s, t): return s.new_zeros(1).long()' >> {SITE}/torchvision/ops/__init__.py",
            ("nms",),
        ),
        (f"echo 'import os; os.abort()' > {SITE}/soundfile.py", ("SIGABRT",)),
        (
            "mkdir /tmp/bin && printf '#!/bin/sh\\nexit 3\\n' > /tmp/bin/ffmpeg && chmod +x /tmp/bin/ffmpeg && export PATH=/tmp/bin:$PATH",
            ("ffmpeg",),
        ),
        (
            f"mkdir {SITE}/opencv_python-4.1.dist-info && cd {SITE}/opencv_python-4.1.dist-info"
            " && printf 'Name: opencv-python\\nVersion: 4.1\\n' > METADATA && echo pip > INSTALLER && echo cv2/__init__.py,, > RECORD"
            f" && rm -r {SITE}/opencv_python-4.14*",
            ("opencv-python",),
        ),
        ("mv /usr/bin/g++ /usr/bin/gone", ("torch.compile",)),
        (f"mv {SITE}/xformers /tmp/", ("xformers", "is gone")),
        (
            f"rm -r {SITE}/xformers/ops",
            ("xformers has lost xformers/ops", "--force-reinstall --no-deps xformers=="),
        ),
        (f"rm -r {SITE}/nvidia/cudnn", ("nvidia-cudnn-cu12 has lost nvidia/cudnn",)),
        (f"rm -r {SITE}/pytest", ("pytest has lost pytest",)),
        ("rm /opt/dyno/manifest.json", ("manifest", "is missing")),
    ],
    ids=[
        "missing library",
        "wrong version",
        "import error",
        "wrong result",
        "crash",
        "broken ffmpeg",
        "two opencvs",
        "no compiler",
        "library without its files",
        "library without a part",
        "CUDA library without its files",
        "package that no exercise needs",
        "no manifest",
    ],
)
def test_a_planted_fault_is_reported(run: Runner, fault: str, words: tuple[str, ...]) -> None:
    ran = shell(run, f"{fault}; {VERIFY}", user="0:0")
    assert ran.code == 1, ran
    assert named(ran, *words), json.dumps(found(ran), indent=1)
    assert all(r["remedy"] for r in found(ran)), "every finding has a remedy"
    assert "Traceback (most recent call last)" not in ran.err


def test_what_falls_with_a_part_of_the_stack_has_the_cure_of_that_part(run: Runner) -> None:
    ran = shell(run, f"rm -r {SITE}/nvidia/cudnn; {VERIFY}", user="0:0")
    failed = [r for r in found(ran) if r["status"] == "fail"]
    assert len(failed) > 5
    assert {r["remedy"].rpartition("==")[0] for r in failed} == {
        "pip install --force-reinstall --no-deps nvidia-cudnn-cu12"
    }


def test_a_cuda_that_does_not_start_is_one_finding_with_its_own_remedy(run: Runner) -> None:
    """A stand-in for the driver's library, beside device nodes, answers every call with error 804."""
    source = ROOT / "tests" / "image" / "fake_libcuda.c"
    library = "gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o /tmp/libcuda.so.1 /fake.c"
    ran = shell(
        run,
        f"{library}; export LD_LIBRARY_PATH=/tmp FAKE_CUDA_RC=804; healthcheck verify --json -",
        volumes={str(source): {"bind": "/fake.c", "mode": "ro"}},
        devices=["/dev/null:/dev/nvidia0", "/dev/null:/dev/nvidiactl"],
    )
    assert ran.code == 3, ran
    failed = [r for r in found(ran) if r["status"] == "fail"]
    assert [r["code"] for r in failed] == ["DYN-CUDA-002"], failed
    assert "Error 804" in failed[0]["summary"] and "Upgrade the host's NVIDIA driver" in failed[0]["remedy"]
    assert "Traceback" not in ran.err


def test_a_broken_manifest_is_named(run: Runner) -> None:
    ran = shell(run, f"echo '{{' > /opt/dyno/manifest.json; {VERIFY}", user="0:0")
    assert ran.code == 1 and named(ran, "manifest"), ran


def test_a_derived_image_keeps_constraint_user_entrypoint_and_a_green_verify(
    engine: docker.DockerClient, image: str, run: Runner, tmp_path: Path
) -> None:
    wheel = "pip install --no-index --no-build-isolation /tmp/added"
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "pyproject.toml").write_text(
        '[project]\nname="added"\nversion="1"\n[tool.setuptools]\npy-modules=["added"]\n'
    )
    (tmp_path / "added" / "added.py").write_text("answer = 42\n")
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\nCOPY --chown=1000:0 added /tmp/added\nRUN {wheel}\n")
    derived, _ = engine.images.build(path=str(tmp_path), tag="dyno-test-derived", rm=True)
    try:
        config = derived.attrs["Config"]
        assert config["User"] == "1000:0" and "/usr/local/bin/dyno-entrypoint" in config["Entrypoint"]
        assert any(line.startswith("PIP_CONSTRAINT=/opt/dyno/") for line in config["Env"])
        assert (
            run("python", "-c", "import added; print(added.answer)", image="dyno-test-derived").out == "42\n"
        )
        verified = run("healthcheck", "verify", "--device", "cpu", image="dyno-test-derived")
        assert verified.code == 0, verified
    finally:
        engine.images.remove(derived.id, force=True)


def test_the_repository_holds_no_carriage_returns() -> None:
    scripts = [p for p in (ROOT / "image" / "rootfs").rglob("*") if p.is_file() and not p.is_symlink()]
    assert scripts and not [p for p in [*scripts, ROOT / "image" / "step"] if b"\r" in p.read_bytes()]
