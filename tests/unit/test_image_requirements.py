"""Pins and locks: they agree here, and each way to disagree is seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from image_fakes import FILES, ROOT

from image import lock, requirements
from image.fault import Stop
from image.requirements import Listing, Pins
from image.stack import STACK

ASKED = Pins(frozenset({"torch"}), {"torch": "2.8.0"})
GOOD = "torch==2.8.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via -r stack.in\n"


def test_every_lock_of_the_repository_agrees_with_its_pins() -> None:
    assert requirements.all_disagreements(FILES) == []


def test_every_pin_is_exact_or_left_to_a_constraint() -> None:
    listings = {f: requirements.parse(text, f) for f, text in FILES.items() if f.endswith(".in")}
    for name in requirements.NAMES:
        asked = requirements.pins(listings, name)
        assert asked.names
        assert asked.names <= asked.versions.keys(), f"{name}.in leaves a version open"


def test_a_good_lock_has_no_disagreement() -> None:
    assert requirements.disagreements(ASKED, GOOD, "x.lock") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("torch", "numpy"), "lacks torch"),
        (GOOD.replace("2.8.0", "2.7.1"), "has torch 2.7.1, the pin is 2.8.0"),
        (GOOD + "numpy==2.5.5\n", "numpy has no hash"),
        (GOOD + "numpy --hash=sha256:aa\n", "numpy has no version"),
        (GOOD + "# --index-url https://pypi.example/simple\n", "names a URL"),
    ],
)
def test_a_planted_disagreement_is_named(text: str, said: str) -> None:
    assert any(said in line for line in requirements.disagreements(ASKED, text, "x.lock"))


def test_a_constraint_binds_names_that_are_not_listed() -> None:
    asked = Pins(frozenset({"torch"}), {"torch": "2.8.0", "pillow": "13.0.0"})
    text = GOOD + "pillow==12.0.0 --hash=sha256:aa\n"
    assert requirements.disagreements(asked, text, "x.lock") == [
        "x.lock has pillow 12.0.0, the pin is 13.0.0"
    ]


def test_a_planted_change_of_a_pin_in_the_repository_is_seen() -> None:
    files = {**FILES, "stack.in": FILES["stack.in"].replace("torch==2.8.0", "torch==2.9.0")}
    wrong = requirements.all_disagreements(files)
    assert any("stack.lock has torch 2.8.0, the pin is 2.9.0" in line for line in wrong)
    assert any("local.lock has torch 2.8.0, the pin is 2.9.0" in line for line in wrong)


def test_markers_extras_options_and_remarks_are_understood() -> None:
    text = "-r a.in  # more\n-c b.in\nFlash_Attn[x]==1.0 ; python_version < '3.12'  # why\n\nopen\n"
    listing = requirements.parse(text, "x.in")
    assert listing.includes == ("a.in",)
    assert listing.constraints == ("b.in",)
    assert listing.versions == {"flash-attn": "1.0"}
    assert [r.name for r in listing.requirements] == ["flash-attn", "open"]
    assert listing.requirements[0].marker == "python_version < '3.12'"


@pytest.mark.parametrize("line", ["torch>=2", "torch~=2.8", "--index-url https://x", "git+https://x/y"])
def test_a_line_that_is_no_pin_is_refused_by_name(line: str) -> None:
    with pytest.raises(Stop, match=r"x\.in"):
        requirements.parse(line, "x.in")


def test_included_pins_count_as_listed() -> None:
    listings = {
        "test.in": requirements.parse("-r tools.in\npytest==9\n", "test.in"),
        "tools.in": requirements.parse("rich==15\n", "tools.in"),
    }
    assert requirements.pins(listings, "test").names == {"pytest", "rich"}
    assert Listing(()).versions == {}


def test_a_missing_lock_is_said_with_its_cure(tmp_path: Path) -> None:
    for name in requirements.NAMES:
        (tmp_path / f"{name}.in").write_text("a==1\n", encoding="utf-8")
    with pytest.raises(Stop, match=r"no stack\.lock.*make lock"):
        requirements.read(tmp_path)


def test_a_digest_tells_texts_apart_by_their_borders() -> None:
    assert requirements.digest(["ab", "c"]) != requirements.digest(["a", "bc"])


@pytest.mark.parametrize("name", requirements.NAMES)
def test_each_lock_is_resolved_with_hashes_from_the_canonical_index(name: str) -> None:
    argv = lock.command("uv", name, STACK)
    assert "--generate-hashes" in argv
    assert argv[argv.index("--default-index") + 1] == "https://pypi.org/simple"
    assert ("--universal" in argv) == (name in ("test", "local"))
    assert ("--only-binary" in argv) == (name != "flash-attn")


def test_the_defaults_of_the_dockerfile_are_those_of_the_stack() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    words = " ".join(re.findall(r"(?m)^ARG\s+(.*)$", dockerfile))
    defaults: dict[str, set[str]] = {}
    for name, value in re.findall(r"(\w+)=(\S+)", words):
        defaults.setdefault(name, set()).add(value)
    expected = {
        "SUITE": STACK.suite,
        "PYTHON_VERSION": STACK.python,
        "CUDA_TOOLKIT": STACK.cuda_toolkit,
        "DRIVER_FLOOR": STACK.driver_floor,
        "DRIVER_TESTED": STACK.driver_tested,
        "GPU_ARCHS": STACK.default_arch,
        "DEBIAN_MIRROR": STACK.debian_mirror,
        "PYPI_INDEX": STACK.pypi_index,
        "SOURCE_DATE_EPOCH": str(STACK.source_date_epoch),
    }
    assert {name: defaults.get(name) for name in expected} == {name: {v} for name, v in expected.items()}


def test_the_constraint_on_drivers_in_the_dockerfile_is_the_floor() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    values = re.findall(r"NVIDIA_REQUIRE_DRIVER=(\S+)", dockerfile)
    assert values
    assert set(values) <= {f"driver>={STACK.driver_floor}", '"driver>=$DRIVER_FLOOR"'}
