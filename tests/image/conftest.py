"""Containers of the real image. The engine's own SDK runs them; an absent image is an error, never a skip."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container
from docker.types import Mount

ROOT = Path(__file__).parents[2]
QUIET = {"SELFTEST": "off"}
# Where the host trusts a certificate authority of its own, so must an installer inside.
HOST_CA = os.environ.get("SSL_CERT_FILE", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.image)


@dataclass(frozen=True)
class Ran:
    """What a container left behind."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


Runner = Callable[..., Ran]


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    return docker.from_env(timeout=600)


@pytest.fixture(scope="session")
def image() -> str:
    return os.environ.get("DYNO_IMAGE", "dyno:latest")


@pytest.fixture(scope="session")
def config(engine: docker.DockerClient, image: str) -> dict[str, Any]:
    """The image's own configuration: environment, user, labels, entrypoint."""
    attributes: dict[str, Any] = engine.images.get(image).attrs["Config"]
    return attributes


@pytest.fixture(scope="session")
def run(engine: docker.DockerClient, image: str) -> Runner:
    """Run a command in a fresh container and return its exit code, stdout and stderr.

    `environment` is added to SELFTEST=off; everything else goes to the engine's SDK as it is.
    """

    def go(
        *command: str, image: str = image, environment: dict[str, str] | None = None, **options: Any
    ) -> Ran:
        container = engine.containers.create(
            image, list(command), environment={**QUIET, **(environment or {})}, **options
        )
        try:
            return finish(container)
        finally:
            container.remove(force=True, v=True)

    return go


def finish(container: Container) -> Ran:
    """Start `container`, wait for its end and return what it said; printed too, for whoever reads a failure."""
    container.start()
    code = container.wait(timeout=600)["StatusCode"]
    out = container.logs(stdout=True, stderr=False).decode(errors="replace")
    err = container.logs(stdout=False, stderr=True).decode(errors="replace")
    ran = Ran(code, out, err)
    print(ran, file=sys.stderr)
    return ran


@pytest.fixture
def online() -> dict[str, Any]:
    """Options for a container that installs from the package index."""
    if not HOST_CA:
        return {}
    inside = "/run/host-ca.pem"
    return {
        "mounts": [Mount(inside, HOST_CA, type="bind", read_only=True)],
        "environment": {"SSL_CERT_FILE": inside, "PIP_CERT": inside},
    }


@pytest.fixture(scope="session")
def manifest(run: Runner) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run("cat", "/opt/dyno/manifest.json").out)
    return told


@pytest.fixture
def started(engine: docker.DockerClient, image: str) -> Iterator[Callable[..., Container]]:
    """Start containers that outlive one command; they are removed with the test."""
    alive: list[Container] = []

    def start(*command: str, **options: Any) -> Container:
        environment = {**QUIET, **options.pop("environment", {})}
        alive.append(
            engine.containers.run(image, list(command), detach=True, environment=environment, **options)
        )
        return alive[-1]

    yield start
    for container in alive:
        container.remove(force=True, v=True)


def results(ran: Ran) -> dict[str, dict[str, Any]]:
    """The results of a JSON report on stdout, by code."""
    return {result["code"]: result for result in json.loads(ran.out)["results"]}
