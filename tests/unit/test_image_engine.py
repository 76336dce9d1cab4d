"""Finding, judging, installing and starting the engine, with no engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_fakes import ENGINE, FakeRun

from image import engine, install
from image.engine import Engine
from image.fault import Stop
from image.install import System
from image.shell import Done

WORKING = {
    ("docker", "version"): Done(
        0, json.dumps({"Client": {"Version": "28.2.2"}, "Server": {"Version": "26.1.5"}})
    ),
    ("docker", "buildx", "version"): Done(0, "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3\n"),
    ("docker", "compose", "version"): Done(0, "2.26.1-4\n"),
    ("docker", "context", "show"): Done(0, "default\n"),
    ("docker", "info"): Done(
        0, json.dumps({"DockerRootDir": "/data", "Runtimes": {"runc": {}, "nvidia": {}}})
    ),
    ("mmdebstrap",): Done(0),
}


def system(
    identity: str, version: str = "", *, root: bool = False, systemd: bool = False, ce: bool = False
) -> System:
    return System({"ID": identity, "VERSION_ID": version}, root=root, systemd=systemd, docker_ce=ce)


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("26.1.5+dfsg1", (26, 1, 5)),
        ("v0.13.1", (0, 13, 1)),
        ("2.26.1-4", (2, 26, 1)),
        ("550.90.07", (550, 90, 7)),
        ("", ()),
        ("[N/A]", ()),
    ],
)
def test_versions_are_compared_as_numbers(version: str, number: tuple[int, ...]) -> None:
    assert engine.number(version) == number


@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
    st.lists(st.integers(0, 999), min_size=1, max_size=4),
)
def test_of_two_versions_at_least_one_is_at_least_the_other(a: list[int], b: list[int]) -> None:
    first, second = ".".join(map(str, a)), ".".join(map(str, b))
    assert engine.at_least(first, second) or engine.at_least(second, first)
    assert engine.at_least(first, first)


def test_a_trailing_zero_makes_no_version_newer() -> None:
    assert engine.at_least("23", "23.0")
    assert not engine.at_least("0.9", "0.13")
    assert not engine.at_least("", "0")


def test_a_working_engine_is_found_with_all_it_says() -> None:
    found = engine.find(FakeRun(WORKING))
    assert found == Engine(
        client="28.2.2",
        server="26.1.5",
        buildx="0.13.1+ds1",
        compose="2.26.1-4",
        root_dir="/data",
        builder="default",
        runtimes=("nvidia", "runc"),
    )
    assert engine.problems(found) == ()


def test_no_docker_is_one_fault_with_the_one_command() -> None:
    (fault,) = engine.problems(engine.find(FakeRun({})), "sudo make engine")
    assert "no Docker" in fault.found
    assert fault.remedy == "sudo make engine"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"server": "20.10.24"}, "Docker engine 20.10.24"),
        ({"buildx": "0.10.5"}, "docker buildx 0.10.5"),
        ({"buildx": ""}, "no docker buildx plugin"),
        ({"compose": "2.10.0"}, "docker compose 2.10.0"),
        ({"compose": ""}, "no docker compose plugin"),
    ],
)
def test_each_missing_part_is_named(changes: dict[str, str], said: str) -> None:
    (fault,) = engine.problems(Engine(**{**vars(ENGINE), **changes}))
    assert said in fault.found


def test_a_sleeping_engine_and_a_forbidden_one_have_different_cures() -> None:
    asleep = Engine(client="26", buildx="0.13.1", compose="2.26", error="Cannot connect to the Docker daemon")
    forbidden = Engine(client="26", buildx="0.13.1", compose="2.26", error="permission denied while trying")
    assert "systemctl start docker" in engine.problems(asleep)[0].remedy
    assert "usermod" in engine.problems(forbidden)[0].remedy
    assert asleep.tools_complete


def test_podman_in_the_place_of_docker_is_not_taken_for_buildx() -> None:
    assert engine.parse_buildx("buildah 1.33.7 (image-spec 1.1.0)") == ""
    assert engine.parse_buildx("github.com/docker/buildx v0.14.0 171fcbe") == "0.14.0"


@pytest.mark.parametrize(
    ("host", "debian", "may"),
    [
        (system("debian", "12", root=True), "12", True),
        (system("debian", "13", root=True), "13", True),
        (system("debian", "13"), "13", False),
        (system("debian", "11", root=True), "", False),
        (system("debian", root=True), "", False),
        (system("ubuntu", "22.04", root=True), "", False),
        (system("debian", "13", root=True, ce=True), "13", False),
    ],
)
def test_it_installs_as_root_on_a_debian_it_knows_and_nowhere_else(
    host: System, debian: str, may: bool
) -> None:
    assert (host.debian, install.can_install(host)) == (debian, may)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (system("debian", "12"), "sudo make engine"),
        (system("debian", "12", root=True), "make engine"),
        (system("ubuntu", "24.04"), "docker-compose-v2"),
        (system("debian", "13", ce=True), "docker-compose-plugin"),
        (system("fedora", "41"), "https://docs.docker.com/engine/install/"),
    ],
)
def test_each_host_gets_the_command_that_serves_it(host: System, said: str) -> None:
    assert said in install.command(host)


def test_os_release_is_read_with_and_without_quotes() -> None:
    text = '# x\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n\n'
    fields = install.parse_os_release(text)
    assert (fields["ID"], fields["VERSION_ID"]) == ("debian", "12")


def test_debian_12_takes_the_four_packages_alone_from_the_next_release() -> None:
    files = install.apt_files("12", "http://mirror.example/debian")
    source, preferences = files.values()
    assert "URIs: http://mirror.example/debian" in source
    assert "Suites: trixie" in source
    general, special = preferences.split("\n\n")
    assert "Package: *" in general
    assert "Pin-Priority: 100" in general
    assert "Package: docker.io docker-cli docker-buildx docker-compose" in special
    assert "Pin-Priority: 990" in special


def test_debian_13_needs_no_pin() -> None:
    assert install.apt_files("13", "http://mirror.example/debian") == {}


def test_a_second_call_does_nothing_and_says_so() -> None:
    run, said = FakeRun(WORKING), []  # type: tuple[FakeRun, list[str]]
    install.ensure(run, said.append, "http://mirror.example/debian")
    assert said == ["engine: Docker 26.1.5, buildx 0.13.1+ds1, compose 2.26.1-4: nothing to do"]
    assert not [argv for argv in run.seen if argv[0] != "docker"]


def test_where_it_may_not_install_the_one_command_is_the_answer() -> None:
    with pytest.raises(Stop) as stop:
        install._unaided(engine.find(FakeRun({})), system("debian", "13"), print, FakeRun({}))
    assert stop.value.faults[0].remedy == "sudo make engine"


@pytest.fixture
def left_over(tmp_path: Path) -> Path:
    containerd = tmp_path / "docker/containerd"
    containerd.mkdir(parents=True)
    (tmp_path / "docker.pid").write_text("4242", encoding="utf-8")
    (containerd / "containerd.pid").write_text("4243", encoding="utf-8")
    (containerd / "containerd.sock").touch()
    return tmp_path


def _programs(table: dict[int, str]) -> Callable[[int], str]:
    return lambda pid: table.get(pid, "")


def _names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_what_a_dead_engine_left_is_stale(left_over: Path) -> None:
    found = install.stale(left_over, _programs({}))
    assert _names(found) == ["docker.pid", "containerd.pid", "containerd.sock"]


def test_a_number_that_another_program_has_taken_is_stale_too(left_over: Path) -> None:
    found = install.stale(left_over, _programs({4242: "bash", 4243: "sshd"}))
    assert _names(found) == ["docker.pid", "containerd.pid", "containerd.sock"]


def test_what_a_living_engine_uses_is_left_alone(left_over: Path) -> None:
    assert install.stale(left_over, _programs({4242: "dockerd", 4243: "containerd"})) == []


def test_a_containerd_that_outlived_its_engine_is_left_for_the_next_one(left_over: Path) -> None:
    assert _names(install.stale(left_over, _programs({4243: "containerd"}))) == ["docker.pid"]


def test_an_unreadable_pid_file_is_stale(left_over: Path) -> None:
    (left_over / "docker.pid").write_text("", encoding="utf-8")
    assert "docker.pid" in _names(install.stale(left_over, _programs({4243: "containerd"})))
