"""The plan: routes, names, numbers, and every fault at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_fakes import DEBIAN, FILES, PINS, host

from image import explain, plan, wheel
from image.arguments import Arguments
from image.engine import Engine
from image.fault import Exit, Fault
from image.host import Host, Wheelhouse
from image.install import System
from image.plan import Pins, Plan
from image.stack import STACK

RIGHT = "flash_attn-2.8.2-cp313-cp313-linux_x86_64.whl"


def made(target: str = "runtime", on: Host | None = None, **arguments: str) -> Plan:
    result = plan.make(target, Arguments(**arguments), PINS, on or host())
    assert isinstance(result, Plan), result
    return result


def faults(on: Host | None = None, target: str = "runtime", **arguments: str) -> tuple[Fault, ...]:
    result = plan.make(target, Arguments(**arguments), PINS, on or host())
    assert isinstance(result, tuple), "there is a plan where a fault was expected"
    return result


def house(*files: str, **code: Any) -> Wheelhouse:
    wheels = [wheel.parse(file, **code) for file in files]
    return Wheelhouse("/wheels", True, tuple(w for w in wheels if w))


def test_a_machine_without_gpu_builds_for_the_default_architecture() -> None:
    assert made().gpu_archs == (STACK.default_arch,)
    assert "no GPU" in made().archs_from


def test_the_host_gpus_decide_the_architectures() -> None:
    assert made(on=host(gpu_archs=("9.0", "8.6"))).gpu_archs == ("8.6", "9.0")


def test_a_host_gpu_that_is_not_served_is_said_and_not_built_for() -> None:
    result = made(on=host(gpu_archs=("12.0",)))
    assert result.gpu_archs == (STACK.default_arch,)
    assert any("12.0" in note for note in result.notes)


@given(
    st.lists(st.sampled_from(STACK.archs), min_size=1, max_size=8),
    st.sampled_from([" ", ",", ";", ", ", " ; "]),
)
def test_any_separator_order_and_repetition_gives_the_same_architectures(
    names: list[str], separator: str
) -> None:
    assert made(gpu_archs=separator.join(names)).gpu_archs == tuple(sorted(set(names)))


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ("10.0", "CUDA 12.8 and driver 570"),
        ("12.0", "CUDA 12.8 and driver 570"),
        ("7.5", "Ampere"),
        ("6.1", "Ampere"),
        ("8.7", "x86-64"),
        ("sm_89", " ".join(STACK.archs)),
        ("99", " ".join(STACK.archs)),
        ("8.9+PTX", " ".join(STACK.archs)),
    ],
)
def test_an_architecture_that_cannot_be_served_is_a_fault_that_says_why(arch: str, said: str) -> None:
    (fault,) = faults(gpu_archs=f"8.9 {arch}")
    assert arch in fault.found
    assert said in fault.needed
    assert fault.exit is Exit.USAGE


@given(st.integers(1, 256), st.floats(0, 4096))
def test_jobs_never_exceed_cores_or_memory_and_are_never_none(cores: int, memory: float) -> None:
    jobs, _, wrong = plan.choose_jobs("", cores, memory)
    assert not wrong
    assert 1 <= jobs <= cores
    assert jobs == 1 or jobs * plan.GB_A_JOB <= memory


@pytest.mark.parametrize(("cores", "memory", "jobs"), [(2, 23, 2), (16, 64, 9), (16, 128, 16), (8, 4, 1)])
def test_jobs_follow_the_scarcer_of_cores_and_memory(cores: int, memory: float, jobs: int) -> None:
    assert plan.choose_jobs("", cores, memory)[0] == jobs


def test_max_jobs_is_taken_as_it_is_given() -> None:
    assert made(max_jobs="3").max_jobs == 3


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "٣x"])
def test_max_jobs_must_be_a_positive_number(value: str) -> None:
    assert "MAX_JOBS" in faults(max_jobs=value)[0].found


def test_the_estimate_agrees_with_what_was_measured() -> None:
    assert 12 <= plan.compile_minutes(["8.9"], 16) <= 20
    assert 110 <= plan.compile_minutes(["8.9"], 2) <= 130


def test_all_of_8_x_is_one_compilation_and_hopper_is_a_second() -> None:
    one = plan.compile_minutes(["8.9"], 4)
    assert plan.compile_minutes(["8.0", "8.6", "8.9"], 4) == one
    assert plan.compile_minutes(["8.9", "9.0"], 4) == pytest.approx(2 * one, abs=1)


def test_auto_compiles_on_a_large_machine_and_does_without_on_a_small_one() -> None:
    assert made().flash_attn.route == "source"
    assert made(on=host(cores=2)).flash_attn.route == "none"


@given(st.integers(1, 64), st.floats(1, 512))
def test_auto_compiles_exactly_below_the_limit(cores: int, memory: float) -> None:
    result = made(on=host(cores=cores, memory_available_gb=memory))
    assert (result.flash_attn.route == "source") == (result.flash_attn.minutes < plan.SOURCE_LIMIT)


def test_doing_without_is_never_silent() -> None:
    result = made(on=host(cores=2))
    assert result.tags[0].endswith("-noflash")
    assert any("WITHOUT flash-attn" in note for note in result.notes)
    assert "FLASH_ATTN=source" in explain.plan(result, host(cores=2))


@pytest.mark.parametrize(
    ("latest", "asked", "told"),
    [("wheelhouse", {}, True), ("none", {}, False), ("", {}, False), ("source", {"tag": "mine"}, False)],
)
def test_moving_latest_to_an_image_without_flash_attn_is_said_before(
    latest: str, asked: dict[str, str], told: bool
) -> None:
    on = host(cores=2, latest_flash_attn=latest)
    result = made(on=on, **asked)
    note = f"dyno:latest names an image with flash-attn ({latest}) and will name this one, which has none;"
    assert result.flash_attn.route == "none"
    assert (note in " ".join(explain.plan(result, on).split())) == told


def test_latest_keeps_its_name_where_flash_attn_stays() -> None:
    assert not [n for n in made(on=host(latest_flash_attn="source")).notes if "dyno:latest" in n]


def test_auto_takes_a_matching_wheel() -> None:
    result = made(on=host(cores=2, wheelhouse=house(RIGHT, cubins=("8.0",))))
    assert (result.flash_attn.route, result.flash_attn.wheel, result.wheelhouse) == (
        "wheelhouse",
        RIGHT,
        "/wheels",
    )


@pytest.mark.parametrize("route", ["auto", "wheelhouse"])
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("flash_attn-2.8.2-cp312-cp312-linux_x86_64.whl", "needed cp313"),
        ("flash_attn-2.8.3-cp313-cp313-linux_x86_64.whl", "needed 2.8.2"),
        ("flash_attn-2.8.2-cp313-cp313-linux_aarch64.whl", "needed linux_x86_64"),
        ("flash_attn-2.8.2-cp313-cp313-win_amd64.whl", "needed linux_x86_64"),
        ("flash_attn-2.8.2+cu12torch2.7cxx11abiTRUE-cp313-cp313-linux_x86_64.whl", "needed torch 2.8"),
        ("flash_attn-2.8.2+cu12torch2.8cxx11abiFALSE-cp313-cp313-linux_x86_64.whl", "cxx11abiTRUE"),
        ("flash_attn-2.8.2+cu11torch2.8-cp313-cp313-linux_x86_64.whl", "needed CUDA 12"),
    ],
)
def test_a_wheel_for_something_else_is_a_fault_and_never_ignored(route: str, file: str, said: str) -> None:
    (fault,) = faults(on=host(wheelhouse=house(file)), flash_attn=route)
    assert file in fault.found
    assert said in fault.found


def test_a_wheel_without_code_for_the_wanted_gpu_is_a_fault() -> None:
    on = host(wheelhouse=house(RIGHT, cubins=("8.0",)))
    (fault,) = faults(on=on, gpu_archs="8.9 9.0")
    assert "device code for 8.0, needed 9.0" in fault.found


def test_the_matching_wheel_is_found_among_others() -> None:
    others = house("flash_attn-2.8.2-cp312-cp312-linux_x86_64.whl", RIGHT)
    assert made(on=host(wheelhouse=others)).flash_attn.wheel == RIGHT


@pytest.mark.parametrize("there", [Wheelhouse("/wheels", False), Wheelhouse("/wheels", True)])
@pytest.mark.parametrize("route", ["auto", "wheelhouse"])
def test_a_missing_or_empty_wheelhouse_is_a_fault(there: Wheelhouse, route: str) -> None:
    assert "/wheels" in faults(on=host(wheelhouse=there), flash_attn=route)[0].found


def test_the_wheelhouse_route_needs_a_directory() -> None:
    assert "without WHEELHOUSE" in faults(flash_attn="wheelhouse")[0].found


def test_a_wheelhouse_that_another_choice_leaves_out_is_said() -> None:
    result = made(on=host(wheelhouse=house(RIGHT)), flash_attn="none")
    assert result.wheelhouse == ""
    assert any("WHEELHOUSE is not used" in note for note in result.notes)


@pytest.mark.parametrize(
    ("changes", "arguments", "said", "code"),
    [
        ({"disk_free_gb": 20.0}, {}, "20 GB free", Exit.UNUSABLE),
        ({"arch": "aarch64"}, {}, "aarch64", Exit.UNUSABLE),
        (
            {"ca_bundle": "/no.pem", "ca_bundle_fault": "is no file"},
            {"ca_bundle": "/no.pem"},
            "CA_BUNDLE=/no.pem is no file",
            Exit.USAGE,
        ),
        ({}, {"flash_attn": "maybe"}, "FLASH_ATTN=maybe", Exit.USAGE),
        ({}, {"base": ""}, "BASE is empty", Exit.USAGE),
        ({}, {"debian_mirror": ""}, "DEBIAN_MIRROR is empty", Exit.USAGE),
        ({}, {"pypi_index": ""}, "PYPI_INDEX is empty", Exit.USAGE),
        ({}, {"tag": "a b"}, "TAG='a b'", Exit.USAGE),
    ],
)
def test_each_fault_names_what_was_found(
    changes: dict[str, Any], arguments: dict[str, str], said: str, code: Exit
) -> None:
    (fault,) = faults(on=host(**changes), **arguments)
    assert said in fault.found
    assert fault.needed
    assert fault.remedy
    assert fault.exit is code


def test_an_unknown_target_is_a_fault() -> None:
    assert "target full" in faults(target="full")[0].found


def test_all_faults_come_at_once() -> None:
    found = faults(
        on=host(arch="aarch64", disk_free_gb=1.0), gpu_archs="12.0 x", max_jobs="0", flash_attn="?"
    )
    assert len(found) == 6


def test_an_earlier_image_lowers_the_disk_that_is_needed() -> None:
    assert made(on=host(disk_free_gb=20.0, images=("dyno:latest",))).disk_gb == plan.DISK_AGAIN_GB


def test_the_image_is_named_after_torch_and_toolkit() -> None:
    assert made().tags == ("dyno:torch2.8-cuda12.4", "dyno:latest")
    assert made("devel").tags == ("dyno:torch2.8-cuda12.4-devel",)
    assert made("devel", flash_attn="none").tags == ("dyno:torch2.8-cuda12.4-noflash-devel",)


@pytest.mark.parametrize(
    ("asked", "target", "name"),
    [
        ("mine", "runtime", "dyno:mine"),
        ("mine", "devel", "dyno:mine-devel"),
        ("me/dyno:1", "runtime", "me/dyno:1"),
        ("host:5000/me/dyno", "runtime", "host:5000/me/dyno:latest"),
        ("host:5000/me/dyno", "devel", "host:5000/me/dyno:latest-devel"),
    ],
)
def test_a_name_that_was_asked_for_is_the_only_one(asked: str, target: str, name: str) -> None:
    assert made(target, tag=asked).tags == (name,)


def test_a_wheel_or_runtime_build_downloads_no_toolkit() -> None:
    assert made(flash_attn="none").download_gb < made(flash_attn="source").download_gb
    assert made("devel", flash_attn="none").download_gb == made(flash_attn="source").download_gb


def test_the_build_id_depends_on_locks_pins_archs_and_route_alone() -> None:
    build = made().build_id
    assert len(build) == 16
    assert made(on=host(cores=12), max_jobs="12").build_id == build
    assert made(gpu_archs="9.0").build_id != build
    assert made(flash_attn="none").build_id != build
    changed = Pins(STACK, {**FILES, "tools.lock": FILES["tools.lock"] + "\n# changed\n"})
    other = plan.make("runtime", Arguments(), changed, host())
    assert isinstance(other, Plan)
    assert other.build_id != build


def test_the_plan_is_json() -> None:
    read = json.loads(json.dumps(made().as_json()))
    assert read["versions"]["torch"] == "2.8.0"
    assert read["versions"]["cuda-toolkit"] == STACK.cuda_toolkit
    assert read["flash_attn"]["route"] == "source"


@pytest.mark.parametrize("target", plan.TARGETS)
@pytest.mark.parametrize("route", ["source", "none"])
def test_the_words_say_every_version_and_fit_a_screen(target: str, route: str) -> None:
    words = explain.plan(made(target, flash_attn=route), host())
    flat = " ".join(words.split())
    assert all(f"{name} {version}" in flat for name, version in made().versions.items())
    assert len(words.splitlines()) <= 24
    assert max(map(len, words.splitlines())) <= 100


def test_the_words_say_how_an_engine_is_got() -> None:
    none = Engine(error="docker: not found")
    user = System(DEBIAN.os_release, root=False, systemd=True, docker_ce=False)
    assert "sudo make engine" in " ".join(explain.plan(made(), host(engine=none, system=user)).split())
    assert "`build` installs" in " ".join(explain.plan(made(), host(engine=none)).split())


@pytest.mark.parametrize("variable", ["debian_mirror", "pypi_index"])
@pytest.mark.parametrize("url", ["nonsense", "http://x y", "ftp://x/y", "https://", "http://[x"])
def test_an_address_that_is_none_is_a_fault(variable: str, url: str) -> None:
    (fault,) = faults(**{variable: url})
    assert variable.upper() in fault.found and "http://" in fault.needed


@pytest.mark.parametrize("variable", ["debian_mirror", "pypi_index"])
def test_a_password_in_an_address_is_refused_and_not_repeated(variable: str) -> None:
    (fault,) = faults(**{variable: "https://me:s3cret@host/simple"})
    assert "password" in fault.found and "s3cret" not in str(fault)


@pytest.mark.parametrize("tag", ["UPPER:x", "foo:bar:baz", "x@sha256:00", "a" * 200, "dyno:", "-x", "a b"])
def test_a_name_that_the_engine_would_refuse_is_a_fault(tag: str) -> None:
    (fault,) = faults(tag=tag)
    assert fault.found.startswith("TAG=")


@pytest.mark.parametrize("tag", ["mine", "Mine_1", "me/dyno:v1", "host.example:5000/me/dyno:V1", "dyno:x"])
def test_a_name_that_the_engine_takes_is_taken(tag: str) -> None:
    assert made(tag=tag).tags
