"""The report for people: 80 columns, what is wrong before what to do, nothing wrapped that is to be copied.

Only ASCII is written: reports end up in logs and terminals of every kind.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from healthcheck.checks.base import size
from healthcheck.checks.cuda import four_versions
from healthcheck.checks.registry import group
from healthcheck.facts.gpu import Gpu
from healthcheck.facts.snapshot import Facts
from healthcheck.report import benchmarks as tables
from healthcheck.report.model import Benchmark, CheckResult, Report
from healthcheck.result import Exit, Status

WIDTH = 80
_NARROWEST = 20  # columns: below it no word of the report would stay whole
_ACROSS = 5  # cases beside one another
_STYLE = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
    Status.UNKNOWN: "magenta",
}
_COUNTED = {
    Status.FAIL: "failed",
    Status.WARN: "to look at",
    Status.UNKNOWN: "unknown",
    Status.SKIP: "skipped",
}
_CUT_OFF = "Interrupted: this is what there was until then."
_CLOSING = {
    Exit.OK: ("All checks that apply have passed.", "green"),
    Exit.HUNG_UP: (_CUT_OFF, "bold red"),
    Exit.INTERRUPTED: (_CUT_OFF, "bold red"),
    Exit.TERMINATED: (_CUT_OFF, "bold red"),
    Exit.FAILED: ("Something that was checked is wrong.", "bold red"),
    Exit.UNUSABLE: ("This environment cannot be used as it is.", "bold red"),
}


class _Console(Console):
    """Leaves a closed pipe to its caller, where rich would end the program with a code of its own."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(stream: TextIO) -> Console:
    """A console on `stream`, 80 columns wide, or as wide as the terminal where that is narrower.

    Rich leaves colour out where it is no terminal.
    """
    width = max(_NARROWEST, min(WIDTH, _columns(stream)))
    return _Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def _columns(stream: TextIO) -> int:
    """Of the terminal behind `stream`; WIDTH where there is none, or it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH
    except (OSError, ValueError):  # no terminal, no descriptor
        return WIDTH


def render(report: Report, out: Console) -> None:
    """Write the whole report."""
    _head(report, out)
    _groups(report, out)
    _problems(report, out)
    _skipped(report, out)
    _benchmarks(report, out)
    _closing(report, out)


def text(report: Report) -> str:
    """The whole report without colour, as a file keeps it."""
    stream = io.StringIO()
    render(report, console(stream))
    return stream.getvalue()


def facts(found: Facts, out: Console) -> None:
    """What is there, without a judgement."""
    for label, value in _facts_lines(found):
        _pair(label, value, out)


def _head(report: Report, out: Console) -> None:
    build = f", build {report.build_id}" if report.build_id else ""
    out.print(Text(f"Dyno {report.dyno} {report.command}{build}", style="bold"))
    _pairs(_machine(report.facts), out)
    _pairs(_versions(report.facts), out)


def _machine(found: Facts) -> Iterator[tuple[str, str]]:
    for gpu in found.gpu.gpus or ():
        yield "GPU", _gpu(gpu)
        yield "VRAM", _vram(gpu)
    if not found.gpu.visible:
        yield "GPU", "not used (CPU use declared)" if found.device == "cpu" else "none visible"
        yield "CPU", _cpu(found)


def _versions(found: Facts) -> Iterator[tuple[str, str]]:
    nothing = "none visible" if not found.driver.device_nodes else "unknown"
    for label, value in four_versions(found).items():
        yield label, value or (nothing if label.startswith("driver") else "unknown")


def _gpu(gpu: Gpu) -> str:
    if gpu.error is not None:
        return f"{gpu.index}: does not answer ({gpu.error})"
    return f"{gpu.index}: {gpu.name or 'unknown'}, capability {gpu.capability or 'unknown'}"


def _vram(gpu: Gpu) -> str:
    total = size(gpu.memory_total) if gpu.memory_total is not None else "unknown"
    used = f", {size(gpu.memory_used)} in use" if gpu.memory_used is not None else ""
    return f"{gpu.index}: {total}{used}"


def _cpu(found: Facts) -> str:
    container = found.container
    limit = f", limited to {container.cpu_limit:g}" if container.cpu_limit is not None else ""
    cores = f"{container.cpus} cores" if container.cpus is not None else "cores unknown"
    return f"{container.cpu_model or 'unknown'}, {cores}{limit}"


def _facts_lines(found: Facts) -> Iterator[tuple[str, str]]:
    container, stack = found.container, found.stack
    yield from _machine(found)
    yield from _versions(found)
    yield "NVML", found.gpu.error or "answers"
    yield "libcuda.so.1", ", ".join(found.driver.libcuda or ()) or "none"
    yield "device nodes", ", ".join(found.driver.device_nodes or ()) or "none"
    yield "user", f"uid {container.uid}, gid {container.gid}, USER={container.user or ''}"
    yield "/dev/shm", size(container.shm_bytes) if container.shm_bytes is not None else "unknown"
    yield "memory limit", size(container.memory_limit) if container.memory_limit is not None else "none known"
    yield "stack's Python", f"{stack.python}, {len(stack.distributions or ())} distributions"
    yield "torch", stack.torch_version or "unknown"
    for program in stack.programs:
        yield program.name, program.version or program.error or "not on PATH"
    for place in container.directories:
        words = [
            "absent" if place.exists is False else "",
            "not writable" if place.writable is False else "",
            "noexec" if place.executable is False else "",
        ]
        yield place.role, f"{place.path} {', '.join(filter(None, words))}".rstrip()
    manifest = found.manifest
    build = manifest.manifest.build_id if manifest.manifest else manifest.error or "absent"
    yield "manifest", f"{manifest.path}: {build}"


def _groups(report: Report, out: Console) -> None:
    """How many checks of each group passed, and what did not in a word: two groups a line where they fit."""
    out.print()
    groups: dict[str, list[CheckResult]] = {}
    for result in report.results:
        groups.setdefault(group(result.code), []).append(result)
    _side_by_side([_counts(name, results) for name, results in groups.items()], out)


def _counts(name: str, results: list[CheckResult]) -> Text:
    worst = _worst(results)
    others = [
        f"{count} {_COUNTED[status]}"
        for status in (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.SKIP)
        if (count := sum(r.status is status for r in results))
    ]
    passed = f"{sum(r.status is Status.PASS for r in results)} of {len(results)} passed"
    line = Text(f"{worst.value:<8}", style=_STYLE[worst])
    line.append(f"{name:<12}", style="bold")
    return line.append(", ".join([passed, *others]), style="none")


def _side_by_side(lines: list[Text], out: Console) -> None:
    """Two short lines share one, in their order; a long one stands alone."""
    half = out.width // 2 - 1
    left: Text | None = None
    for line in lines:
        if left is not None and line.cell_len <= half:
            left.pad_right(half + 1 - left.cell_len)
            out.print(left.append_text(line))
            left = None
            continue
        if left is not None:
            out.print(left)
        left = line if line.cell_len < half else None
        if left is None:
            out.print(line)
    if left is not None:
        out.print(left)


def _worst(results: list[CheckResult]) -> Status:
    order = (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.PASS)
    return next((s for s in order if any(r.status is s for r in results)), Status.SKIP)


def _notable(result: CheckResult, report: Report) -> bool:
    """Passes are counted, skips are listed; a skip that was required is a failure and is told in full."""
    if result.status is Status.SKIP:
        return result.code in report.required
    return result.status is not Status.PASS


def _problems(report: Report, out: Console) -> None:
    """What is wrong, gathered by its cure: one cause that breaks ten libraries is one paragraph."""
    cures: dict[str, list[CheckResult]] = {}
    for result in report.results:
        if _notable(result, report):
            cures.setdefault(result.remedy or result.code, []).append(result)
    for results in cures.values():
        out.print()
        said: dict[str, list[CheckResult]] = {}
        for result in results:
            said.setdefault(result.summary, []).append(result)
        for summary, same in said.items():
            for result in same:
                _complaint(result, out, required=result.code in report.required)
            out.print(_plain(summary))
        for remedy in results[0].remedy.splitlines():
            # One line of output for one line to copy: the terminal may wrap it, we do not.
            out.print(_plain(f"  {remedy}", "cyan"), soft_wrap=True)


def _complaint(result: CheckResult, out: Console, required: bool) -> None:
    line = Text(f"{result.status.value.upper()} {result.code}", style=_STYLE[result.status])
    out.print(line.append_text(_plain(f" {result.title}{' (required)' if required else ''}", "bold")))


def _skipped(report: Report, out: Console) -> None:
    """Skips by name, gathered under their reason, so that one missing GPU is one paragraph."""
    reasons: dict[str, list[str]] = {}
    for result in report.results:
        if result.status is Status.SKIP and not _notable(result, report):
            reasons.setdefault(result.summary.rstrip("."), []).append(result.title)
    if reasons:
        out.print()
    for reason, titles in reasons.items():
        out.print(_plain(f"skipped  {', '.join(titles)}: {reason}", "dim"))


def _benchmarks(report: Report, out: Console) -> None:
    """The summary and the lenses; at length (bench) every scenario's own tables and the claims too."""
    if not report.benchmarks:
        return
    device = next((b.device_name for b in report.benchmarks if b.device_name), report.device)
    form = ", short form" if all(b.short for b in report.benchmarks) else ""
    out.print()
    out.print(_plain(f"Benchmarks on {device}{form} (medians of checked results)", "bold"))
    _table(tables.summary(report), out)
    for line in (*tables.remarks(report.benchmarks), *_kept(report)):
        out.print(_plain(line, "dim"))
    if report.command.startswith("bench"):
        _at_length(report, out)
    else:
        _activity(report.benchmarks, out, tables.SHORT_LENSES)


def _at_length(report: Report, out: Console) -> None:
    for name, cases in tables.scenarios(report.benchmarks).items():
        own = {"attention": tables.winners, "compile": tables.ladder}.get(name)
        table = own(cases) if own else None
        if table is None or not table.rows:
            table = tables.results(cases)
        _titled(table, out)
        _activity(tables.shown(cases), out, tuple(tables.LENSES))
    _titled(_without(tables.claimed(report, everything=False), "why"), out)
    out.print(Text("Why, and what does not add up on paper: bench report FILE --markdown", style="dim"))


def _activity(cases: Sequence[Benchmark], out: Console, lenses: Sequence[str]) -> None:
    """As many cases across as 80 columns hold; what no lens saw is said in a line."""
    if not any(b.device == "cuda" for b in cases):
        return
    for start in range(0, len(cases), _ACROSS):
        table = tables.activity(cases[start : start + _ACROSS], lenses)
        if table.rows:
            _table(table, out)
    dark = tables.unseen(cases, lenses)
    if dark:
        out.print(_plain(f"not seen: {dark}", "dim"))


def _titled(table: tables.Table, out: Console) -> None:
    if table.rows:
        out.print()
        out.print(_plain(table.title, "bold"))
        _table(table, out)


def _table(table: tables.Table, out: Console) -> None:
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for index, heading in enumerate(table.columns):
        shown.add_column(
            _plain(heading), justify="right" if index in table.numbers else "left", overflow="fold"
        )
    for row in table.rows:
        shown.add_row(*map(_plain, row))
    out.print(shown)


def _without(table: tables.Table, column: str) -> tables.Table:
    at = table.columns.index(column)
    rows = tuple((*row[:at], *row[at + 1 :]) for row in table.rows)
    return replace(table, columns=(*table.columns[:at], *table.columns[at + 1 :]), rows=rows)


def _kept(report: Report) -> Iterator[str]:
    """Which results were measured at an earlier start, and how long ago."""
    ages: dict[str, list[str]] = {}
    for name, cases in tables.scenarios(report.benchmarks).items():
        if any(b.cached for b in cases):
            ages.setdefault(_age(cases[0].measured, report.created), []).append(name)
    for age, names in ages.items():
        yield f"{', '.join(names)}: measured {age} ago and kept; anew: bench run {' '.join(names)}"


def _age(measured: datetime | None, now: datetime) -> str:
    if measured is None:
        return "an unknown time"
    seconds = max((now.astimezone(timezone.utc) - measured.astimezone(timezone.utc)).total_seconds(), 0)
    for name, span in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * span:
            return f"{seconds / span:.0f} {name}"
    return f"{seconds:.0f} seconds"


def _closing(report: Report, out: Console) -> None:
    out.print()
    never_ran = sorted(set(report.required) - {r.code for r in report.results})
    for code in never_ran:
        out.print(Text(f"FAIL {code} was required, but no check of that code ran.", style="bold red"))
    text, style = _verdict(report)
    line = Text(text, style=style)
    line.append(f" {report.seconds:.1f} s, exit code {int(report.exit_code)}.", style="none")
    out.print(line)
    out.print(Text(f"Next: {_next(report)}"), soft_wrap=True)


def _verdict(report: Report) -> tuple[str, str]:
    """One sentence and its style. With a warning in the report nothing says that all has passed."""
    doubts = [
        f"{count} {_COUNTED[status]}"
        for status in (Status.WARN, Status.UNKNOWN)
        if (count := sum(r.status is status for r in report.results))
    ]
    if report.exit_code is Exit.OK and doubts:
        return f"Nothing that was checked is wrong; {' and '.join(doubts)}.", "yellow"
    return _CLOSING.get(report.exit_code, (f"Ended with {report.exit_code.name}.", "bold"))


def _next(report: Report) -> str:
    if report.exit_code in (Exit.HUNG_UP, Exit.INTERRUPTED, Exit.TERMINATED):
        return "the same command again, for what is missing above"
    if report.exit_code is not Exit.OK:
        first = next((r for r in report.results if r.status is Status.FAIL), None)
        return f"the lines under {first.code} above" if first else "see the required checks above"
    device = " --device cpu" if report.device == "cpu" else ""
    if report.command.startswith("bench"):
        return f"bench run{device} --json FILE  # keeps every sample"
    return f"bench run{device}  # the benchmarks at length"


def _pair(label: str, value: str, out: Console) -> None:
    out.print(_labelled(label, value))


def _pairs(pairs: Iterator[tuple[str, str]], out: Console) -> None:
    _side_by_side([_labelled(label, value) for label, value in pairs], out)


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label:<15} ", "bold"), _plain(value))


def _plain(text: str, style: str = "") -> Text:
    """What others say may hold anything: on one line, and nothing that a terminal would act on."""
    printable = (" " if c.isspace() else c if c.isprintable() else "?" for c in text)
    return Text("".join(printable), style=style)
