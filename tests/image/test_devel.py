"""The devel image compiles CUDA; the runtime image does not."""

from __future__ import annotations

import os

import docker
import pytest

from .conftest import Runner

EXTENSION = """
from torch.utils.cpp_extension import load_inline
source = '''
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void twice(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
void run(torch::Tensor x) { twice<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), x.numel()); }
'''
module = load_inline("twice", cpp_sources="void run(torch::Tensor x);", cuda_sources=source, functions=["run"])
print(module.__file__)
"""


@pytest.fixture(scope="module")
def devel(engine: docker.DockerClient, image: str) -> str:
    name = os.environ.get("DYNO_DEVEL_IMAGE", "")
    if not name:
        pytest.skip("DYNO_DEVEL_IMAGE is not set: `make devel` builds it")
    engine.images.get(name)
    return name


def test_the_runtime_image_has_no_nvcc(run: Runner) -> None:
    assert run("sh", "-c", "command -v nvcc").code != 0


def test_nvcc_is_12_4_131(run: Runner, devel: str) -> None:
    assert "V12.4.131" in run("nvcc", "--version", image=devel).out


def test_a_cuda_extension_compiles_against_torch(run: Runner, devel: str) -> None:
    ran = run("python", "-c", EXTENSION, image=devel, environment={"TORCH_CUDA_ARCH_LIST": "8.9"})
    assert ran.code == 0 and ran.out.strip().endswith("twice.so"), ran


def test_ffmpeg_still_works_beside_the_toolkit(run: Runner, devel: str) -> None:
    encode = "ffmpeg -v error -f lavfi -i testsrc=d=1 -c:v libx264 /tmp/a.mp4 && ffprobe -v error -show_entries stream=nb_frames -of csv=p=0 /tmp/a.mp4"
    ran = run("sh", "-c", encode, image=devel)
    assert (ran.code, ran.out.strip()) == (0, "25"), ran


def test_the_toolkit_brings_no_driver_library(run: Runner, devel: str) -> None:
    driver = r"find / -xdev \( -name 'libcuda.so*' -o -name 'libnvidia-*.so*' \) -not -path '/proc/*' -not -path '*/stubs/*'"
    assert run("sh", "-c", f"{driver} 2>/dev/null", image=devel, user="0:0").out == ""


def test_stubs_are_there_to_link_with_and_nowhere_to_run_with(run: Runner, devel: str) -> None:
    link = "echo 'int cuInit(unsigned); int main() { return cuInit(0); }' > /tmp/a.c && gcc /tmp/a.c -o /tmp/a -L/usr/lib/x86_64-linux-gnu/stubs -lcuda"
    ran = run("sh", "-c", f"{link} && /sbin/ldconfig -p | grep -c stubs; /tmp/a", image=devel)
    assert ran.out == "0\n" and "libcuda.so.1: cannot open shared object file" in ran.err, ran


def test_it_verifies_itself(run: Runner, devel: str) -> None:
    ran = run("healthcheck", "verify", "--device", "cpu", image=devel)
    assert ran.code == 0, ran
