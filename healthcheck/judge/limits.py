"""Holds what was achieved against what is possible: the datasheet, this run's own roofline, a case's bound.

A datasheet's figure goes by a boost clock that a GPU may exceed, so a share above 100 % is possible. Above
the hard limit (every multiprocessor at the highest clock, every lane of the link) nothing is: the time or the
count of work must be wrong, and the benchmark fails with DYN-LIMIT-001.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from healthcheck.measure import peaks
from healthcheck.measure.peaks import Peaks
from healthcheck.report.model import Benchmark, Limit, Variant

CODE = "DYN-LIMIT-001"
ROOFLINE = "roofline"  # the scenario whose results are the measured ceilings
MARGIN = 1.02  # what the resolution of events may add to a rate
_WORDS = {"memory": "memory bandwidth", "h2d": "copy to the GPU", "d2h": "copy from the GPU"}


@dataclass(frozen=True)
class Rate:
    """Work over time of one kind: an engine ("bf16") in TFLOP/s, or a channel ("memory") in GB/s."""

    kind: str
    value: float
    unit: str

    @property
    def name(self) -> str:
        return _WORDS.get(self.kind, self.kind)


@dataclass(frozen=True)
class Possible:
    """What the GPU can do of one kind: by its datasheet, and at the very most."""

    datasheet: float
    most: float
    source: str


@dataclass(frozen=True)
class Hardware:
    """What is known of the GPU; clock in MHz, link as PCIe generation and width."""

    peaks: Peaks
    max_sm_clock_mhz: float | None
    link: tuple[int, int] | None

    def possible(self, kind: str) -> Possible | None:
        """None where neither a datasheet nor a standard says it."""
        if kind == "memory":
            bandwidth = self.peaks.memory_gb_s
            return Possible(bandwidth, bandwidth, self.peaks.source)
        if kind in ("h2d", "d2h"):
            return self._of_the_link()
        if kind not in self.peaks.rates:
            return None
        most = peaks.hard_limit(self.peaks, kind, self.max_sm_clock_mhz)
        return Possible(self.peaks.rates[kind].tflops, most, self.peaks.source)

    def _of_the_link(self) -> Possible | None:
        if self.link is None:
            return None
        try:
            bandwidth = peaks.pcie_bandwidth(*self.link)
        except ValueError:  # a link that PCIe does not have: what was read is not to be believed
            return None
        generation, width = self.link
        return Possible(bandwidth, bandwidth, f"PCIe {generation}.0 x{width}, before packet headers")


def with_limits(
    benchmarks: Sequence[Benchmark], max_sm_clock_mhz: float | None, link: tuple[int, int] | None
) -> tuple[Benchmark, ...]:
    """`benchmarks` with the limits of every variant that ran; a result above the hard limit fails.

    `max_sm_clock_mhz` is the most that NVML says of the SM clock, `link` the PCIe generation and width;
    None = unknown.
    """
    ceilings = _ceilings(benchmarks)
    return tuple(_judged(b, _hardware(b, max_sm_clock_mhz, link), ceilings) for b in benchmarks)


def achieved(variant: Variant) -> tuple[Rate, ...]:
    """The rates of a variant that ran and is right; none where its work was not counted."""
    cost = variant.cost
    if cost is None or not variant.median_ms or variant.status != "ok" or variant.correct is False:
        return ()
    seconds = variant.median_ms / 1e3
    rates = []
    if cost.flops and cost.engine:
        rates.append(Rate(cost.engine, cost.flops / seconds / 1e12, "TFLOP/s"))
    if cost.bytes and cost.channel:
        rates.append(Rate(cost.channel, cost.bytes / seconds / 1e9, "GB/s"))
    return tuple(rates)


def _hardware(
    benchmark: Benchmark, max_sm_clock_mhz: float | None, link: tuple[int, int] | None
) -> Hardware | None:
    if benchmark.device != "cuda" or not benchmark.device_name:
        return None
    found = peaks.find(benchmark.device_name, benchmark.conditions.get("multiprocessors"))
    return Hardware(found, max_sm_clock_mhz, link) if found else None


def _ceilings(benchmarks: Iterable[Benchmark]) -> Mapping[tuple[str, str], float]:
    """(device, kind) -> the most that the roofline reached of it in this run."""
    most: dict[tuple[str, str], float] = {}
    for benchmark in benchmarks:
        if benchmark.scenario == ROOFLINE:
            for rate in (rate for variant in benchmark.variants for rate in achieved(variant)):
                key = (benchmark.device, rate.kind)
                most[key] = max(rate.value, most.get(key, 0.0))
    return most


def _judged(
    benchmark: Benchmark, hardware: Hardware | None, ceilings: Mapping[tuple[str, str], float]
) -> Benchmark:
    variants = [
        _held(variant, benchmark, hardware, list(_limits(variant, benchmark, hardware, ceilings)))
        for variant in benchmark.variants
    ]
    broken = [v for v, before in zip(variants, benchmark.variants, strict=True) if v.status != before.status]
    if not broken:
        return benchmark.model_copy(update={"variants": variants})
    reasons = [benchmark.reason, *(f"{v.name}: {v.reason}" for v in broken)]
    return benchmark.model_copy(
        update={"variants": variants, "status": "fail", "reason": "; ".join(filter(None, reasons))}
    )


def _limits(
    variant: Variant,
    benchmark: Benchmark,
    hardware: Hardware | None,
    ceilings: Mapping[tuple[str, str], float],
) -> Iterator[Limit]:
    for rate in achieved(variant):
        possible = hardware.possible(rate.kind) if hardware else None
        if possible is not None:
            yield _limit("datasheet", f"{rate.name}, datasheet", rate, possible.datasheet, possible.source)
        ceiling = ceilings.get((benchmark.device, rate.kind))
        if ceiling is not None and benchmark.scenario != ROOFLINE:
            yield _limit("measured", f"{rate.name}, roofline", rate, ceiling, "the roofline of this run")
    bound = benchmark.bound
    if bound is not None and variant.median_ms and variant.status == "ok" and not variant.part:
        share = bound.ms / variant.median_ms
        yield Limit(
            kind="bound",
            name=bound.name,
            achieved=variant.median_ms,
            limit=bound.ms,
            unit="ms",
            share=share,
            source="the parts of this case, each measured alone",
        )


def _limit(kind: str, name: str, rate: Rate, possible: float, source: str) -> Limit:
    return Limit.model_validate(
        {
            "kind": kind,
            "name": name,
            "achieved": rate.value,
            "limit": possible,
            "unit": rate.unit,
            "share": rate.value / possible,
            "source": source,
        }
    )


def _held(variant: Variant, benchmark: Benchmark, hardware: Hardware | None, limits: list[Limit]) -> Variant:
    """The variant with its limits; failed, and without gains, where it claims the impossible."""
    changes: dict[str, object] = {"limits": limits}
    excess = _excess(variant, benchmark, hardware)
    if excess:
        changes |= {"status": "fail", "reason": excess, "speedup": None, "step_gain": None}
    return variant.model_copy(update=changes)


def _excess(variant: Variant, benchmark: Benchmark, hardware: Hardware | None) -> str:
    """One sentence where a rate is above what the hardware can do, or nothing."""
    for rate in achieved(variant):
        possible = hardware.possible(rate.kind) if hardware else None
        if possible is not None and rate.value > possible.most * MARGIN:
            return (
                f"{CODE}: {rate.value:,.0f} {rate.unit} ({rate.name}) are above the {possible.most:,.0f} "
                f"that the {benchmark.device_name} can reach at most: its time or its count of work is wrong"
            )
    return ""
