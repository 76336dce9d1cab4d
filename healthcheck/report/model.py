"""The report: the one model behind the terminal, JSON and JUnit forms.

A reader may rely on this: names and meanings stay within one `schema_version`, null means unknown, and a
status is one of `result.Status`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import healthcheck
from healthcheck.facts.snapshot import Facts
from healthcheck.measure.activity import Activity
from healthcheck.result import Exit, Result, Status


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckResult(Model):
    """One check's answer; see `healthcheck.result.Result`."""

    code: str
    title: str
    status: Status
    summary: str
    remedy: str = ""
    unusable: bool = False
    seconds: float | None = None
    details: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, result: Result) -> CheckResult:
        fields = {name: getattr(result, name) for name in cls.model_fields}
        return cls(**{**fields, "details": dict(result.details)})


class Throughput(Model):
    value: float
    unit: str


class Cost(Model):
    """The least work of one call; see `healthcheck.bench.scenario.Cost`."""

    flops: float | None = None
    engine: str | None = None
    bytes: float | None = None
    channel: str | None = None


class Limit(Model):
    """What was achieved beside what is possible; `share` is the one over the other.

    `kind`: the datasheet's peak, the ceiling that `roofline` measured in the same run, or a bound that
    follows from the measured parts of the case.
    """

    kind: Literal["datasheet", "measured", "bound"]
    name: str
    achieved: float
    limit: float
    unit: str
    share: float
    source: str = ""


class Steady(Model):
    """When a variant ran back to back for the activity lenses: monotonic seconds, and how many calls."""

    begin: float
    end: float
    calls: int


class Variant(Model):
    """One way to do a scenario's work. Times in milliseconds, one sample per run, all of them kept.

    `absent`: it was skipped for want of a package or a kernel, and would be again.
    `speedup` is over the baseline, `step_gain` over the variant before. A `part` is measured for a bound and
    is no rival of the others.
    """

    name: str
    label: str
    part: bool = False
    baseline: bool = False
    status: Literal["ok", "skip", "fail"]
    reason: str = ""
    absent: bool = False
    correct: bool | None = None
    error: float | None = None
    tolerance: float | None = None
    samples_ms: list[float] = Field(default_factory=list)
    median_ms: float | None = None
    q1_ms: float | None = None
    q3_ms: float | None = None
    speedup: float | None = None
    step_gain: float | None = None
    throughput: Throughput | None = None
    cost: Cost | None = None
    limits: list[Limit] = Field(default_factory=list)
    peak_vram_bytes: int | None = None
    peak_vram_reserved_bytes: int | None = None
    compile_seconds: float | None = None
    compile_warm_seconds: float | None = None
    pays_after_calls: int | None = None
    steady: Steady | None = None
    activity: Activity | None = None
    notes: list[str] = Field(default_factory=list)


class Bound(Model):
    """The shortest time that the measured parts of a case allow."""

    name: str
    ms: float


class Control(Model):
    """A negative control: gains that have to lie in `low`..`high`. `holds` None = not measured."""

    low: float
    high: float
    why: str
    holds: bool | None = None


class Benchmark(Model):
    """One case of a scenario, measured. `measured` is when; `cached` says that it was not now.

    `disturbed` is a sentence when another process used the GPU: such figures are shown, not believed.
    """

    scenario: str
    case: str = ""
    title: str
    workload: str = ""
    device: str
    device_name: str | None = None
    short: bool = False
    torch: str | None = None
    status: Literal["ok", "skip", "fail"]
    reason: str = ""
    variants: list[Variant] = Field(default_factory=list)
    bound: Bound | None = None
    control: Control | None = None
    conditions: dict[str, Any] = Field(default_factory=dict)
    disturbed: str = ""
    method_version: int | None = None
    seconds: float | None = None
    measured: datetime | None = None
    cached: bool = False

    @property
    def full_name(self) -> str:
        """Scenario and case: "compile b64"."""
        return f"{self.scenario} {self.case}".strip()

    def variant(self, name: str) -> Variant | None:
        """The variant called `name`, measured or not."""
        return next((v for v in self.variants if v.name == name), None)

    @property
    def baseline(self) -> Variant | None:
        return next((v for v in self.variants if v.baseline), None)


class Claim(Model):
    """A published figure held against what was measured; see `healthcheck/judge/claims.toml`."""

    id: str
    title: str
    claimed: str
    measured: str
    limit: str
    verdict: Literal[
        "reproduced",
        "exceeded",
        "not reproduced",
        "impossible",
        "under-specified",
        "not comparable",
        "not run",
    ]
    why: str
    conditions: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)


class Report(Model):
    """Everything one command found."""

    schema_version: Literal[2] = 2
    dyno: str = healthcheck.__version__
    created: datetime
    command: str
    build_id: str | None = None
    device: str
    seconds: float
    time_limit: float
    required: list[str] = Field(default_factory=list)
    exit_code: Exit
    results: list[CheckResult]
    benchmarks: list[Benchmark] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
    facts: Facts
