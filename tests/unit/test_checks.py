"""Each check says the right thing about facts that are wrong in one way, and never raises about any."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import HEALTHY, NO_GPU, STACK, with_, with_directory, with_gpu, with_manifest

from healthcheck import catalogue, verify
from healthcheck.checks import registry, workspace
from healthcheck.checks.base import version
from healthcheck.facts.container import ContainerFacts, Directory, LimitsMet
from healthcheck.facts.driver import DriverTraces
from healthcheck.facts.gpu import Gpu, GpuFacts
from healthcheck.facts.snapshot import Facts
from healthcheck.facts.stack import Program, StackFacts
from healthcheck.manifest import Manifest, Reading
from healthcheck.result import Result, Status

CHECKS = {check.code: check for check in registry.CHECKS}
CPU = dataclasses.replace(NO_GPU, device="cpu")


def judged(code: str, facts: Facts) -> Result:
    return CHECKS[code](facts)


def stack_with(**changes: str | None) -> Facts:
    """The stack at other versions; None removes a distribution."""
    changed = {**STACK, **{k.replace("_", "-"): v for k, v in changes.items()}}
    return with_(HEALTHY, "stack", distributions={k: v for k, v in changed.items() if v is not None})


def test_codes_are_unique_and_belong_to_a_known_group() -> None:
    assert len(CHECKS) == len(registry.CHECKS)
    assert all(registry.group(code) in registry.GROUPS.values() for code in CHECKS)


def test_a_healthy_image_passes_everything() -> None:
    assert {r.code: r.status for r in registry.judge(HEALTHY)} == dict.fromkeys(CHECKS, Status.PASS)


def test_where_cpu_use_is_declared_nothing_fails_for_want_of_a_gpu() -> None:
    found = registry.judge(CPU)
    assert not [r for r in found if r.status not in (Status.PASS, Status.SKIP)]
    assert next(r for r in found if r.code == "DYN-GPU-001").status is Status.SKIP


def test_a_local_environment_without_manifest_has_nothing_to_fail() -> None:
    local = dataclasses.replace(
        CPU,
        manifest=Reading(),
        container=dataclasses.replace(CPU.container, directories=()),
        stack=StackFacts(python="p", python_exists=True, distributions={"torch": "2.8.0"}),
    )
    assert not [r for r in registry.judge(local) if r.status in (Status.FAIL, Status.WARN)]


@pytest.mark.parametrize(
    ("facts", "said", "remedy"),
    [
        (NO_GPU, "started without", "docker run --rm -it --gpus all"),
        (NO_GPU, "no device nodes", "podman run --rm -it --device nvidia.com/gpu=all"),
        (with_(NO_GPU, "driver", kernel_driver="550.90.07"), "host has driver 550.90.07", "--gpus all"),
        (
            with_(NO_GPU, "driver", nvidia_env={"NVIDIA_VISIBLE_DEVICES": "void"}),
            "hides every GPU",
            "DYNO_DEVICE=cpu",
        ),
        (with_(HEALTHY, "gpu", gpus=()), "shows this container no GPU", "--gpus all"),
        (
            with_(HEALTHY, "gpu", gpus=None, error="Unknown Error", error_kind="unknown"),
            "gone from this container",
            "recreate the container",
        ),
        (
            with_(HEALTHY, "gpu", gpus=None, error="mismatch", error_kind="version-mismatch"),
            "differ in version",
            "sudo reboot",
        ),
        (
            with_(NO_GPU, "gpu", error="Driver Not Loaded", error_kind="driver-not-loaded"),
            "not loaded",
            "modprobe nvidia",
        ),
        (with_(HEALTHY, "gpu", gpus=None, error="no answer", error_kind="timeout"), "hangs", "reboot"),
        (with_gpu(error="GPU is lost"), "not answering", "recreate the container"),
    ],
)
def test_no_gpu_is_unusable_and_its_cause_is_told_apart(facts: Facts, said: str, remedy: str) -> None:
    found = judged("DYN-GPU-001", facts)
    assert (found.status, found.unusable) == (Status.FAIL, True)
    assert said in found.summary
    assert remedy in found.remedy


def test_a_gpu_without_nvml_is_a_warning_about_the_missing_capability() -> None:
    facts = with_(HEALTHY, "gpu", gpus=None, error="Not Found", error_kind="library-not-found")
    found = judged("DYN-GPU-001", facts)
    assert found.status is Status.WARN
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in found.remedy


@pytest.mark.parametrize(
    ("driver", "status", "unusable"),
    [
        ("535.183.01", Status.FAIL, True),
        ("549.99", Status.FAIL, True),
        ("550.54.15", Status.WARN, False),
        ("550.90.07", Status.PASS, False),
        ("550.144.03", Status.PASS, False),
        ("570.172.08", Status.PASS, False),
        ("ERR!", Status.UNKNOWN, False),
    ],
)
def test_the_driver_gate(driver: str, status: Status, unusable: bool) -> None:
    found = judged("DYN-DRIVER-001", with_(HEALTHY, "gpu", driver=driver))
    assert (found.status, found.unusable) == (status, unusable)
    if status in (Status.FAIL, Status.WARN):
        assert driver in found.summary
        assert "550.90.07 or newer" in found.remedy


def test_the_kernel_modules_version_stands_in_for_a_missing_nvml() -> None:
    facts = with_(with_(HEALTHY, "gpu", driver=None), "driver", kernel_driver="535.54.03")
    assert judged("DYN-DRIVER-001", facts).unusable


@pytest.mark.parametrize("directory", ["/usr/local/cuda-12.4/compat", "/usr/local/cuda/lib64/stubs"])
def test_a_library_path_that_overrides_the_driver_is_named(directory: str) -> None:
    found = judged("DYN-DRIVER-002", with_(HEALTHY, "driver", ld_library_path=("/good", directory)))
    assert found.status is Status.WARN
    assert directory in found.summary
    assert found.remedy == "export LD_LIBRARY_PATH=/good"


def test_a_disabled_requirement_check_is_named() -> None:
    facts = with_(HEALTHY, "driver", nvidia_env={"NVIDIA_DISABLE_REQUIRE": "1"})
    assert judged("DYN-DRIVER-003", facts).status is Status.WARN


def test_the_four_cuda_versions_are_told_apart() -> None:
    found = judged("DYN-CUDA-001", HEALTHY)
    for text in ("driver 550.90.07", "driver's CUDA 12.4", "torch's CUDA 12.8", "toolkit's CUDA 12.4.131"):
        assert text in found.summary


@pytest.mark.parametrize("facts", [NO_GPU, CPU])
def test_nothing_of_a_driver_passes_where_there_is_none(facts: Facts) -> None:
    groups = ("GPU", "driver", "CUDA")
    found = [result for result in registry.judge(facts) if registry.group(result.code) in groups]
    assert len(found) == 9
    assert [result.code for result in found if result.status is Status.PASS] == []


def test_a_renamed_heading_lets_no_old_driver_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "GROUPS", {subject: f"all about {subject}" for subject in registry.GROUPS})
    old = with_(HEALTHY, "gpu", driver="470.256.02")
    assert verify.usable_device(old, registry.judge(old)) == ("cpu", "see DYN-DRIVER-001")
    assert [c for c in catalogue.of_bench(()) if c.startswith("DYN-DRIVER")] != []


def test_an_unknown_version_is_not_filled_in_from_another() -> None:
    facts = with_(with_(NO_GPU, "gpu", driver=None), "stack", torch_cuda=None)
    assert (
        "driver unknown, driver's CUDA unknown, torch's CUDA unknown" in judged("DYN-CUDA-001", facts).summary
    )


@pytest.mark.parametrize(
    ("driver_cuda", "status"), [("11.8", Status.FAIL), ("12.0", Status.PASS), ("13.0", Status.PASS)]
)
def test_the_drivers_cuda_must_reach_torchs_major_version(driver_cuda: str, status: Status) -> None:
    assert judged("DYN-CUDA-001", with_(HEALTHY, "gpu", driver_cuda=driver_cuda)).status is status


def test_a_torch_without_cuda_beside_a_gpu_fails() -> None:
    found = judged("DYN-CUDA-001", with_(HEALTHY, "stack", torch_cuda="none"))
    assert found.status is Status.FAIL
    assert found.remedy == "pip install --force-reinstall --no-deps torch==2.8.0"


@pytest.mark.parametrize(
    ("archs", "capability", "remedy"),
    [
        (("8.9",), "8.9", None),
        (("8.0",), "8.6", None),
        (("8.0",), "8.9", None),
        (("8.9",), "8.6", 'make image GPU_ARCHS="8.6"'),
        (("8.9",), "9.0", 'make image GPU_ARCHS="9.0"'),
        (("8.9",), "12.0", "CUDA 12.8"),
        (("9.0",), "10.0", "570"),
        (("8.9",), "6.1", "older torch"),
    ],
)
def test_an_architecture_is_served_by_its_own_major_version_not_above(
    archs: tuple[str, ...], capability: str, remedy: str | None
) -> None:
    facts = with_gpu(capability=capability)
    facts = dataclasses.replace(facts, manifest=with_manifest(facts, gpu_archs=archs, pruned=True).manifest)
    found = judged("DYN-GPU-002", facts)
    assert found.status is (Status.PASS if remedy is None else Status.FAIL)
    assert (remedy or "") in found.remedy


@pytest.mark.parametrize(
    ("route", "capability", "status", "said"),
    [
        ("source", "8.6", Status.PASS, "built for 8.9"),
        ("source", "9.0", Status.WARN, "flash-attn was built for 8.9 and has no code for"),
        ("none", "9.0", Status.PASS, "built for 8.9"),
        ("source", "12.0", Status.FAIL, "has no code for"),
        ("none", "12.0", Status.FAIL, "has no code for"),
        ("none", "6.1", Status.FAIL, "has no code for"),
    ],
)
def test_with_the_wheels_whole_only_flash_attention_is_bound_to_the_architectures(
    route: str, capability: str, status: Status, said: str
) -> None:
    facts = with_manifest(with_gpu(capability=capability), flash_attn_route=route, pruned=False)
    found = judged("DYN-GPU-002", facts)
    assert (found.status, said in found.summary) == (status, True), found
    assert found.status is Status.PASS or found.remedy


@pytest.mark.parametrize(
    ("mode", "status"),
    [
        ("prohibited", Status.FAIL),
        ("exclusive-process", Status.WARN),
        ("default", Status.PASS),
        (None, Status.SKIP),
    ],
)
def test_compute_modes(mode: str | None, status: Status) -> None:
    assert judged("DYN-GPU-003", with_gpu(compute_mode=mode)).status is status


@pytest.mark.parametrize(
    ("slices", "status"), [(0, Status.FAIL), (1, Status.PASS), (2, Status.WARN), (None, Status.UNKNOWN)]
)
def test_mig_slices(slices: int | None, status: Status) -> None:
    assert judged("DYN-GPU-004", with_gpu(mig=True, mig_slices=slices)).status is status


@pytest.mark.parametrize(
    ("asked", "host", "status", "said"),
    [
        (None, "all", Status.PASS, "1 of 1 usable, CUDA_VISIBLE_DEVICES is not set"),
        ("0", "all", Status.PASS, "1 of 1 usable, as CUDA_VISIBLE_DEVICES says"),
        ("0,0", "all", Status.FAIL, "CUDA_VISIBLE_DEVICES='0,0' shows CUDA no GPU: it names GPU 0 twice."),
        (
            "3",
            "3",
            Status.FAIL,
            "CUDA_VISIBLE_DEVICES='3' shows CUDA no GPU: it names '3', and this container has GPU 0 alone. "
            "NVIDIA_VISIBLE_DEVICES takes the host's numbers; in the container they start at 0 again.",
        ),
        (
            "0,1",
            "all",
            Status.WARN,
            "CUDA_VISIBLE_DEVICES='0,1' shows CUDA only 1 GPU: "
            "it names '1', and this container has GPU 0 alone.",
        ),
        ("", "all", Status.FAIL, "CUDA_VISIBLE_DEVICES='' shows CUDA no GPU: that hides every GPU."),
    ],
)
def test_a_cuda_visible_devices_that_hides_gpus_is_named_with_the_cure(
    asked: str | None, host: str, status: Status, said: str
) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": host}
    found = judged("DYN-GPU-005", with_(HEALTHY, "driver", cuda_visible_devices=asked, nvidia_env=env))
    assert (found.status, found.summary) == (status, said)
    assert found.unusable == (status is Status.FAIL)
    assert found.remedy.startswith("unset CUDA_VISIBLE_DEVICES") == (status is not Status.PASS)


def test_a_broken_manifest_fails_and_says_where() -> None:
    facts = dataclasses.replace(
        HEALTHY, manifest=Reading(path="/opt/dyno/manifest.json", error="cannot be read: x")
    )
    found = judged("DYN-STACK-001", facts)
    assert found.status is Status.FAIL
    assert "/opt/dyno/manifest.json cannot be read" in found.summary


def test_numpy_removed_and_pydantic_downgraded_are_both_named() -> None:
    facts = stack_with(numpy=None, pydantic="1.10.0")
    complete, unchanged = judged("DYN-STACK-003", facts), judged("DYN-STACK-004", facts)
    assert complete.status is Status.FAIL
    assert "numpy 2.5.0 is missing" in complete.summary
    assert complete.remedy == "pip install --force-reinstall --no-deps numpy==2.5.0"
    assert unchanged.status is Status.WARN
    assert "pydantic is 1.10.0, built as 2.14.4" in unchanged.summary


@pytest.mark.parametrize("name", ["torch", "triton", "nvidia_cudnn_cu12", "flash_attn"])
def test_a_changed_version_of_what_was_compiled_together_fails(name: str) -> None:
    found = judged("DYN-STACK-003", stack_with(**{name: "0.0.1"}))
    assert found.status is Status.FAIL
    assert f"{name.replace('_', '-')} is 0.0.1" in found.summary


def test_a_local_version_is_compared_only_where_both_have_one() -> None:
    assert judged("DYN-STACK-003", stack_with(torch="2.8.0+cu128")).status is Status.PASS


def test_packages_that_the_user_added_are_fine() -> None:
    assert judged("DYN-STACK-003", stack_with(pandas="3.0")).status is Status.PASS
    assert judged("DYN-STACK-004", stack_with(pandas="3.0")).status is Status.PASS


def test_a_missing_interpreter_fails() -> None:
    assert judged("DYN-STACK-002", with_(HEALTHY, "stack", python_exists=False)).status is Status.FAIL


def test_two_copies_of_cv2_fail_and_the_headless_one_is_kept() -> None:
    facts = with_(HEALTHY, "stack", opencv_copies=("opencv-python", "opencv-python-headless"))
    found = judged("DYN-STACK-005", facts)
    assert found.status is Status.FAIL
    assert "pip uninstall -y opencv-python &&" in found.remedy
    assert "opencv-python-headless==4.12.0" in found.remedy


def test_an_image_without_flash_attn_warns_and_says_how_to_get_it() -> None:
    facts = with_manifest(stack_with(flash_attn=None), flash_attn_route="none")
    found = judged("DYN-STACK-006", facts)
    assert found.status is Status.WARN
    assert "make image FLASH_ATTN=source" in found.remedy


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (Program("ffmpeg", "/usr/bin/ffmpeg", "6.0"), Status.PASS),
        (Program("ffmpeg", "/usr/bin/ffmpeg", "5.1.6"), Status.FAIL),
        (Program("ffmpeg", "/usr/bin/ffmpeg", None, "libGL.so.1: cannot open"), Status.FAIL),
        (Program("ffmpeg"), Status.FAIL),
    ],
)
def test_ffmpeg_must_run_and_be_6_or_newer(program: Program, status: Status) -> None:
    assert judged("DYN-STACK-007", with_(HEALTHY, "stack", programs=(program,))).status is status


def test_an_output_directory_of_another_user_is_unusable() -> None:
    found = judged("DYN-WORK-002", with_directory(HEALTHY, "output", writable=False))
    assert (found.status, found.unusable) == (Status.FAIL, True)


def test_an_output_directory_mounted_read_only_is_a_choice_and_warns() -> None:
    found = judged("DYN-WORK-002", with_directory(HEALTHY, "output", writable=False, read_only=True))
    assert found.status is Status.WARN


@pytest.mark.parametrize(
    ("path", "said"), [("/workspace/output", "/workspace/output is writable"), ("", " is writable")]
)
def test_a_writable_output_directory_is_said_in_words_whatever_its_path(path: str, said: str) -> None:
    found = judged("DYN-WORK-002", with_directory(HEALTHY, "output", path=path, writable=True))
    assert (found.status, found.summary) == (Status.PASS, said)


def test_a_full_output_directory_is_unusable_and_says_how_full() -> None:
    full = with_directory(HEALTHY, "output", writable=False, full=True, free_bytes=3 << 20)
    found = judged("DYN-WORK-002", full)
    assert (found.status, found.unusable) == (Status.FAIL, True)
    assert found.summary == "/workspace/output is full (3 MiB free): nothing can be saved there."
    assert found.remedy.startswith("docker run -v /path/with/space:/workspace/output")


@pytest.mark.parametrize(("code", "role"), [("DYN-WORK-003", "cache"), ("DYN-WORK-005", "tmp")])
def test_what_else_is_full_fails_as_full(code: str, role: str) -> None:
    found = judged(code, with_directory(HEALTHY, role, writable=False, full=True, free_bytes=0))
    assert found.status is Status.FAIL
    assert "is full (0 MiB free)" in found.summary


@pytest.mark.parametrize(
    ("home", "workspace_writable", "remedy"),
    [
        ("/home/me", True, "docker run -e HOME=/workspace ..."),
        ("/home/me", False, 'docker run -v "$PWD":/workspace/project ...'),
        ("/workspace", False, 'docker run -v "$PWD":/workspace/project ...'),
    ],
)
def test_a_home_that_cannot_be_written_gets_a_line_that_helps(
    home: str, workspace_writable: bool, remedy: str
) -> None:
    facts = with_directory(HEALTHY, "workspace", writable=workspace_writable)
    facts = with_directory(facts, "home", path=home, writable=False)
    found = judged("DYN-WORK-007", facts)
    assert found.status is Status.WARN
    assert found.remedy.startswith(remedy)


def test_below_a_workspace_of_another_user_no_directory_is_to_be_made() -> None:
    facts = with_directory(with_directory(HEALTHY, "models", exists=False), "workspace", writable=False)
    assert "mkdir" not in judged("DYN-WORK-001", facts).remedy


@pytest.mark.parametrize(
    ("code", "limit", "status"),
    [
        ("DYN-WORK-008", {"process_limit": 8}, Status.WARN),
        ("DYN-WORK-008", {"process_limit": 2048}, Status.PASS),
        ("DYN-WORK-008", {"process_limit": None}, Status.PASS),
        ("DYN-WORK-009", {"memory_limit": 400 << 20}, Status.WARN),
        ("DYN-WORK-009", {"memory_limit": 8 << 30}, Status.PASS),
        ("DYN-WORK-009", {"memory_limit": None}, Status.PASS),
    ],
)
def test_limits_of_the_container_that_are_too_low_warn(
    code: str, limit: dict[str, int | None], status: Status
) -> None:
    assert judged(code, with_(HEALTHY, "container", **limit)).status is status


@pytest.mark.parametrize(
    ("after", "limits", "remedy"),
    [
        (LimitsMet(0, 0), {}, ""),
        (LimitsMet(None, None), {}, ""),
        (
            LimitsMet(0, 1),
            {"memory_limit": 400 << 20},
            "--memory 8g ...  # the memory limit of 400 MiB was met",
        ),
        (LimitsMet(0, 1), {}, "--memory 8g ...  # the end of the host's memory was met"),
        (
            LimitsMet(2, 0),
            {"process_limit": 8},
            "--pids-limit -1 ...  # the limit of 8 processes and threads was met",
        ),
    ],
)
def test_the_limit_that_was_met_is_named(after: LimitsMet, limits: dict[str, int], remedy: str) -> None:
    found = workspace.shortage(LimitsMet(0, 0), after, ContainerFacts(**limits))
    assert found == (f"docker run {remedy}" if remedy else "")


def test_a_program_that_no_process_was_left_for_is_not_to_be_reinstalled() -> None:
    refused = Program("ffmpeg", "/usr/bin/ffmpeg", None, "[Errno 11] Resource temporarily unavailable")
    found = judged("DYN-STACK-007", with_(HEALTHY, "stack", programs=(refused,)))
    assert found.remedy == "docker run --pids-limit -1 ..."


def test_a_directory_hidden_by_a_mount_is_named() -> None:
    found = judged("DYN-WORK-001", with_directory(HEALTHY, "models", exists=False))
    assert found.remedy == "mkdir -p /workspace/models"


def test_a_cache_that_cannot_be_written_fails_and_is_named() -> None:
    found = judged("DYN-WORK-003", with_directory(HEALTHY, "huggingface cache", writable=False))
    assert found.status is Status.FAIL
    assert "/workspace/.cache/huggingface" in found.summary


def test_a_noexec_cache_is_named_with_the_word_that_cures_it() -> None:
    facts = HEALTHY
    for role in ("cache", "inductor cache", "triton cache"):
        facts = with_directory(facts, role, executable=False)
    found = judged("DYN-WORK-004", facts)
    assert found.status is Status.FAIL
    assert "/workspace/.cache," in found.summary
    assert found.remedy == "docker run --tmpfs /workspace/.cache:exec ..."


def test_a_noexec_tmp_only_warns_and_an_unwritable_one_fails() -> None:
    assert judged("DYN-WORK-005", with_directory(HEALTHY, "tmp", executable=False)).status is Status.WARN
    assert judged("DYN-WORK-005", with_directory(HEALTHY, "tmp", writable=False)).status is Status.FAIL


@pytest.mark.parametrize(
    ("shm", "status"),
    [(64 << 20, Status.WARN), (1 << 30, Status.PASS), (None, Status.UNKNOWN), (0, Status.WARN)],
)
def test_small_shared_memory_warns(shm: int | None, status: Status) -> None:
    found = judged("DYN-WORK-006", with_(HEALTHY, "container", shm_bytes=shm))
    assert found.status is status
    if status is Status.WARN:
        assert "--shm-size=8g" in found.remedy


def test_a_uid_without_a_name_fails_unless_user_is_set() -> None:
    nameless = with_(HEALTHY, "container", uid=4242, has_passwd_entry=False)
    assert judged("DYN-WORK-007", nameless).status is Status.PASS
    assert judged("DYN-WORK-007", with_(nameless, "container", user=None)).status is Status.FAIL


def test_versions_are_compared_as_numbers() -> None:
    assert (version("550.144.03") or ()) > (version("550.90.07") or ())
    assert version("[N/A]") is None
    assert version(None) is None


def test_a_check_that_breaks_becomes_unknown_and_hides_no_other() -> None:
    broken: Any = dataclasses.replace(HEALTHY, container=None)
    found = {r.code: r for r in registry.judge(broken)}
    assert found["DYN-WORK-006"].status is Status.UNKNOWN
    assert found["DYN-GPU-001"].status is Status.PASS


TEXT = st.text(max_size=12)
MAYBE = st.none() | TEXT
VERSIONS = st.none() | st.sampled_from(["550.90.07", "12.4", "", "[N/A]", "x.y", "1", "-1"]) | TEXT
NUMBERS = st.none() | st.integers()
NAMES = st.sampled_from([*STACK, "opencv-python", "pandas"]) | TEXT
PACKAGES = st.dictionaries(NAMES, VERSIONS.filter(lambda v: v is not None), max_size=4)
PATHS = st.lists(TEXT, max_size=3).map(tuple)
FLAG = st.none() | st.booleans()
ROLES = st.sampled_from([d.role for d in HEALTHY.container.directories])
ANY_FACTS = st.builds(
    Facts,
    device=st.sampled_from(["auto", "cuda", "cpu"]),
    gpu=st.builds(
        GpuFacts,
        driver=VERSIONS,
        driver_cuda=VERSIONS,
        gpus=st.none()
        | st.lists(
            st.builds(
                Gpu,
                index=st.integers(0, 8),
                name=MAYBE,
                capability=VERSIONS,
                memory_total=NUMBERS,
                mig=FLAG,
                mig_slices=NUMBERS,
                compute_mode=MAYBE,
                error=MAYBE,
            ),
            max_size=3,
        ).map(tuple),
        error=MAYBE,
        error_kind=MAYBE,
    ),
    driver=st.builds(
        DriverTraces,
        device_nodes=st.none() | PATHS,
        libcuda=st.none() | PATHS,
        kernel_driver=VERSIONS,
        ld_library_path=st.none() | PATHS,
        nvidia_env=st.dictionaries(
            st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DISABLE_REQUIRE"]), TEXT
        ),
        cuda_visible_devices=st.none() | st.sampled_from(["", "0", "0,0", "3", "MIG-1"]) | TEXT,
    ),
    container=st.builds(
        ContainerFacts,
        uid=NUMBERS,
        has_passwd_entry=FLAG,
        user=MAYBE,
        shm_bytes=NUMBERS,
        memory_limit=NUMBERS,
        process_limit=NUMBERS,
        directories=st.lists(
            st.builds(Directory, ROLES, TEXT, FLAG, FLAG, FLAG, FLAG, full=FLAG, free_bytes=NUMBERS),
            max_size=6,
        ).map(tuple),
    ),
    stack=st.builds(
        StackFacts,
        python=MAYBE,
        python_exists=FLAG,
        distributions=st.none() | PACKAGES,
        duplicates=PATHS,
        opencv_copies=PATHS,
        lost=st.dictionaries(TEXT, PATHS),
        torch_version=VERSIONS,
        torch_cuda=VERSIONS,
        programs=st.lists(
            st.builds(
                Program, st.sampled_from(["ffmpeg", "nvcc"]), path=MAYBE, version=VERSIONS, error=MAYBE
            ),
            max_size=2,
        ).map(tuple),
    ),
    manifest=st.builds(
        Reading,
        manifest=st.none()
        | st.builds(
            Manifest,
            build_id=TEXT,
            target=TEXT,
            python=TEXT,
            toolkit=TEXT,
            toolkit_installed=st.booleans(),
            driver_floor=TEXT,
            driver_tested=TEXT,
            gpu_archs=PATHS,
            flash_attn_route=TEXT,
            flash_attn_version=TEXT,
            stack=PACKAGES,
            constrained=PATHS,
            pruned=st.booleans(),
        ),
        error=MAYBE,
    ),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(ANY_FACTS)
def test_no_facts_make_a_check_raise_and_every_complaint_has_a_remedy(facts: Facts) -> None:
    for check in registry.CHECKS:
        found = check(facts)
        assert found.summary
        assert found.remedy or found.status in (Status.PASS, Status.SKIP)
