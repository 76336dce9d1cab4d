"""The published peaks: each is checked against the hardware it is about."""

from __future__ import annotations

import dataclasses

import pytest

from healthcheck.measure.peaks import Peaks, Rate, find, hard_limit, load, pcie_bandwidth

ENGINES = {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
# per capability: which engines there are, by the CUDA programming guide
HAS = {
    "7.5": {"fp32", "fp16", "int8"},
    "8.0": ENGINES - {"fp8"},
    "8.6": ENGINES - {"fp8"},
    "8.9": ENGINES,
    "9.0": ENGINES,
    "10.0": ENGINES,
}
RATES = [(peaks, engine) for peaks in load() for engine in peaks.rates]


def known(name: str) -> Peaks:
    peaks = find(name)
    assert peaks is not None
    return peaks


@pytest.mark.parametrize(("peaks", "engine"), RATES, ids=[f"{p.name} {engine}" for p, engine in RATES])
def test_a_published_rate_is_that_of_its_multiprocessors_at_its_clock(peaks: Peaks, engine: str) -> None:
    rate = peaks.rates[engine]
    assert rate.tflops == pytest.approx(peaks.sms * rate.mhz * 1e6 * rate.per_clock / 1e12, rel=0.01)


@pytest.mark.parametrize("peaks", load(), ids=lambda p: p.name)
def test_a_gpu_has_the_engines_of_its_architecture(peaks: Peaks) -> None:
    assert set(peaks.rates) == HAS[peaks.capability]
    assert peaks.source.startswith("NVIDIA")


@pytest.mark.parametrize("peaks", [p for p in load() if p.name.startswith("RTX")], ids=lambda p: p.name)
def test_geforce_sums_fp16_products_in_fp32_at_a_quarter_of_int8(peaks: Peaks) -> None:
    """Everywhere else it is half: the headline rate of GeForce is that of fp16 accumulation."""
    assert peaks.rates["fp16"].per_clock * 4 == peaks.rates["int8"].per_clock


@pytest.mark.parametrize("peaks", [p for p in load() if not p.name.startswith("RTX")], ids=lambda p: p.name)
def test_data_centre_gpus_sum_fp16_products_in_fp32_at_half_of_int8(peaks: Peaks) -> None:
    assert peaks.rates["fp16"].per_clock * 2 == peaks.rates["int8"].per_clock


def test_names_and_what_is_reported_are_unique() -> None:
    names = [p.name for p in load()]
    reported = [name.casefold() for p in load() for name in p.reported]
    assert len(set(names)) == len(names) == 14
    assert len(set(reported)) == len(reported)


@pytest.mark.parametrize(
    ("reported", "name", "sms", "bf16", "bandwidth"),
    [
        ("Tesla T4", "T4", 40, None, 320),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", 82, 71.0, 936),
        ("GeForce RTX 3090", "RTX 3090", 82, 71.0, 936),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 128, 165.2, 1008),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090 D", 114, 147.1, 1008),
        ("NVIDIA L4", "L4", 58, 121.0, 300),
        ("NVIDIA L40S", "L40S", 142, 362.05, 864),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40 GB", 108, 312.0, 1555),
        ("A100-SXM4-40GB", "A100 SXM 40 GB", 108, 312.0, 1555),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB", 108, 312.0, 1555),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB", 108, 312.0, 2039),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB", 108, 312.0, 1935),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 132, 989.4, 3352),
        ("NVIDIA H100 PCIe", "H100 PCIe", 114, 756.0, 2039),
        ("NVIDIA H200", "H200", 132, 989.5, 4800),
        ("NVIDIA B200", "B200", 148, 2250.0, 8000),
    ],
)
def test_a_gpu_is_found_by_the_name_it_reports(
    reported: str, name: str, sms: int, bf16: float | None, bandwidth: float
) -> None:
    peaks = find(reported, sms)
    assert peaks is not None
    assert peaks == find(reported)
    assert (peaks.name, peaks.sms, peaks.memory_gb_s) == (name, sms, bandwidth)
    assert ("bf16" in peaks.rates and peaks.rates["bf16"].tflops) == (bf16 or False)


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "NVIDIA",
        "cpu",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "GRID T4-16Q",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GB200",
    ],
)
def test_another_gpu_is_not_taken_for_a_known_one(reported: str) -> None:
    assert find(reported) is None


def test_a_count_of_multiprocessors_that_contradicts_the_name_is_another_gpu() -> None:
    assert find("NVIDIA GeForce RTX 4090", sms=114) is None
    assert find("NVIDIA H200", sms=16) is None


def test_the_hard_limit_is_every_multiprocessor_at_the_highest_clock() -> None:
    h200 = known("NVIDIA H200")
    assert hard_limit(h200, "bf16", 1980) == pytest.approx(132 * 4096 * 1980e6 / 1e12)  # 1070.5
    assert hard_limit(h200, "bf16", 1980) == pytest.approx(1070.5, abs=0.05)
    assert hard_limit(known("NVIDIA GeForce RTX 4090 D"), "fp16", 3105) == pytest.approx(181.2, abs=0.05)


def test_the_hard_limit_is_never_below_the_datasheet() -> None:
    assert hard_limit(known("NVIDIA H200"), "bf16", 1200) == 989.5
    assert hard_limit(known("Tesla T4"), "fp32", 1590) == pytest.approx(8.1408)


@pytest.mark.parametrize("clock", [None, 0])
def test_an_unknown_clock_leaves_fifteen_percent_above_the_datasheet(clock: float | None) -> None:
    assert hard_limit(known("NVIDIA A100-SXM4-80GB"), "tf32", clock) == pytest.approx(179.4)


def test_a_rate_that_the_gpu_lacks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"the T4 has no bf16 rate; it has fp32, fp16, int8"):
        hard_limit(known("Tesla T4"), "bf16", 1590)


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"),
    [
        (1, 16, 4.0),
        (2, 8, 4.0),
        (3, 16, 15.754),
        (4, 8, 15.754),
        (4, 16, 31.508),
        (5, 16, 63.015),
        (6, 16, 121.0),
    ],
)
def test_a_pcie_link_carries_its_line_rate_less_the_coding(
    generation: int, width: int, gigabytes: float
) -> None:
    assert pcie_bandwidth(generation, width) == pytest.approx(gigabytes, abs=0.0005)


@pytest.mark.parametrize(("generation", "width"), [(0, 16), (7, 16), (4, 0), (4, 3)])
def test_a_link_that_pcie_does_not_have_is_refused(generation: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"generation {generation} and width {width}"):
        pcie_bandwidth(generation, width)


def test_peaks_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        known("NVIDIA H200").sms = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        known("NVIDIA H200").rates["bf16"].tflops = 1  # type: ignore[misc]
    assert known("NVIDIA H200").rates["bf16"] == Rate(989.5, 4096, 1830)
