"""Wheel names and the device code in them."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_fakes import fat_binary

from image import wheel

_NAME = st.from_regex(r"[a-z]{1,8}(_[a-z]{1,8})?", fullmatch=True)
_VERSION = st.from_regex(r"\d{1,2}\.\d{1,2}\.\d{1,2}", fullmatch=True)
_LOCAL = st.one_of(st.just(""), st.from_regex(r"cu12torch2\.\d", fullmatch=True))
_BUILD = st.one_of(st.just(""), st.from_regex(r"\d[a-z]{0,3}", fullmatch=True))


@given(_NAME, _VERSION, _LOCAL, _BUILD)
def test_the_parts_of_a_name_come_back(name: str, version: str, local: str, build: str) -> None:
    full = f"{version}+{local}" if local else version
    middle = f"-{build}" if build else ""
    parsed = wheel.parse(f"{name}-{full}{middle}-cp312.cp313-abi3-manylinux_2_28_x86_64.linux_x86_64.whl")
    assert parsed is not None
    assert (parsed.name, parsed.version, parsed.local) == (name.replace("_", "-"), version, local)
    assert parsed.pythons == ("cp312", "cp313")
    assert parsed.platforms == ("manylinux_2_28_x86_64", "linux_x86_64")


@pytest.mark.parametrize(
    "file", ["flash_attn-2.8.2.tar.gz", "a-b.whl", "a-1-2-3-4-5-6.whl", "notes.txt", "-1-a-b-c.whl"]
)
def test_what_is_no_wheel_is_none(file: str) -> None:
    assert wheel.parse(file) is None


@pytest.mark.parametrize(
    ("arch", "cubins", "ptx", "served"),
    [
        ("8.9", ["8.0"], [], True),
        ("8.0", ["8.9"], [], False),
        ("9.0", ["8.0"], [], False),
        ("9.0", [], ["8.0"], True),
        ("8.0", [], ["9.0"], False),
    ],
)
def test_a_cubin_serves_its_generation_upwards_and_ptx_everything_above(
    arch: str, cubins: list[str], ptx: list[str], served: bool
) -> None:
    assert wheel.serves(arch, cubins, ptx) is served


def test_device_code_is_read_wherever_it_lies() -> None:
    library = b"\x7fELF" + bytes(77) + fat_binary((2, 80), (1, 80)) + b"between" + fat_binary((2, 90))
    assert wheel.device_code(library) == {(2, 80), (1, 80), (2, 90)}


def test_zeroed_code_is_no_code() -> None:
    assert wheel.device_code(fat_binary((1, 80), zeroed=True) + fat_binary((2, 89))) == {(2, 89)}


@pytest.mark.parametrize("cut", [10, 17, 40, 90])
def test_a_container_that_does_not_parse_to_its_end_says_nothing(cut: int) -> None:
    assert wheel.device_code(fat_binary((2, 80))[:cut]) == set()


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail(noise: bytes) -> None:
    wheel.device_code(fat_binary((2, 80))[:16] + noise)


def test_a_wheel_file_is_read_with_its_code(tmp_path: Path) -> None:
    path = tmp_path / "flash_attn-2.8.2-cp313-cp313-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flash_attn_2_cuda.so", fat_binary((2, 80), (1, 90)))
    found = wheel.read(path)
    assert found is not None
    assert (found.cubins, found.ptx) == (("8.0",), ("9.0",))


def test_a_file_that_is_no_archive_is_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "flash_attn-2.8.2-cp313-cp313-linux_x86_64.whl"
    path.write_bytes(b"half a download")
    assert wheel.read(path) is None


@pytest.mark.parametrize("damage", ["cut", "changed", "encrypted", "unknown method"])
def test_a_damaged_archive_is_no_wheel_and_no_traceback(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "flash_attn-2.8.2-cp313-cp313-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flash_attn_2_cuda.so", fat_binary((2, 80)) * 50)
    whole = bytearray(path.read_bytes())
    directory = whole.index(b"PK\x01\x02")
    if damage == "cut":
        del whole[40:80]
    elif damage == "changed":
        whole[60:70] = b"0123456789"
    elif damage == "encrypted":
        whole[6] |= 1
        whole[directory + 8] |= 1
    else:
        whole[8] = whole[directory + 10] = 77
    path.write_bytes(whole)
    assert wheel.read(path) is None


@given(st.data())
def test_no_changed_byte_of_an_archive_makes_the_reader_fail(data: st.DataObject) -> None:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("flash_attn_2_cuda.so", fat_binary((2, 80)) * 3)
    content = bytearray(memory.getvalue())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "flash_attn-2.8.2-cp313-cp313-linux_x86_64.whl"
        path.write_bytes(content)
        found = wheel.read(path)
    assert found is None or found.name == "flash-attn"
