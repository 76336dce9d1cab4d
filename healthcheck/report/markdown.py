"""A report as a Markdown page: conditions, results, limits, activity, claims, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from healthcheck.checks.cuda import four_versions
from healthcheck.judge import claims
from healthcheck.report import benchmarks as tables
from healthcheck.report.benchmarks import Table
from healthcheck.report.model import Benchmark, Report


def render(report: Report) -> str:
    """A whole page, of nothing but `report` and the published figures with their arithmetic."""
    sections = (
        _head(report),
        _conditions(report),
        _summary(report),
        _scenarios(report),
        _limits(report),
        _activity(report),
        _claims(report),
        _findings(),
    )
    return "\n".join(line for section in sections for line in section).rstrip() + "\n"


def _head(report: Report) -> Iterator[str]:
    device = next((b.device_name for b in report.benchmarks if b.device_name), None) or report.device
    torch = next((b.torch for b in report.benchmarks if b.torch), None)
    build = f"build {report.build_id}" if report.build_id else "from the repository, not from an image"
    yield f"# Results on {_escaped(device)}"
    yield ""
    yield (
        f"Dyno {report.dyno}, `{report.command}`, {report.created:%Y-%m-%d %H:%M} UTC, "
        f"torch {torch or 'unknown'}, {build}. "
        f"It took {report.seconds:.0f} s and ended with exit code {int(report.exit_code)}."
    )
    yield ""
    yield (
        "Times are medians, in milliseconds. Every result was compared with a reference before it was timed "
        "and after; what was wrong has no figures. A dash is what was not measured."
    )
    yield ""


def _conditions(report: Report) -> Iterator[str]:
    versions = tuple((name, value or "unknown") for name, value in four_versions(report.facts).items())
    table = tables.conditions(report)
    yield from _section(replace(table, columns=("condition", "value"), rows=(*versions, *table.rows)))


def _summary(report: Report) -> Iterator[str]:
    yield from _section(tables.summary(report))
    yield from _list(tables.remarks(report.benchmarks))


def _scenarios(report: Report) -> Iterator[str]:
    for name, cases in tables.scenarios(report.benchmarks).items():
        yield from _section(tables.results(cases))
        own = {"attention": tables.winners, "compile": tables.ladder}.get(name)
        if own is not None:
            yield from _section(own(cases), "###")
        yield from _list(f"{case.case or name}: {case.workload}" for case in cases if case.workload)
        yield from _list(_notes(cases))


def _notes(cases: Sequence[Benchmark]) -> Iterator[str]:
    """Each note once, with the variants that it belongs to."""
    said: dict[str, dict[str, None]] = {}
    for case in cases:
        for variant in case.variants:
            for note in variant.notes:
                said.setdefault(note, {})[variant.label] = None
    for note, labels in said.items():
        yield f"{', '.join(labels)}: {note}"


def _limits(report: Report) -> Iterator[str]:
    yield from _section(tables.limits(report.benchmarks))


def _activity(report: Report) -> Iterator[str]:
    yield from _section(_transposed(tables.activity(report.benchmarks)))
    yield from _section(tables.lenses(report.benchmarks), "###")


def _claims(report: Report) -> Iterator[str]:
    judged = tables.judged(report)
    yield from _section(tables.claimed(report))
    yield f"The published figures are those of an {_escaped(claims.load().gpu)}. What they leave open:"
    yield ""
    yield from _list(f"{claim.title}: {', '.join(claim.missing)}" for claim in judged if claim.missing)


def _findings() -> Iterator[str]:
    yield "## What does not add up on paper"
    yield ""
    for finding in claims.load().findings:
        yield f"### {_escaped(finding.title)}"
        yield ""
        yield _escaped(finding.text)
        if finding.argument:
            yield "(An argument, not a measurement: it leans on figures that others have reported.)"
        yield ""
        yield from (f"- `{each.formula}` = {each.gives}" for each in finding.sums)
        yield ""


def _section(table: Table, level: str = "##") -> Iterator[str]:
    """A heading and its table; nothing at all where there are no rows."""
    if not table.rows:
        return
    yield f"{level} {_escaped(table.title)}"
    yield ""
    yield _row(table.columns)
    yield _row("---:" if i in table.numbers else "---" for i in range(len(table.columns)))
    yield from (_row(map(_escaped, row)) for row in table.rows)
    yield ""


def _row(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(lines: Iterator[str]) -> Iterator[str]:
    found = [f"- {_escaped(line)}" for line in lines]
    yield from [*found, ""] if found else ()


def _transposed(table: Table) -> Table:
    """Cases down and lenses across: a page grows downwards."""
    columns = ("case", *(row[0] for row in table.rows))
    rows = tuple(
        (case, *(row[index] for row in table.rows)) for index, case in enumerate(table.columns) if index
    )
    return Table(table.title, columns, rows if table.rows else (), frozenset(range(1, len(columns))))


def _escaped(text: str) -> str:
    """On one line, with nothing that Markdown would take for its own."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|*_`[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
