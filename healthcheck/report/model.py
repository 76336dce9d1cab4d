"""The report: the one model behind the terminal, JSON and JUnit forms.

A reader may rely on this: names and meanings stay within one `schema_version`, null means unknown, and a
status is one of `result.Status`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import healthcheck
from healthcheck.facts.collect import Facts
from healthcheck.facts.utilisation import Utilisation
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


class Variant(Model):
    """One way to do a scenario's work. Times in milliseconds, one sample per run, all of them kept."""

    name: str
    label: str
    baseline: bool = False
    status: Literal["ok", "skip", "fail"]
    reason: str = ""
    correct: bool | None = None
    error: float | None = None
    tolerance: float | None = None
    samples_ms: list[float] = Field(default_factory=list)
    median_ms: float | None = None
    q1_ms: float | None = None
    q3_ms: float | None = None
    speedup: float | None = None
    throughput: Throughput | None = None
    peak_vram_bytes: int | None = None
    compile_seconds: float | None = None
    notes: list[str] = Field(default_factory=list)


class Benchmark(Model):
    """One scenario measured. `measured` is when; `cached` says that it was not now."""

    scenario: str
    title: str
    workload: str = ""
    device: str
    device_name: str | None = None
    short: bool = False
    torch: str | None = None
    status: Literal["ok", "skip", "fail"]
    reason: str = ""
    variants: list[Variant] = Field(default_factory=list)
    conditions: dict[str, Any] = Field(default_factory=dict)
    method_version: int | None = None
    seconds: float | None = None
    utilisation: Utilisation | None = None
    measured: datetime | None = None
    cached: bool = False


class Report(Model):
    """Everything one command found."""

    schema_version: Literal[1] = 1
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
    facts: Facts
