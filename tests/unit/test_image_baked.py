"""What runs during the build: manifest, constraints, the stand-in distribution, flash-attn's archs."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from image import manifest, nvcc_archs, shim

STACK = {
    "torch": "2.8.0",
    "triton": "3.4.0",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "nvidia-ml-py": "13.6",
    "numpy": "2.5.5",
}


def test_the_constraint_covers_what_is_compiled_together_and_nothing_else() -> None:
    lines = [line for line in manifest.constraints(STACK).splitlines() if not line.startswith("#")]
    assert lines == ["torch==2.8.0", "triton==3.4.0", "nvidia-cudnn-cu12==9.10.2.21"]


def test_the_manifest_says_what_the_build_was_given() -> None:
    arguments = {
        "SUITE": "trixie",
        "CUDA_TOOLKIT": "12.4.131",
        "DRIVER_FLOOR": "550",
        "DRIVER_TESTED": "550.90.07",
        "GPU_ARCHS": "8.6 8.9",
        "FLASH_ATTN": "none",
        "BUILD_ID": "abc",
    }
    told = manifest.manifest(arguments, "devel", stack=STACK, tools={}, packages={"ffmpeg": "7"}, locks={})
    assert told["gpu_archs"] == ["8.6", "8.9"]
    assert told["cuda"] == {"toolkit": "12.4.131", "toolkit_installed": True}
    assert told["flash_attn"] == {"route": "none", "version": None}
    assert told["build_id"] == "abc"


def test_a_build_without_an_id_gets_one_from_what_it_was_made_of() -> None:
    arguments = {"GPU_ARCHS": "8.9", "FLASH_ATTN": "none"}
    made = manifest.build_id(arguments, {"stack": "1"})
    assert len(made) == 16
    assert made == manifest.build_id(arguments, {"stack": "1"})
    assert made != manifest.build_id(arguments, {"stack": "2"})


def test_the_stand_in_is_a_distribution_of_the_first_name_that_requires_the_second(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.13" / "site-packages"
    real = site / "opencv_python_headless-4.14.0.94.dist-info"
    real.mkdir(parents=True)
    (real / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: opencv-python-headless\nVersion: 4.14.0.94\n"
    )
    shim.main(str(tmp_path), "opencv-python", "opencv-python-headless")
    (made,) = (d for d in distributions(path=[str(site)]) if d.metadata["Name"] == "opencv-python")
    assert made.version == "4.14.0.94"
    assert made.requires == ["opencv-python-headless==4.14.0.94"]
    assert (made.read_text("INSTALLER") or "").strip() == "dyno"
    assert all(str(file).startswith("opencv_python-") for file in made.files or [])


def test_nothing_stands_for_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.13" / "site-packages").mkdir(parents=True)
    with pytest.raises(SystemExit, match="opencv-python-headless is not in"):
        shim.main(str(tmp_path), "opencv-python", "opencv-python-headless")


@pytest.mark.parametrize(
    "archs, wanted", [("8.9", "80"), ("8.0 8.6 8.9", "80"), ("8.9 9.0", "80;90"), ("9.0", "90")]
)
def test_flash_attention_is_compiled_once_for_each_generation(archs: str, wanted: str) -> None:
    assert nvcc_archs.flash_attn_archs(archs) == wanted


def test_what_runs_during_the_build_needs_nothing_but_python() -> None:
    for module in (manifest, shim, nvcc_archs):
        text = Path(str(module.__file__)).read_text()
        imported = {
            line.split()[1].split(".")[0]
            for line in text.splitlines()
            if line.startswith(("import ", "from "))
        }
        assert imported <= set(sys.stdlib_module_names)
