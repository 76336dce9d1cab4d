"""Holds what was measured against published figures (`claims.toml`), and says of each what became of it.

reproduced      within 5 % of the published figure (a share: within 5 points)
exceeded        better than that; a baseline is never "exceeded", a better one only makes gains smaller
not reproduced  worse than that, or a baseline that is better
impossible      the published figure lies beyond the physical limit of the GPU it was published for
under-specified what it depends on was not published, and nothing fair can be measured for it
not comparable  measured, but something else: another GPU (ratios are judged on any), workload or batch
not run         nothing was measured: no scenario, no result, or a failed one
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomllib  # Python 3.11, which Dyno's own environments have at least; the builder does not come here

from healthcheck.report.model import Benchmark, Claim, Variant

FILE = Path(__file__).with_name("claims.toml")
TOLERANCE = 0.05  # relative; of a share of time or of memory 5 points
_ROUNDING = 1e-9  # what floating-point numbers need for exactly 5 % to be within 5 %
_MILLISECONDS = {"ms": 1.0, "s": 1e3, "min": 60e3}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
Verdict = Literal[
    "reproduced",
    "exceeded",
    "not reproduced",
    "impossible",
    "under-specified",
    "not comparable",
    "not run",
]
Answer = tuple[Verdict, str]


@dataclass(frozen=True)
class Bound:
    """A physical limit of the claimed GPU, in the claim's unit; `at_least`: no figure can be below it."""

    value: float
    at_least: bool
    why: str

    def allows(self, figure: float) -> bool:
        return figure >= self.value if self.at_least else figure <= self.value


@dataclass(frozen=True)
class Published:
    """One `[[claim]]`; the head of claims.toml says what its fields mean."""

    id: str
    title: str
    kind: Literal["ratio", "time", "memory", "busy", "rate"]
    value: float
    unit: str
    scenario: str
    variant: str
    case: str = ""
    workload: str = ""
    batch: int | None = None
    baseline: str = ""
    claimed: str = ""
    planned: bool = False
    unspecified: str = ""
    bound: Bound | None = None
    conditions: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As it was published, to the digit."""
        return self.claimed or f"{self.value:g}{'' if self.unit == 'x' else ' '}{self.unit}"

    @property
    def less_is_better(self) -> bool:
        return self.kind in ("time", "memory")


@dataclass(frozen=True)
class Sum:
    """Arithmetic of a finding: `formula` rounded as `gives` is written gives `gives`."""

    formula: str
    gives: str

    @property
    def holds(self) -> bool:
        decimals = len(self.gives.partition(".")[2])
        return f"{compute(self.formula):,.{decimals}f}" == self.gives


@dataclass(frozen=True)
class Finding:
    """What follows from the published figures alone. `argument`: it leans on others' measurements too."""

    title: str
    text: str
    sums: tuple[Sum, ...]
    argument: bool = False


@dataclass(frozen=True)
class Claims:
    """Everything that was published for one GPU, and what is wrong with it on paper."""

    gpu: str
    published: tuple[Published, ...]
    findings: tuple[Finding, ...]


def load(file: Path = FILE) -> Claims:
    """Read claims.toml; ValueError, KeyError or TypeError for one that does not follow its own head."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return Claims(
        gpu=content["gpu"],
        published=tuple(_published(entry) for entry in content["claim"]),
        findings=tuple(_finding(entry) for entry in content["finding"]),
    )


def judge(claims: Claims, benchmarks: Sequence[Benchmark]) -> tuple[Claim, ...]:
    """The verdict on every claim, in the order of the file."""
    return tuple(_judge(published, claims.gpu, benchmarks) for published in claims.published)


def compute(formula: str) -> float:
    """The value of a formula of numbers, + - * / and brackets; ValueError for anything else."""
    return _value(ast.parse(formula, mode="eval").body, formula)


def amount(value: float, unit: str) -> str:
    """A figure with its unit, to three digits: "1.38x", "0.0857 ms", "1,098 images/s"."""
    if unit == "x":
        return f"{value:.2f}x"
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}"


def _value(node: ast.expr, formula: str) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return float(_OPERATORS[type(op)](_value(left, formula), _value(right, formula)))
    raise ValueError(f"{formula!r}: only numbers, + - * / and brackets are arithmetic here")


def _published(entry: Mapping[str, Any]) -> Published:
    fields = {**entry, "bound": _bound(entry.get("bound"))}
    for name in ("conditions", "missing"):
        fields[name] = tuple(entry.get(name, ()))
    return Published(**fields)


def _bound(entry: Mapping[str, str] | None) -> Bound | None:
    if entry is None:
        return None
    at_least = "at_least" in entry
    return Bound(compute(entry["at_least" if at_least else "at_most"]), at_least, entry["why"])


def _finding(entry: Mapping[str, Any]) -> Finding:
    sums = tuple(Sum(**each) for each in entry["sums"])
    return Finding(entry["title"], entry["text"], sums, entry.get("argument", False))


@dataclass(frozen=True)
class _Evidence:
    """What there is for a claim: the benchmark of the same work, and its figure in the claim's unit."""

    claim: Published
    gpu: str
    benchmark: Benchmark | None = None
    figure: float | None = None

    @property
    def at_home(self) -> bool:
        """Whether it was measured on the GPU that the claim is about."""
        return self.benchmark is not None and self.benchmark.device_name == self.gpu

    @property
    def where(self) -> str:
        return _short((self.benchmark and self.benchmark.device_name) or "unknown GPU")


def _judge(claim: Published, gpu: str, benchmarks: Sequence[Benchmark]) -> Claim:
    """What can be said on paper comes first, then whether the same work was measured, then the figures."""
    benchmark, obstacle = _same_work(claim, benchmarks)
    figure = _figure(claim, benchmark) if benchmark else None
    found = _Evidence(claim, gpu, benchmark, figure)
    verdict, why = _on_paper(claim) or obstacle or _weakness(found) or _weighed(found)
    return Claim(
        id=claim.id,
        title=claim.title,
        claimed=claim.text,
        measured=_measured(found),
        limit=_limit(found),
        verdict=verdict,
        why=why,
        conditions=list(claim.conditions),
        missing=list(claim.missing),
    )


def _on_paper(claim: Published) -> Answer | None:
    if claim.bound and not claim.bound.allows(claim.value):
        return "impossible", claim.bound.why
    return ("under-specified", claim.unspecified) if claim.unspecified else None


def _same_work(claim: Published, benchmarks: Sequence[Benchmark]) -> tuple[Benchmark | None, Answer | None]:
    """The benchmark whose workload is the claim's, or else why there is none."""
    why = "no scenario measures it yet" if claim.planned else f"the scenario {claim.scenario} was not run"
    obstacle: Answer = ("not run", why)
    mine = [b for b in benchmarks if b.scenario == claim.scenario]
    for benchmark in sorted(mine, key=lambda b: b.case == claim.case):  # the case itself has the last word
        difference = _difference(claim, benchmark)
        if difference is None:
            return benchmark, None
        obstacle = difference
    return None, obstacle


def _difference(claim: Published, benchmark: Benchmark) -> Answer | None:
    """Why a benchmark of the claim's scenario is not its work; None where it is."""
    if benchmark.status != "ok":
        return "not run", benchmark.reason or benchmark.status
    unlike = "measured on a CPU" if benchmark.device != "cuda" else _unlike(claim, benchmark)
    return ("not comparable", unlike) if unlike else None


def _unlike(claim: Published, benchmark: Benchmark) -> str:
    """In what the workload differs from the claim's, or nothing. Its text counts, not only its name."""
    batch = benchmark.conditions.get("batch")
    if benchmark.case != claim.case or claim.workload not in benchmark.workload:
        return f"another workload was measured: {benchmark.workload or benchmark.full_name}"
    if claim.batch is not None and batch != claim.batch:
        return f"batch {batch} instead of {claim.batch}"
    return ""


def _weakness(found: _Evidence) -> Answer | None:
    """Why the same work was measured and yet gives no verdict."""
    benchmark = found.benchmark
    if benchmark is None or found.figure is None:
        return "not run", _why_no_figure(found.claim, benchmark)
    if benchmark.disturbed:
        return "not comparable", benchmark.disturbed
    if benchmark.control is not None and benchmark.control.holds is False:
        return "not comparable", "the negative control of this run does not hold"
    if found.claim.kind != "ratio" and not found.at_home:
        return "not comparable", f"an absolute figure of another GPU than the {_short(found.gpu)}"
    return None


def _why_no_figure(claim: Published, benchmark: Benchmark | None) -> str:
    for name in filter(None, (claim.variant, claim.baseline)):
        variant = benchmark.variant(name) if benchmark else None
        if variant is None:
            return f"this run has no variant {name}"
        if _right(variant) is None:
            return f"{variant.label}: {variant.reason or variant.status}"
    return f"{claim.kind} was not measured"


def _figure(claim: Published, benchmark: Benchmark) -> float | None:
    """What was measured for the claim, in its unit; None = it was not."""
    variant = _right(benchmark.variant(claim.variant))
    return _FIGURES[claim.kind](claim, benchmark, variant) if variant else None


def _right(variant: Variant | None) -> Variant | None:
    return variant if variant and variant.status == "ok" and variant.correct is not False else None


def _ratio(claim: Published, benchmark: Benchmark, variant: Variant) -> float | None:
    baseline = _right(benchmark.variant(claim.baseline))
    if baseline is None or not variant.median_ms or not baseline.median_ms:
        return None
    return baseline.median_ms / variant.median_ms


def _time(claim: Published, benchmark: Benchmark, variant: Variant) -> float | None:
    return None if variant.median_ms is None else variant.median_ms / _MILLISECONDS[claim.unit]


def _memory(claim: Published, benchmark: Benchmark, variant: Variant) -> float | None:
    """What torch reserved, which is the most that can be called in use; in GB or as a share."""
    taken, there = variant.peak_vram_reserved_bytes, benchmark.conditions.get("memory_bytes")
    if taken is None:
        return None
    if claim.unit == "%":
        return 100 * taken / there if there else None
    return taken / 1e9


def _busy(claim: Published, benchmark: Benchmark, variant: Variant) -> float | None:
    return variant.activity.value("busy") if variant.activity else None


def _rate(claim: Published, benchmark: Benchmark, variant: Variant) -> float | None:
    work = variant.throughput
    return work.value if work and work.unit == claim.unit else None


_FIGURES: Mapping[str, Callable[[Published, Benchmark, Variant], float | None]] = {
    "ratio": _ratio,
    "time": _time,
    "memory": _memory,
    "busy": _busy,
    "rate": _rate,
}


def _weighed(found: _Evidence) -> Answer:
    """The measured figure beside the published one; only what can be weighed comes here."""
    claim, benchmark, figure = found.claim, found.benchmark, found.figure
    if benchmark is None or figure is None:
        raise ValueError(f"nothing was measured for {claim.id}")
    share = claim.unit == "%"
    away = (figure - claim.value) / 100 if share else figure / claim.value - 1
    unit = "points" if share else "%"
    where = "" if found.at_home else f" on {found.where}, not {_short(found.gpu)}"
    if abs(away) <= TOLERANCE + _ROUNDING:
        return "reproduced", f"within {TOLERANCE * 100:.0f} {unit}{where}"
    said = f"{abs(away) * 100:.0f} {unit} {'more' if away > 0 else 'less'} than published{where}"
    better = away < 0 if claim.less_is_better else away > 0
    variant = benchmark.variant(claim.variant)
    if better and variant is not None and variant.baseline:
        return "not reproduced", f"{said}: the baseline is better than that"
    return ("exceeded" if better else "not reproduced"), said


def _measured(found: _Evidence) -> str:
    if found.figure is None:
        return "-"
    return f"{amount(found.figure, found.claim.unit)}{'' if found.at_home else f' ({found.where})'}"


def _limit(found: _Evidence) -> str:
    """The limit of the claimed GPU; of a ratio the gain that the peak of the measured GPU would allow."""
    claim = found.claim
    if claim.bound is not None:
        return f"{'>=' if claim.bound.at_least else '<='} {amount(claim.bound.value, claim.unit)}"
    variant = found.benchmark.variant(claim.variant) if found.benchmark else None
    if claim.kind != "ratio" or variant is None or found.figure is None:
        return "-"
    shares = [limit.share for limit in variant.limits if limit.kind == "datasheet" and limit.share > 0]
    return f"<= {amount(found.figure / max(shares), 'x')} ({found.where})" if shares else "-"


def _short(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ").removeprefix("GeForce ")
