"""Size, bill of materials and removal of images."""

from __future__ import annotations

import json

import pytest
from image_fakes import FakeRun

from image import clean, sbom, size
from image.fault import Stop
from image.shell import Done


def test_layers_are_read_with_their_instruction() -> None:
    rows = [
        {
            "CreatedBy": "RUN |2 A=1 B=2 /bin/sh -c apt-get update # buildkit",
            "Size": "1500000",
            "Comment": "",
        },
        {"CreatedBy": '/bin/sh -c #(nop)  CMD ["bash"]', "Size": "0B", "Comment": ""},
        {"CreatedBy": "", "Size": "123MB", "Comment": "Imported from -"},
    ]
    layers = size.parse("\n".join(map(json.dumps, rows)))
    assert [layer.size for layer in layers] == [1_500_000, 0, 123_000_000]
    assert [layer.instruction for layer in layers] == [
        "RUN apt-get update",
        'CMD ["bash"]',
        "Imported from -",
    ]
    table = size.table("dyno", layers).splitlines()
    assert "123.0 MB" in table[0]
    assert "124.5 MB" in table[-1]


def test_an_image_without_layers_has_a_table() -> None:
    assert "0.0 MB" in size.table("empty", [])


def test_an_unknown_image_is_one_clear_line() -> None:
    run = FakeRun({("docker", "history"): Done(1, stderr="Error: No such image: nope:latest")})
    with pytest.raises(Stop, match="No such image"):
        size.read("nope", run)


MANIFEST = {
    "build_id": "0123456789abcdef",
    "debian": {"suite": "trixie", "packages": {"ffmpeg": "7:7.1.2-0+deb13u1", "libstdc++6": "14.2"}},
    "stack": {"torch": "2.8.0+cu128", "Nvidia_ML_py": "13"},
    "tools": {"nvidia-ml-py": "13"},
}


def test_the_bill_lists_what_the_manifest_lists_and_no_more() -> None:
    bill = sbom.bill("dyno", MANIFEST)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    purls = [component["purl"] for component in bill["components"]]
    assert purls == [
        "pkg:deb/debian/ffmpeg@7%3A7.1.2-0%2Bdeb13u1?arch=amd64&distro=trixie",
        "pkg:deb/debian/libstdc%2B%2B6@14.2?arch=amd64&distro=trixie",
        "pkg:pypi/nvidia-ml-py@13",
        "pkg:pypi/torch@2.8.0%2Bcu128",
        "pkg:pypi/nvidia-ml-py@13",
    ]
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(set(references)) == len(references)


def test_the_same_manifest_gives_the_same_bill() -> None:
    assert sbom.bill("dyno", MANIFEST) == sbom.bill("dyno", MANIFEST)
    other = {**MANIFEST, "tools": {}}
    assert sbom.bill("dyno", MANIFEST)["serialNumber"] != sbom.bill("dyno", other)["serialNumber"]


@pytest.mark.parametrize("done", [Done(1, stderr="cat: no such file"), Done(0, "not json"), Done(0, "[]")])
def test_an_image_without_a_manifest_has_no_bill(done: Done) -> None:
    with pytest.raises(Stop, match="an image of Dyno"):
        sbom.read("debian", FakeRun({("docker", "run"): done}))


def test_clean_removes_this_projects_images_and_no_other() -> None:
    names = "dyno:latest\ndynosaur:1\ndyno-base:trixie-1\nother/dyno:1\n<none>:<none>\n"
    run = FakeRun({("docker", "image", "ls"): Done(0, names), ("docker", "image", "rm"): Done(0)})
    clean.clean(run, print)
    removed = [argv[-1] for argv in run.seen if argv[:3] == ("docker", "image", "rm")]
    assert removed == ["dyno-base:trixie-1", "dyno:latest"]


def test_an_image_in_use_is_kept_and_reported() -> None:
    answers = {
        ("docker", "image", "ls"): Done(0, "dyno:1\n"),
        ("docker", "image", "rm"): Done(1, stderr="in use"),
    }
    with pytest.raises(Stop, match="dyno:1 in use"):
        clean.clean(FakeRun(answers), print)
