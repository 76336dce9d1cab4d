"""The base image: which, how and why."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from image_fakes import FakeRun

from image import base
from image.base import OFFICIAL
from image.fault import Stop
from image.shell import Done
from image.stack import STACK

NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
KEPT = f"dyno-base:{STACK.suite}-20260101"


@pytest.mark.parametrize(
    ("asked", "present", "action", "reference"),
    [
        ("auto", (), "try-pull", OFFICIAL),
        ("auto", (OFFICIAL, KEPT), "use", OFFICIAL),
        ("auto", (KEPT,), "use", KEPT),
        ("bootstrap", (OFFICIAL,), "bootstrap", ""),
        ("bootstrap", (OFFICIAL, KEPT), "use", KEPT),
        ("mine:1", (), "try-pull", "mine:1"),
        ("mine:1", ("mine:1",), "use", "mine:1"),
    ],
)
def test_the_base_follows_from_what_is_asked_and_what_is_there(
    asked: str, present: tuple[str, ...], action: str, reference: str
) -> None:
    choice = base.choose(asked, present)
    assert (choice.action, choice.reference) == (action, reference)
    assert choice.reason


def test_the_newest_of_the_kept_bases_is_used_and_refresh_makes_another() -> None:
    newer = f"dyno-base:{STACK.suite}-20260115"
    assert base.choose("bootstrap", (newer, KEPT, "dyno-base:other-1")).reference == newer
    assert base.choose("bootstrap", (newer,), refresh=True).action == "bootstrap"


def test_a_mirror_brings_its_updates_and_its_security_archive() -> None:
    assert base.sources("http://m.example/debian/", "trixie") == [
        "deb http://m.example/debian trixie main",
        "deb http://m.example/debian trixie-updates main",
        "deb http://m.example/debian-security trixie-security main",
    ]
    assert len(base.sources("http://m.example/other", "trixie")) == 2


def test_a_bootstrapped_base_is_identified_by_mirror_and_content() -> None:
    facts = {
        "Id": "sha256:1",
        "Created": "2026-01-30T00:00:00.123Z",
        "RootFS": {"Layers": ["sha256:aa"]},
        "Config": {"Labels": {"dyno.base.mirror": "http://m.example/debian"}},
    }
    found = base.describe(KEPT, "why", json.dumps(facts), NOW)
    assert found.identity == f"{STACK.suite} bootstrapped from http://m.example/debian, layer sha256:aa"
    assert "days old" not in found.note


def test_a_pulled_base_is_identified_by_its_digest_and_an_old_one_is_called_old() -> None:
    facts = {
        "Created": "2025-06-01T00:00:00Z",
        "RepoDigests": ["debian@sha256:bb"],
        "Config": {"Labels": None},
    }
    found = base.describe(OFFICIAL, "why", json.dumps(facts), NOW)
    assert found.identity == "debian@sha256:bb"
    assert "244 days old" in found.note


def test_a_base_that_was_named_and_cannot_be_had_stops_the_build() -> None:
    run = FakeRun(
        {("docker", "image", "ls"): Done(0), ("docker", "pull"): Done(1, stderr="manifest unknown")}
    )
    with pytest.raises(Stop, match="BASE=mine:1: manifest unknown"):
        base.ensure("mine:1", run=run, say=print, mirror="http://m", epoch=1)


@pytest.mark.parametrize(
    ("release", "found"),
    [
        ('PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nVERSION_CODENAME=noble\n', "Ubuntu 24.04 LTS"),
        ('PRETTY_NAME="Debian 12"\nID=debian\nVERSION_CODENAME=bookworm\n', "Debian 12"),
        ("", "without /etc/os-release"),
    ],
)
def test_a_base_that_is_another_system_stops_before_the_build(release: str, found: str) -> None:
    answers = {("docker", "image", "ls"): Done(0, "mine:1\n"), ("docker", "run"): Done(0, release)}
    with pytest.raises(Stop, match=f"BASE=mine:1 is {found}; needed: Debian trixie"):
        base.ensure("mine:1", run=FakeRun(answers), say=print, mirror="http://m", epoch=1)


def test_a_base_of_the_right_suite_is_taken() -> None:
    answers = {
        ("docker", "image", "ls"): Done(0, "mine:1\n"),
        ("docker", "run"): Done(0, "ID=debian\nVERSION_CODENAME=trixie\n"),
        ("docker", "image", "inspect"): Done(0, json.dumps({"Created": ""})),
    }
    made = base.ensure("mine:1", run=FakeRun(answers), say=print, mirror="http://m", epoch=1)
    assert made.reference == "mine:1"


def test_auto_uses_the_official_image_where_it_can_be_pulled() -> None:
    inspected = json.dumps({"RepoDigests": ["debian@sha256:bb"], "Created": ""})
    answers = {
        ("docker", "image", "ls"): Done(0),
        ("docker", "pull"): Done(0),
        ("docker", "image", "inspect"): Done(0, inspected),
    }
    said: list[str] = []
    found = base.ensure("auto", run=FakeRun(answers), say=said.append, mirror="http://m", epoch=1)
    assert found.reference == OFFICIAL
    assert OFFICIAL in said[-1]


def test_the_cause_of_a_failed_bootstrap_is_what_apt_said() -> None:
    text = "I: running apt-get update\nErr:1 http://m trixie\nE: Failed to fetch\nE: mmdebstrap failed\n"
    assert base._cause(text) == "Err:1 http://m trixie"
