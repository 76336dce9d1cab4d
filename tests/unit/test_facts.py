"""Facts are read without importing the stack, no unreadable field hides another, and unknown is None."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from samples import HEALTHY, NO_GPU

from healthcheck import manifest
from healthcheck.drive import programs
from healthcheck.facts import container, driver, gpu, stack
from healthcheck.facts.collect import collect
from healthcheck.facts.snapshot import Facts
from image import manifest as baked


class NvmlError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class FakeNvml:
    """A driver with `count` GPUs; `broken` maps the name of a call to the exception that it raises."""

    def __init__(self, count: int = 1, broken: dict[str, Exception] | None = None) -> None:
        self.count, self.broken, self.open = count, broken or {}, 0
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetCount": count,
            "nvmlSystemGetDriverVersion": b"550.90.07",
            "nvmlSystemGetCudaDriverVersion": 12040,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090 D",
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 << 30, used=1 << 30),
            "nvmlDeviceGetCudaComputeCapability": [8, 9],
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetComputeMode": 3,
            "nvmlDeviceGetEccMode": [1, 1],
        }

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            if name in self.broken:
                raise self.broken[name]
            if name == "nvmlInit":
                self.open += 1
            if name == "nvmlShutdown":
                self.open -= 1
            return self.answers.get(name)

        return call


NOT_SUPPORTED = NvmlError(3, "Not Supported")


def test_a_gpu_is_described_through_nvml_and_nvml_is_closed_again() -> None:
    nvml = FakeNvml()
    found = gpu.collect(nvml)
    assert (found.driver, found.driver_cuda, found.error) == ("550.90.07", "12.4", None)
    assert found.gpus == (
        gpu.Gpu(
            index=0,
            name="NVIDIA GeForce RTX 4090 D",
            uuid="GPU-1",
            capability="8.9",
            memory_total=24 << 30,
            memory_used=1 << 30,
            mig=False,
            compute_mode="exclusive-process",
            ecc=True,
        ),
    )
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetCudaComputeCapability", "capability"),
        ("nvmlDeviceGetMemoryInfo", "memory_total"),
        ("nvmlDeviceGetMigMode", "mig"),
        ("nvmlDeviceGetComputeMode", "compute_mode"),
        ("nvmlDeviceGetEccMode", "ecc"),
    ],
)
def test_a_field_that_is_not_supported_is_unknown_and_hides_no_other(call: str, field: str) -> None:
    (found,) = gpu.collect(FakeNvml(broken={call: NOT_SUPPORTED})).gpus or ()
    assert getattr(found, field) is None
    others = {"name", "uuid", "capability", "ecc"} - {field}
    assert all(getattr(found, other) is not None for other in others)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (9, "driver-not-loaded"),
        (12, "library-not-found"),
        (18, "version-mismatch"),
        (999, "unknown"),
        (7, "other"),
    ],
)
def test_an_nvml_that_does_not_start_is_recorded_as_text_and_kind(value: int, kind: str) -> None:
    found = gpu.collect(FakeNvml(broken={"nvmlInit": NvmlError(value, "words of the driver")}))
    assert (found.error, found.error_kind, found.gpus) == ("words of the driver", kind, None)


def test_a_gpu_that_is_lost_is_listed_with_its_error() -> None:
    found = gpu.collect(FakeNvml(2, {"nvmlDeviceGetHandleByIndex": NvmlError(15, "GPU is lost")}))
    assert [g.error for g in found.gpus or ()] == ["GPU is lost", "GPU is lost"]
    assert not found.visible


def test_no_gpu_is_an_empty_tuple_and_not_unknown() -> None:
    assert gpu.collect(FakeNvml(0)).gpus == ()


def test_a_driver_that_hangs_is_left_behind() -> None:
    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:
            time.sleep(30)

    found = gpu.collect(Hanging(), time_limit=0.05)
    assert (found.error_kind, found.gpus) == ("timeout", None)


def test_mig_slices_are_counted() -> None:
    nvml = FakeNvml()
    nvml.answers |= {"nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetMaxMigDeviceCount": 7}
    (found,) = gpu.collect(nvml).gpus or ()
    assert (found.mig, found.mig_slices) == (True, 7)


@pytest.mark.parametrize(
    ("visible", "index"),
    [
        (None, 0),
        ("1", 1),
        ("1,0", 1),
        (" 1 , 0", 1),
        ("5", None),
        ("-1", None),
        ("", None),
        ("NoDevFiles", None),
        ("\u00b2", None),  # a digit to str.isdigit, no number to int
        ("GPU-b", 1),
        ("GPU-b2,GPU-a1", 1),
        ("GPU-", None),
        ("GPU-c", None),
        ("MIG-b2", None),
    ],
)
def test_cudas_first_device_is_found_among_nvmls(visible: str | None, index: int | None) -> None:
    assert gpu.first_visible(visible, ("GPU-a1", "GPU-b2")) == index


@pytest.mark.parametrize(
    ("visible", "indices", "fault"),
    [
        (None, (0, 1), ""),
        ("1,0", (1, 0), ""),
        ("0,-1", (0,), ""),
        ("0,-1,1", (0,), "'-1' in it hides '1'"),
        ("0,,1", (0,), "'' in it hides '1'"),
        ("01", (1,), ""),
        ("1" * 5000, (), f"it names '{'1' * 5000}', and this container has GPUs 0 to 1"),
        ("GPU-", (), "it names 'GPU-', with which the UUIDs of several GPUs begin"),
        ("0,", (0,), ""),
        ("0,0", (), "it names GPU 0 twice"),
        ("GPU-b2,1", (), "it names GPU 1 twice"),
        ("3", (), "it names '3', and this container has GPUs 0 to 1"),
        ("1,3,0", (1,), "it names '3', and this container has GPUs 0 to 1"),
        ("", (), "that hides every GPU"),
        ("-1", (), "that hides every GPU"),
        ("MIG-1/2", None, ""),
    ],
)
def test_what_cuda_visible_devices_selects_and_why_not_all(
    visible: str | None, indices: tuple[int, ...] | None, fault: str
) -> None:
    assert gpu.selected(visible, ("GPU-a1", "GPU-b2")) == gpu.Selection(indices, fault)


def test_without_a_gpu_none_is_visible_and_one_that_does_not_answer_is_not_matched() -> None:
    assert gpu.first_visible(None, ()) is None
    assert gpu.first_visible("GPU-b", (None, "GPU-b2")) == 1


def test_driver_traces_are_found_below_the_root(tmp_path: Path) -> None:
    for name in ("dev/nvidia0", "dev/nvidiactl", "a/libcuda.so.1", "usr/lib64/libcuda.so.1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\nGCC version: 12\n"
    )
    env = {"LD_LIBRARY_PATH": "/a:/b", "NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1", "X": "1"}
    found = driver.collect(tmp_path, env)
    assert found == driver.DriverTraces(
        device_nodes=("/dev/nvidia0", "/dev/nvidiactl"),
        libcuda=("/a/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
        kernel_driver="550.90.07",
        ld_library_path=("/a", "/b"),
        nvidia_env={"NVIDIA_VISIBLE_DEVICES": "all"},
        cuda_visible_devices="1",
    )


def test_the_version_of_the_open_kernel_module_is_read_too(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build\n")
    assert driver.collect(tmp_path, {}).kernel_driver == "570.172.08"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_cpu_limit_is_read_from_either_cgroup(
    tmp_path: Path, files: dict[str, str], limit: float | None
) -> None:
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert container.collect(tmp_path, {}).cpu_limit == limit


@pytest.mark.parametrize(
    ("files", "limit", "met"),
    [
        (
            {
                "pids.max": "64",
                "pids.events": "max 3",
                "memory.events": "low 0\noom 5\noom_kill 2\noom_group_kill 0",
            },
            64,
            container.LimitsMet(3, 2),
        ),
        (
            {
                "pids/pids.max": "8",
                "pids/pids.events": "max 0",
                "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
            },
            8,
            container.LimitsMet(0, 1),
        ),
        ({"pids.max": "max"}, None, container.LimitsMet(None, None)),
        ({}, None, container.LimitsMet(None, None)),
    ],
    ids=["v2", "v1", "no limit", "no cgroup"],
)
def test_the_limit_of_processes_and_what_was_met_are_read_from_either_cgroup(
    tmp_path: Path, files: dict[str, str], limit: int | None, met: container.LimitsMet
) -> None:
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert container.collect(tmp_path, {}).process_limit == limit
    assert container.limits_met(tmp_path) == met


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_full_directory_is_told_from_a_forbidden_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, full: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    found = container.collect(tmp_path, {}).directory("tmp")
    assert found and (found.writable, found.full) == (False, full)
    assert found.free_bytes == os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize


def test_a_limit_on_threads_hides_no_other_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = collect("cpu", root=tmp_path, env={"PATH": os.environ["PATH"]}, nvml=FakeNvml())
    assert found.gpu.error == "can't start new thread"
    assert [program.name for program in found.stack.programs] == ["ffmpeg", "git", "nvcc"]


def test_directories_tell_absent_from_unwritable(tmp_path: Path) -> None:
    (tmp_path / "workspace/output").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    found = container.collect(tmp_path, {"TRITON_CACHE_DIR": "/workspace/.cache/triton"})
    output, triton, data = (found.directory(r) for r in ("output", "triton cache", "data"))
    assert output and triton and data
    assert (output.exists, output.writable, output.executable) == (True, True, True)
    assert (triton.exists, triton.writable) == (False, True)
    assert data.exists is False
    assert not list((tmp_path / "workspace/output").iterdir())


@pytest.mark.skipif(os.getuid() == 0, reason="root writes anywhere")
def test_a_directory_without_write_permission_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir(mode=0o555)
    found = container.collect(tmp_path, {}).directory("workspace")
    assert found and found.writable is False


def test_proc_is_neither_writable_nor_mistaken_for_a_crash() -> None:
    found = container.collect(Path("/"), {"TRITON_CACHE_DIR": "/proc/nothing/here"}).directory("triton cache")
    assert found and (found.exists, found.writable) == (False, False)


def plant(site: Path, name: str, version: str, *record: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("\n".join(f"{file},," for file in record))


def stack_of(prefix: Path) -> stack.StackFacts:
    (prefix / "bin").mkdir(exist_ok=True)
    (prefix / "bin/python").touch()
    return stack.collect(str(prefix / "bin/python"), ())


def test_distributions_are_read_from_metadata_and_names_are_normalised(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.13/site-packages"
    plant(site, "Flash_Attn", "2.8.2")
    plant(site, "numpy", "2.5.0")
    found = stack_of(tmp_path)
    assert found.distributions == {"flash-attn": "2.8.2", "numpy": "2.5.0"}
    assert found.has("flash_attn") is True
    assert found.has("torch") is False


def test_the_remains_of_a_removed_package_are_no_package(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.13/site-packages"
    plant(site, "numpy", "2.5.0")
    (site / "torch-2.8.0.dist-info").mkdir()
    assert stack_of(tmp_path).distributions == {"numpy": "2.5.0"}


def test_two_metadata_directories_of_one_package_are_a_duplicate(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.13/site-packages"
    plant(site, "numpy", "2.5.0")
    plant(site, "numpy", "1.26.0")
    assert stack_of(tmp_path).duplicates == ("numpy",)


def test_a_metadata_only_opencv_is_no_copy_and_a_real_second_one_is(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.13/site-packages"
    plant(site, "opencv-python-headless", "4.12.0", "cv2/__init__.py", "cv2/cv2.abi3.so")
    plant(site, "opencv-python", "4.12.0", "opencv_python-4.12.0.dist-info/METADATA")
    assert stack_of(tmp_path).opencv_copies == ("opencv-python-headless",)
    plant(site, "opencv-contrib-python", "4.12.0", "cv2/__init__.py")
    assert stack_of(tmp_path).opencv_copies == ("opencv-contrib-python", "opencv-python-headless")


def test_a_package_whose_files_are_gone_is_lost_and_says_which(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.13/site-packages"
    plant(
        site,
        "numpy",
        "2.5.0",
        "numpy/__init__.py",
        "numpy/version.py",
        "numpy/core/a.py",
        "numpy/core/deep/b.py",
        "numpy/__pycache__/version.cpython-313.pyc",
        "numpy.libs/a.so",
        "../../../bin/f2py",
        "numpy-2.5.0.dist-info/RECORD",
    )
    plant(site, "six", "1.16.0", "six.py", "__pycache__/six.cpython-313.pyc", "six-1.16.0.dist-info/RECORD")
    (site / "numpy/core").mkdir(parents=True)
    (site / "numpy/__init__.py").touch()
    (site / "six.py").touch()
    found = stack_of(tmp_path)
    assert found.lost == {"numpy": ("numpy.libs",)}
    assert found.has("numpy") is True
    (site / "numpy/core").rmdir()
    assert stack_of(tmp_path).lost == {"numpy": ("numpy.libs", "numpy/core")}
    (site / "numpy/__init__.py").unlink()
    assert stack_of(tmp_path).lost == {"numpy": ("numpy.libs", "numpy/__init__.py", "numpy/core")}
    (site / "numpy").rmdir()
    assert stack_of(tmp_path).lost == {"numpy": ("numpy", "numpy.libs")}


@pytest.mark.parametrize(
    ("text", "version", "cuda"),
    [
        ("__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n", "2.8.0+cu128", "12.8"),
        ("__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\n", "2.8.0+cpu", "none"),
        ("__version__ = '2.8.0'\n", "2.8.0", None),
        ("this is not Python", None, None),
    ],
)
def test_torchs_cuda_is_read_without_running_torch(
    tmp_path: Path, text: str, version: str | None, cuda: str | None
) -> None:
    file = tmp_path / "lib/python3.13/site-packages/torch/version.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = stack_of(tmp_path)
    assert (found.torch_version, found.torch_cuda) == (version, cuda)


def test_an_interpreter_without_packages_has_unknown_distributions(tmp_path: Path) -> None:
    found = stack_of(tmp_path)
    assert found.distributions is None
    assert found.has("torch") is None


def script(directory: Path, name: str, body: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)


@pytest.mark.parametrize(
    ("body", "version", "error"),
    [
        ("echo 'ffmpeg version 7.1.2-0+deb13u1 Copyright'", "7.1.2", None),
        ("echo 'ffmpeg version n6.0 Copyright'", "6.0", None),
        ("echo 'libGL.so.1: cannot open shared object file' >&2; exit 127", None, "libGL.so.1: cannot open"),
        ("exit 3", None, "exit code 3"),
    ],
)
def test_ffmpeg_says_its_version_or_why_not(
    tmp_path: Path, body: str, version: str | None, error: str | None
) -> None:
    script(tmp_path / "path", "ffmpeg", body)
    found = next(p for p in programs.versions(f"{tmp_path / 'path'}:/bin") if p.name == "ffmpeg")
    assert found.version == version
    assert (found.error or "").startswith(error or "") and bool(found.error) == bool(error)


def test_a_missing_manifest_is_an_error_in_the_image_alone(tmp_path: Path) -> None:
    env = {"DYNO_MANIFEST": str(tmp_path / "absent.json")}
    errors = [
        collect("cpu", root=tmp_path, env=env, nvml=FakeNvml(), in_image=inside).manifest.error
        for inside in (True, False)
    ]
    assert errors == ["is missing", None]


def test_a_missing_manifest_is_no_error_and_a_broken_one_is(tmp_path: Path) -> None:
    assert manifest.read(tmp_path / "absent.json").error is None
    for text in ("{", "[]", '{"schema": 2}', '{"schema": 1, "build_id": 5}', "\x00"):
        file = tmp_path / "manifest.json"
        file.write_text(text)
        found = manifest.read(file)
        assert found.manifest is None
        assert found.error


def test_the_manifest_is_read_as_the_image_writes_it(tmp_path: Path) -> None:
    arguments = {
        "SUITE": "trixie",
        "CUDA_TOOLKIT": "12.4.131",
        "DRIVER_FLOOR": "550",
        "DRIVER_TESTED": "550.90.07",
        "GPU_ARCHS": "8.6 8.9",
        "FLASH_ATTN": "none",
    }
    stack = {"torch": "2.8.0", "numpy": "2.5.5"}
    file = tmp_path / "manifest.json"
    file.write_text(
        json.dumps(baked.manifest(arguments, "runtime", stack=stack, tools={}, packages={}, locks={}))
    )
    found = manifest.read(file).manifest
    assert found, manifest.read(file).error
    assert (found.flash_attn_route, found.gpu_archs) == ("none", ("8.6", "8.9"))
    assert (found.stack, found.constrained) == (stack, ("torch",))


def test_everything_is_gathered_here() -> None:
    found = collect("auto", python=sys.executable)
    assert found.stack.python == sys.executable
    assert found.container.uid == os.getuid()


FACTS = TypeAdapter(Facts)


@pytest.mark.parametrize("found", [HEALTHY, NO_GPU, Facts()])
def test_facts_survive_json(found: Facts) -> None:
    assert FACTS.validate_json(json.dumps(dataclasses.asdict(found))) == found


def any_value(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, every field of a dataclass drawn: hypothesis leaves those with a default alone."""
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(
            hint, **{field.name: any_value(hints[field.name]) for field in dataclasses.fields(hint)}
        )
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return st.lists(any_value(inner[0]), max_size=3).map(tuple)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(any_value, inner))
    if get_origin(hint) is Mapping:
        return st.dictionaries(any_value(inner[0]), any_value(inner[1]), max_size=3)
    return st.floats(allow_nan=False, allow_infinity=False) if hint is float else st.from_type(hint)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_value(Facts))
def test_any_facts_survive_json(found: Facts) -> None:
    assert FACTS.validate_json(json.dumps(dataclasses.asdict(found))) == found


def test_the_facts_that_are_drawn_differ_in_their_innermost_fields() -> None:
    found = find(
        any_value(Facts), lambda f: any(gpu.memory_used for gpu in f.gpu.gpus or ()) and bool(f.stack.lost)
    )
    assert found != Facts()
