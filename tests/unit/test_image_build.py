"""Host facts, and the call of bake that the plan becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_fakes import PINS, ROOT, FakeRun, host

from image import build, context, plan
from image import host as hosts
from image.arguments import Arguments
from image.base import Base
from image.plan import Plan
from image.shell import Done
from image.stack import STACK


def test_the_host_gpu_is_read_per_line_and_unknown_is_no_number() -> None:
    assert hosts.parse_compute_capabilities("8.9\n8.9\n[N/A]\n9.0\n\n12.0\n") == ("8.9", "9.0", "12.0")
    assert hosts.gpu_archs(FakeRun({})) == ()
    assert hosts.gpu_archs(FakeRun({("nvidia-smi",): Done(9, "8.9\n", "failed")})) == ()


def test_memory_is_in_gigabytes_and_absent_is_zero() -> None:
    assert hosts.parse_meminfo("MemTotal:  1000000 kB\nMemAvailable:  500000 kB\n") == (1.024, 0.512)
    assert hosts.parse_meminfo("nothing here\n") == (0.0, 0.0)


def test_the_build_trusts_what_the_host_trusts_unless_told_otherwise(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x", encoding="utf-8")
    assert hosts._ca_bundle("auto", {"SSL_CERT_FILE": str(bundle)}) == str(bundle)
    assert hosts._ca_bundle("auto", {"SSL_CERT_FILE": str(tmp_path / "no")}) != str(tmp_path / "no")
    assert hosts._ca_bundle("none", {"SSL_CERT_FILE": str(bundle)}) == ""
    assert hosts._ca_bundle(str(tmp_path / "no"), {}) == str(tmp_path / "no")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "is no file"),
        (b"", "holds no certificate that can be read"),
        (bytes(range(256)), "holds no certificate that can be read"),
        (b"-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n", "holds no certificate"),
        (b"-----BEGIN PRIVATE KEY-----\nbm90IG9uZQ==\n-----END PRIVATE KEY-----\n", "holds no certificate"),
    ],
)
def test_a_bundle_without_a_certificate_is_a_fault_before_the_build(
    tmp_path: Path, content: bytes | None, fault: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    assert hosts.certificate_fault(file).startswith(fault)


def test_a_bundle_with_certificates_is_none() -> None:
    found = hosts._ca_bundle("auto", {})
    if not found:
        pytest.skip("this machine trusts nothing")
    assert hosts.certificate_fault(Path(found)) == ""


def test_the_build_time_is_the_environments_or_the_stacks() -> None:
    assert hosts._epoch({"SOURCE_DATE_EPOCH": "5"}) == 5
    assert hosts._epoch({"SOURCE_DATE_EPOCH": "soon"}) == STACK.source_date_epoch
    assert hosts._epoch({}) == STACK.source_date_epoch


def test_a_damaged_wheel_in_the_wheelhouse_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "flash_attn-2.8.2-cp313-cp313-linux_x86_64.whl").write_bytes(b"half")
    (tmp_path / "other-1-py3-none-any.whl").touch()
    found = hosts._wheelhouse(str(tmp_path))
    assert found is not None
    result = plan.make("runtime", Arguments(), PINS, host(wheelhouse=found))
    assert not isinstance(result, Plan)
    assert "no whole zip archive" in result[0].found


def _plan(**arguments_: str) -> Plan:
    made = plan.make("runtime", Arguments(**arguments_), PINS, host(ca_bundle="/ca.pem"))
    assert isinstance(made, Plan)
    return made


def test_bake_gets_every_variable_of_its_file() -> None:
    variables = build.environment(_plan(gpu_archs="9.0 8.9"), Base("base:1", "id", ""))
    assert variables["GPU_ARCHS"] == "8.9 9.0"
    assert variables["BASE_IMAGE"] == "base:1"
    assert variables["FLASH_ATTN"] == "source"
    assert variables["TAGS"] == "dyno:torch2.8-cuda12.4,dyno:latest"
    assert all(isinstance(value, str) for value in variables.values())


def test_a_newer_buildx_is_told_what_it_may_read_and_an_older_one_is_not() -> None:
    assert not [word for word in build.command(_plan(), "default", "0.13.1") if word.startswith("--allow")]
    assert "--allow=fs.read=/ca.pem" in build.command(_plan(), "default", "0.20.0")


def test_the_engines_own_builder_builds() -> None:
    argv = build.command(_plan(), "desktop-linux", "0.13.1")
    assert argv[argv.index("--builder") + 1] == "desktop-linux"
    assert argv[-1] == "runtime"


def _listing(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(directory)): (p.lstat().st_mode & 0o777, _content(p))
        for p in sorted(directory.rglob("*"))
    }


def _content(path: Path) -> bytes:
    if path.is_symlink():
        return bytes(path.readlink())
    return b"" if path.is_dir() else path.read_bytes()


def test_every_checkout_gives_the_engine_the_same(tmp_path: Path) -> None:
    root, other = tmp_path / "one", tmp_path / "two"
    context.copy(ROOT, None, _empty(root))
    for path in root.rglob("*"):  # what a umask of 077 leaves, and an editor
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    (root / "image/plan.py~").touch()
    (root / "healthcheck/__pycache__").mkdir()
    (root / "healthcheck/__pycache__/cli.pyc").touch()
    context.copy(root, None, _empty(other))
    found, expected = _listing(other), _listing(_copied(tmp_path / "three"))
    assert found == expected
    assert found["image/step"][0] == 0o755 and found["Dockerfile"][0] == 0o644


def test_of_a_wheelhouse_only_the_wheel_that_is_taken_counts(tmp_path: Path) -> None:
    house = _empty(tmp_path / "house")
    for name in ("flash_attn-2.8.2-a.whl", "flash_attn-2.8.1-b.whl", "notes.txt"):
        (house / name).write_text(name)
    context.copy(ROOT, house / "flash_attn-2.8.2-a.whl", _empty(tmp_path / "copy"))
    wheels = tmp_path / "copy" / context.WHEELS
    assert {f.name: f.read_text() for f in wheels.iterdir()} == {
        "flash_attn-2.8.2-a.whl": "flash_attn-2.8.2-a.whl"
    }


def test_the_copy_holds_all_that_the_dockerfile_may_see() -> None:
    seen = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert seen and set(seen) <= set(context.PARTS)


def _empty(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _copied(directory: Path) -> Path:
    context.copy(ROOT, None, _empty(directory))
    return directory
