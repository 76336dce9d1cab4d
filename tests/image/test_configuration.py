"""The image as it is, before anything runs in it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import ROOT, Runner


def test_it_runs_as_a_user_who_is_not_root_in_group_0(run: Runner) -> None:
    assert run("sh", "-c", "id -u; id -g; id -un").out.split() == ["1000", "0", "dyno"]


def test_the_nvidia_runtime_is_asked_for_compute_utility_and_video_on_driver_550(
    config: dict[str, Any],
) -> None:
    environment = dict(line.split("=", 1) for line in config["Env"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert set(environment["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility", "video"}
    assert environment["NVIDIA_REQUIRE_DRIVER"] == "driver>=550"
    assert "NVIDIA_REQUIRE_CUDA" not in environment, (
        "the runtime would refuse an R550 driver for torch's CUDA 12.8"
    )


def test_no_secret_and_no_proxy_stays_in_the_environment(config: dict[str, Any]) -> None:
    names = {line.split("=", 1)[0].lower() for line in config["Env"]}
    assert not {name for name in names if "proxy" in name or "token" in name or "cert" in name}


def test_labels_tell_what_the_image_is(config: dict[str, Any], manifest: dict[str, Any]) -> None:
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"].startswith("Dyno")
    assert labels["dyno.gpu-archs"].split() == manifest["gpu_archs"]
    assert labels["dyno.flash-attn"] == manifest["flash_attn"]["route"]
    assert labels["dyno.build-id"] == manifest["build_id"]
    assert re.fullmatch(r"[0-9a-f]{64}", labels["dyno.lock"])


def test_liveness_is_the_probe_and_waits_for_the_self_test(config: dict[str, Any]) -> None:
    environment = dict(line.split("=", 1) for line in config["Env"])
    assert config["Healthcheck"]["Test"][-1] == "healthcheck.probe"
    assert config["Healthcheck"]["StartPeriod"] >= int(environment["SELFTEST_TIMEOUT"]) * 1e9


@pytest.mark.parametrize(
    "folder", ["/workspace", "/workspace/models", "/workspace/output", "/workspace/.cache", "/data"]
)
@pytest.mark.parametrize("user", ["1000:0", "4242:0", "4242:4242"])
def test_the_work_directories_are_writable_for(run: Runner, folder: str, user: str) -> None:
    ran = run("sh", "-c", f"touch {folder}/probe && rm {folder}/probe", user=user)
    assert ran.code == 0, ran


def test_no_driver_library_no_compat_and_no_stubs_are_baked_in(run: Runner) -> None:
    names = r"-name libcuda.so* -o -name libnvidia-* -o -name libcudadebugger* -o -name libnvcuvid* -o -name cuda-compat*"
    ran = run("sh", "-c", f"find / -xdev \\( {names} \\) -not -path '/proc/*' 2>/dev/null", user="0:0")
    assert ran.out == ""
    assert "stubs" not in run("sh", "-c", "echo $LD_LIBRARY_PATH; cat /etc/ld.so.conf.d/*").out


@pytest.mark.parametrize(
    "program", ["git", "curl", "less", "ffmpeg", "gcc", "g++", "uv", "pip", "pytest", "nvitop"]
)
def test_the_program_is_there(run: Runner, program: str) -> None:
    assert run(program, "--version" if program != "ffmpeg" else "-version").code == 0


def test_ffmpeg_is_6_or_newer_and_knows_the_gpus_codecs(run: Runner) -> None:
    version = re.search(r"ffmpeg version (\d+)", run("ffmpeg", "-version").out)
    assert version and int(version[1]) >= 6
    assert {"h264_nvenc", "hevc_nvenc", "libx264", "aac"} <= set(
        run("ffmpeg", "-hide_banner", "-encoders").out.split()
    )


def test_the_locale_is_utf8(run: Runner) -> None:
    assert run("python", "-c", "print('\u00fcber \u6df1\u5ea6')").out.strip() == "\u00fcber \u6df1\u5ea6"
    assert "UTF-8" in run("locale", "charmap").out


def test_the_manifest_holds_what_the_locks_say(manifest: dict[str, Any]) -> None:
    for name in ("stack", "tools"):
        text = (ROOT / "requirements" / f"{name}.lock").read_text()
        locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M))
        assert locked.items() <= manifest[name].items()
    assert manifest["debian"]["packages"]["ffmpeg"].startswith("7:")


def test_dpkg_finds_nothing_half_installed(run: Runner) -> None:
    assert run("dpkg", "--audit").out == ""


def test_the_dockerfile_never_replaces_the_library_path() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"LD_LIBRARY_PATH=(?!\S*\$\{?LD_LIBRARY_PATH)", text)
