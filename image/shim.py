"""Install an empty distribution that stands for another one, so that installers find a requirement met.

`opencv-python` and `opencv-python-headless` both own the directory cv2. A package that asks for the first
would have pip unpack a second copy over ours, which then needs X libraries. The stand-in has the first's name
and the second's version, requires the second, and holds no files.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path


def metadata(name: str, version: str, stands_for: str) -> dict[str, str]:
    """Return the stand-in's .dist-info files: name -> text. INSTALLER says who made it, for the self-test."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            f"Summary: Stands for {stands_for}, which provides the same modules\n"
            f"Requires-Dist: {stands_for}=={version}\n"
        ),
        "INSTALLER": "dyno\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: dyno\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{folder}/{file},,\n" for file in [*files, "RECORD"])
    return {f"{folder}/{file}": text for file, text in [*files.items(), ("RECORD", record)]}


def main(venv: str, name: str, stands_for: str) -> None:
    (site_packages,) = Path(venv).glob("lib/python3*/site-packages")
    found = [d.version for d in distributions(path=[str(site_packages)]) if d.metadata["Name"] == stands_for]
    if not found:
        sys.exit(f"{stands_for} is not in {site_packages}: add it to requirements/stack.in")
    for file, text in metadata(name, found[0], stands_for).items():
        path = site_packages / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
