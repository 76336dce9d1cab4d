"""A CycloneDX 1.5 bill of materials from the image's own manifest: what it says is installed, no more."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from image.fault import Exit, Fault, Stop
from image.requirements import canonical
from image.shell import Run

MANIFEST = "/opt/dyno/manifest.json"
_ENVIRONMENTS = {"stack": "/opt/venv", "tools": "/opt/dyno/venv"}


def read(image: str, run: Run) -> dict[str, Any]:
    """The manifest in `image`. No network and no entrypoint: the image is asked, not started."""
    argv = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--pull",
        "never",
        "--entrypoint",
        "cat",
        image,
        MANIFEST,
    ]
    done = run(argv, time_limit=60)
    try:
        manifest = json.loads(done.stdout) if done.ok else None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        found = f"{image}: {done.last_line if not done.ok else f'{MANIFEST} is no JSON object'}"
        raise Stop([Fault(found, f"an image of Dyno, which has {MANIFEST}", "make image", Exit.FAILED)])
    return manifest


def bill(image: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The bill of materials as plain values; the same manifest gives the same bill and serial number."""
    debian = manifest["debian"]
    components = [
        _debian(name, version, debian["suite"]) for name, version in sorted(debian["packages"].items())
    ]
    for environment, path in _ENVIRONMENTS.items():
        packages = sorted(manifest.get(environment, {}).items())
        components += [_python(name, version, environment, path) for name, version in packages]
    build = str(manifest["build_id"])
    body = json.dumps([image, manifest], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, body)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "image", "name": image, "version": build}},
        "components": components,
    }


def _debian(name: str, version: str, suite: str) -> dict[str, Any]:
    purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch=amd64&distro={suite}"
    return {"type": "library", "bom-ref": f"debian/{name}", "name": name, "version": version, "purl": purl}


def _python(name: str, version: str, environment: str, path: str) -> dict[str, Any]:
    name = canonical(name)
    return {
        "type": "library",
        "bom-ref": f"{environment}/{name}",  # a package may be in both environments
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{quote(version, safe='')}",
        "properties": [{"name": "dyno:environment", "value": path}],
    }
