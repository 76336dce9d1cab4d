"""What was measured as tables of text: the one source of the terminal's and the page's.

A table is rows and columns, no layout. "-" stands for what was not measured, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from healthcheck.checks.base import size
from healthcheck.judge import claims
from healthcheck.report.model import Benchmark, Claim, Limit, Report, Variant

NONE = "-"
_MANY = 8  # cases of one scenario
_JUDGED = ("reproduced", "exceeded", "not reproduced")  # verdicts of a claim on the workload at hand
_CEILING = {"bound": "bound", "datasheet": "peak", "measured": "roofline"}  # in order of preference
# Activity's figures by name, with the lens in a word; `lenses` says it in full.
LENSES = {
    "busy": "NVML busy (any kernel ran)",
    "sm-activity": "GPM SM active",
    "sm-occupancy": "GPM SM occupancy",
    "tensor-activity": "GPM tensor active",
    "dram-activity": "GPM DRAM bandwidth",
    "memory-controller": "NVML memory (any access)",
    "power": "NVML power",
    "sm-clock": "NVML SM clock",
}
SHORT_LENSES = ("busy", "sm-activity", "tensor-activity", "dram-activity")  # what a start shows
_LENGTH = re.compile(r"\bL=(\d+)")
_DTYPE = re.compile(r"\b(bf16|fp16|fp32|tf32|fp8)\b")


@dataclass(frozen=True)
class Table:
    """`numbers` are the columns to set flush right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


def digits(value: float | None) -> str:
    """Three digits at least: 0.0857, 3.53, 112, 12,346."""
    return NONE if value is None else claims.amount(value, "").rstrip()


def gain(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}x"


def of_limit(variant: Variant | None) -> str:
    """ "57 % peak": the share of the nearest limit that is known, and whose it is."""
    limit = headline(variant) if variant else None
    return NONE if limit is None else f"{limit.share:.0%}".replace("%", " %") + f" {_CEILING[limit.kind]}"


def headline(variant: Variant) -> Limit | None:
    """The limit to tell in one figure: the case's bound, else the datasheet's peak, else the roofline's."""
    for kind in _CEILING:
        of_kind = [limit for limit in variant.limits if limit.kind == kind]
        if of_kind:
            return max(of_kind, key=lambda limit: limit.share)
    return None


def measured(benchmark: Benchmark) -> tuple[Variant, ...]:
    """The variants that ran and are right, parts left out."""
    return tuple(v for v in benchmark.variants if _counts(v) and not v.part)


def best(benchmark: Benchmark) -> Variant | None:
    """The fastest besides the baseline among those that ran and are right; None when there is none."""
    rivals = [v for v in measured(benchmark) if not v.baseline]
    return min(rivals, key=lambda v: v.median_ms or 0.0, default=None)


def scenarios(benchmarks: Iterable[Benchmark]) -> Mapping[str, tuple[Benchmark, ...]]:
    """Scenario -> its cases, in the order of the report."""
    found: dict[str, tuple[Benchmark, ...]] = {}
    for benchmark in benchmarks:
        found[benchmark.scenario] = (*found.get(benchmark.scenario, ()), benchmark)
    return found


def shown(cases: Sequence[Benchmark]) -> tuple[Benchmark, ...]:
    """The cases of one scenario that a summary shows: all, or of many those of least and greatest gain."""
    gains = {index: v.speedup for index, b in enumerate(cases) if (v := best(b)) and v.speedup}
    if len(cases) <= _MANY or len(gains) < 2:
        return tuple(cases)
    return cases[min(gains, key=lambda i: gains[i])], cases[max(gains, key=lambda i: gains[i])]


def judged(report: Report) -> tuple[Claim, ...]:
    """The report's claims; a self-test carries none, but its workload may be a published one."""
    return tuple(report.claims) or claims.judge(claims.load(), report.benchmarks)


def summary(report: Report) -> Table:
    """A line for each case shown: baseline, the best form, gain, what was claimed, the share of its limit.

    A published ratio has its own line where the variant that it is about is not the best.
    """
    weighed = {claim.id for claim in judged(report) if claim.verdict in _JUDGED}
    ratios = [c for c in claims.load().published if c.kind == "ratio" and c.id in weighed]
    rows: list[tuple[str, ...]] = []
    for benchmark in (b for cases in scenarios(report.benchmarks).values() for b in shown(cases)):
        here = (benchmark.scenario, benchmark.case)
        rows += _summary_rows(benchmark, {c.variant: c.text for c in ratios if (c.scenario, c.case) == here})
    columns = ("", "baseline", "ms", "best", "ms", "gain", "claimed", "of limit")
    table = Table("Summary", columns, tuple(rows), frozenset({2, 4, 5, 6}))
    return _slim(table, keep=lambda name: name != "claimed")


def _summary_rows(benchmark: Benchmark, claimed: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    baseline = _counted(benchmark.baseline)
    told = baseline.label if baseline else _word(benchmark.baseline or benchmark)
    head = (benchmark.full_name, told, digits(baseline.median_ms if baseline else None))
    fastest = best(benchmark)
    if fastest is None:
        yield (*head, NONE, NONE, NONE, NONE, of_limit(baseline))
    for variant in measured(benchmark):
        if variant is fastest or variant.name in claimed:
            figures = (digits(variant.median_ms), gain(variant.speedup))
            yield (*head, variant.label, *figures, claimed.get(variant.name, NONE), of_limit(variant))


def results(cases: Sequence[Benchmark]) -> Table:
    """Every variant of every case of one scenario; empty columns are left out."""
    columns = ("case", "variant", "ms", "middle half", "gain", "step", "throughput", "of limit", "VRAM")
    rows = tuple(_result_row(benchmark, v) for benchmark in cases for v in benchmark.variants)
    title = cases[0].title if cases else ""
    return _slim(
        Table(title, columns, rows, frozenset({2, 3, 4, 5, 6})), keep=lambda name: name in ("variant", "ms")
    )


def _result_row(benchmark: Benchmark, variant: Variant) -> tuple[str, ...]:
    name = f"({variant.label})" if variant.part else variant.label
    if variant.status != "ok":
        return (benchmark.case or NONE, name, _word(variant), *[NONE] * 6)
    half = NONE
    if variant.q1_ms is not None and variant.q3_ms is not None:
        half = f"{digits(variant.q1_ms)}..{digits(variant.q3_ms)}"
    work = variant.throughput
    vram = variant.peak_vram_bytes
    return (
        benchmark.case or NONE,
        name,
        digits(variant.median_ms),
        half,
        gain(variant.speedup),
        gain(variant.step_gain),
        f"{claims.amount(work.value, work.unit)}" if work else NONE,
        of_limit(variant),
        size(vram) if vram else NONE,
    )


def limits(benchmarks: Iterable[Benchmark]) -> Table:
    """Every limit that the best form of a case was held against, with its source."""
    columns = ("case", "form", "limit", "achieved", "possible", "share", "source")
    rows = [
        (
            benchmark.full_name,
            variant.label,
            limit.name,
            claims.amount(limit.achieved, limit.unit),
            claims.amount(limit.limit, limit.unit),
            f"{100 * limit.share:.0f} %",
            limit.source or NONE,
        )
        for benchmark in benchmarks
        if (variant := best(benchmark) or _counted(benchmark.baseline))
        for limit in variant.limits
    ]
    return Table("Held against what is possible", columns, tuple(rows), frozenset({3, 4, 5}))


def winners(cases: Sequence[Benchmark]) -> Table:
    """Which attention backend wins where: direction, mask and format down, sequence length across.

    Two lines each: the backend, and its throughput. Without cases that tell their length it is empty.
    """
    won: dict[str, dict[int, Variant]] = {}
    unit = ""
    for benchmark in cases:
        length = _LENGTH.search(benchmark.workload)
        rivals = measured(benchmark)
        if length and rivals:
            variant = min(rivals, key=lambda v: v.median_ms or 0.0)
            won.setdefault(_kind(benchmark.workload), {})[int(length[1])] = variant
            unit = variant.throughput.unit if variant.throughput else unit
    lengths = sorted({length for row in won.values() for length in row})
    rows: list[tuple[str, ...]] = []
    for kind, by_length in won.items():
        chosen = [by_length.get(length) for length in lengths]
        rows.append((kind, *(v.name if v else NONE for v in chosen)))
        if unit:
            rows.append((f"  {unit}", *(_work(v) for v in chosen)))
    columns = ("fastest", *(f"L={length}" for length in lengths))
    return Table(
        "Which attention backend wins where", columns, tuple(rows), frozenset(range(1, len(columns)))
    )


def _kind(workload: str) -> str:
    """ "B=1 H=32 L=512 D=128 bf16 causal forward" -> "forward causal bf16"."""
    words = workload.split()
    direction = "backward" if any(w.startswith("backward") for w in words) else "forward"
    if direction == "backward" and any("forward" in w for w in words):
        direction = "fwd+bwd"
    mask = "causal" if "causal" in words else "full"
    dtype = _DTYPE.search(workload)
    return " ".join(filter(None, (direction, mask, dtype[1] if dtype else "")))


def _work(variant: Variant | None) -> str:
    return digits(variant.throughput.value) if variant and variant.throughput else NONE


def ladder(cases: Sequence[Benchmark]) -> Table:
    """Compilation step by step: each step's own gain, what compiling cost, when that has paid."""
    columns = ("case", "step", "ms", "step gain", "gain", "cold s", "warm s", "pays after")
    rows = [
        (
            benchmark.case or NONE,
            variant.label,
            digits(variant.median_ms),
            gain(variant.step_gain),
            gain(variant.speedup),
            digits(variant.compile_seconds),
            digits(variant.compile_warm_seconds),
            NONE if variant.pays_after_calls is None else f"{variant.pays_after_calls:,} calls",
        )
        for benchmark in cases
        for variant in measured(benchmark)
    ]
    return Table("Compilation, step by step", columns, tuple(rows), frozenset(range(2, 8)))


def activity(benchmarks: Iterable[Benchmark], names: Sequence[str] = tuple(LENSES)) -> Table:
    """Lenses down, cases across: what each saw of the best form while it ran back to back, and VRAM."""
    seen = [(b, v) for b in benchmarks if b.device == "cuda" and (v := best(b) or _counted(b.baseline))]
    lines = [(LENSES[name], [_seen(variant, name) for _, variant in seen]) for name in names]
    lines.append(("VRAM peak (torch allocated)", [_bytes(v.peak_vram_bytes) for _, v in seen]))
    lines.append(("VRAM peak (torch reserved)", [_bytes(v.peak_vram_reserved_bytes) for _, v in seen]))
    rows = tuple((heading, *cells) for heading, cells in lines if any(cell != NONE for cell in cells))
    columns = ("utilisation, best form", *(b.full_name for b, _ in seen))
    return Table("Utilisation", columns, rows, frozenset(range(1, len(columns))))


def lenses(benchmarks: Iterable[Benchmark]) -> Table:
    """What each lens means, in the words of the sampler; one that saw nothing says why."""
    rows: dict[str, tuple[str, ...]] = {}
    for benchmark in benchmarks:
        for variant in benchmark.variants:
            for figure in variant.activity.figures if variant.activity else ():
                seen = figure.value is not None
                if seen or figure.name not in rows:
                    state = "measured" if seen else f"not measured: {figure.reason}"
                    rows[figure.name] = (figure.name, figure.lens, state)
    return Table("Lenses", ("figure", "what it says", "here"), tuple(rows.values()))


def unseen(benchmarks: Iterable[Benchmark], names: Sequence[str] = tuple(LENSES)) -> str:
    """One line when lenses gave nothing, with the first reason; nothing where all of them saw something."""
    dark = [row for row in lenses(benchmarks).rows if row[2] != "measured" and row[0] in names]
    if not dark:
        return ""
    names = ", ".join(row[0] for row in dark)
    return f"{names}: {dark[0][2]}"


def _bytes(count: int | None) -> str:
    return NONE if count is None else size(count)


def _seen(variant: Variant, name: str) -> str:
    figure = variant.activity.figure(name) if variant.activity else None
    if figure is None or figure.value is None:
        return NONE
    return f"{figure.value:.0f} {figure.unit}"


def claimed(report: Report, everything: bool = True) -> Table:
    """Published figures beside measured ones; `everything`: those that no scenario measures too."""
    planned = {claim.id for claim in claims.load().published if claim.planned}
    columns = ("claim", "claimed", "measured", "limit", "verdict", "why")
    rows = tuple(
        (c.title, c.claimed, c.measured, c.limit, c.verdict, c.why)
        for c in judged(report)
        if everything or c.verdict != "not run" or c.id not in planned
    )
    return Table("Published figures", columns, rows)


def conditions(report: Report) -> Table:
    """Under what conditions it was measured: what every benchmark shares; the rest is in report.json."""
    ran = [b for b in report.benchmarks if b.conditions]
    shared = [
        (name, _plain(value))
        for name, value in (ran[0].conditions.items() if ran else ())
        if name not in ("gpu", "seed", "batch") and all(b.conditions.get(name) == value for b in ran)
    ]
    for name, value in (ran[0].conditions.get("gpu") or {}).items() if ran else ():
        shared.append((f"GPU: {name.replace('_', ' ')}", _plain(value)))
    held = sorted(
        {reason for b in ran for v in b.variants if v.activity for reason in v.activity.throttle or ()}
    )
    shared.append(("clocks held down by", ", ".join(held) or "nothing seen"))
    return Table("Conditions", ("condition", "value"), tuple(shared) if ran else ())


def remarks(benchmarks: Sequence[Benchmark]) -> Iterator[str]:
    """What has to be said beside the figures: what did not run, is wrong, or is not to be believed.

    What holds for many cases is one line: a package that is absent is absent in all of them.
    """
    said: dict[str, list[str]] = {}
    for benchmark in benchmarks:
        for words in _remarks(benchmark):
            said.setdefault(words, []).append(benchmark.full_name)
    for words, names in said.items():
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        yield f"{', '.join(names[:2])}{more}: {words}"
    for name, cases in scenarios(benchmarks).items():
        if len(shown(cases)) < len(cases):
            yield f"{name}: of {len(cases)} cases those of the least and of the greatest gain"


def _remarks(benchmark: Benchmark) -> Iterator[str]:
    if benchmark.status != "ok":
        yield f"{benchmark.status}: {benchmark.reason}"
    for variant in benchmark.variants:
        if variant.status != "ok" and f"{variant.name}: {variant.reason}" not in benchmark.reason:
            yield f"{variant.label}: {variant.status}: {variant.reason}"
    fastest = best(benchmark)
    gained = fastest.speedup if fastest else None
    if fastest and gained and gained < 1 and not benchmark.control:
        yield f"nothing is faster than the baseline: {fastest.label} takes {1 / gained:.2f}x its time"
    baseline = benchmark.baseline
    if fastest and baseline and gained and gained > 1 and _overlap(fastest, baseline):
        yield f"the gain of {gained:.2f}x is within the spread of the samples: their middle halves overlap"
    if benchmark.disturbed:
        yield f"not to be believed: {benchmark.disturbed}"
    control = benchmark.control
    if control is not None and control.holds is not None:
        word = "holds" if control.holds else "DOES NOT HOLD"
        yield f"negative control {word} ({control.low:g}..{control.high:g}x): {control.why}"


def _overlap(faster: Variant, slower: Variant) -> bool:
    return faster.q3_ms is not None and slower.q1_ms is not None and slower.q1_ms <= faster.q3_ms


def _slim(table: Table, keep: Callable[[str], bool]) -> Table:
    """Without the columns in which nothing stands; those that `keep` names stay in any case."""
    kept = [
        index
        for index, name in enumerate(table.columns)
        if keep(name) or any(row[index] != NONE for row in table.rows)
    ]
    return Table(
        table.title,
        tuple(table.columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
        frozenset(new for new, old in enumerate(kept) if old in table.numbers),
    )


def _counts(variant: Variant) -> bool:
    return variant.status == "ok" and variant.correct is not False and bool(variant.median_ms)


def _counted(variant: Variant | None) -> Variant | None:
    return variant if variant and _counts(variant) else None


def _word(found: Benchmark | Variant) -> str:
    return {"ok": "not measured", "skip": "not run", "fail": "FAILED"}[found.status]


def _plain(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
