"""The report for people: 80 columns, what is wrong before what to do, nothing wrapped that is to be copied.

Only ASCII is written: reports end up in logs and terminals of every kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from healthcheck.checks.base import size
from healthcheck.checks.cuda import four_versions
from healthcheck.checks.registry import group
from healthcheck.facts.collect import Facts
from healthcheck.facts.gpu import Gpu
from healthcheck.report.model import Benchmark, CheckResult, Report, Variant
from healthcheck.result import Exit, Status

WIDTH = 80
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
_CLOSING = {
    Exit.OK: ("All checks that apply have passed.", "green"),
    Exit.FAILED: ("Something that was checked is wrong.", "bold red"),
    Exit.UNUSABLE: ("This environment cannot be used as it is.", "bold red"),
}


def console(stream: TextIO) -> Console:
    """A console of 80 columns on `stream`; rich leaves colour out where it is no terminal."""
    return Console(file=stream, width=WIDTH, highlight=False, emoji=False, markup=False)


def render(report: Report, out: Console) -> None:
    """Write the whole report."""
    _head(report, out)
    _groups(report, out)
    for result in report.results:
        if _notable(result, report):
            _problem(result, out, required=result.code in report.required)
    _skipped(report, out)
    _benchmarks(report, out)
    _closing(report, out)


def facts(found: Facts, out: Console) -> None:
    """What is there, without a judgement."""
    for label, value in _facts_lines(found):
        _pair(label, value, out)


def _head(report: Report, out: Console) -> None:
    build = f", build {report.build_id}" if report.build_id else ""
    out.print(Text(f"Dyno {report.dyno} {report.command}{build}", style="bold"))
    for label, value in _machine(report.facts):
        _pair(label, value, out)


def _machine(found: Facts) -> Iterator[tuple[str, str]]:
    for gpu in found.gpu.gpus or ():
        yield "GPU", _gpu(gpu)
        yield "VRAM", _vram(gpu)
    if not found.gpu.visible:
        yield "GPU", "not used (CPU use declared)" if found.device == "cpu" else "none visible"
        yield "CPU", _cpu(found)
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
    """One line for each group: how many of its checks passed, and what did not in a word."""
    out.print()
    groups: dict[str, list[CheckResult]] = {}
    for result in report.results:
        groups.setdefault(group(result.code), []).append(result)
    for name, results in groups.items():
        worst = _worst(results)
        others = [
            f"{count} {_COUNTED[status]}"
            for status in (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.SKIP)
            if (count := sum(r.status is status for r in results))
        ]
        passed = sum(r.status is Status.PASS for r in results)
        line = Text(f"{worst.value:<8}", style=_STYLE[worst])
        line.append(f"{name:<12}", style="bold")
        line.append(
            f"{passed} of {len(results)} passed{', ' if others else ''}{', '.join(others)}", style="none"
        )
        out.print(line)


def _worst(results: list[CheckResult]) -> Status:
    order = (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.PASS)
    return next((s for s in order if any(r.status is s for r in results)), Status.SKIP)


def _notable(result: CheckResult, report: Report) -> bool:
    """Passes are counted, skips are listed; a skip that was required is a failure and is told in full."""
    if result.status is Status.SKIP:
        return result.code in report.required
    return result.status is not Status.PASS


def _problem(result: CheckResult, out: Console, required: bool) -> None:
    out.print()
    line = Text(f"{result.status.value.upper()} {result.code}", style=_STYLE[result.status])
    line.append(f" {result.title}{' (required)' if required else ''}", style="bold")
    out.print(line)
    out.print(Text(result.summary.replace("\n", " ")))
    for remedy in result.remedy.splitlines():
        # One line of output for one line to copy: the terminal may wrap it, we do not.
        out.print(Text(f"  {remedy}", style="cyan"), soft_wrap=True)


def _skipped(report: Report, out: Console) -> None:
    """Skips by name, gathered under their reason, so that one missing GPU is one paragraph."""
    reasons: dict[str, list[str]] = {}
    for result in report.results:
        if result.status is Status.SKIP and not _notable(result, report):
            reasons.setdefault(result.summary.rstrip("."), []).append(result.title)
    if reasons:
        out.print()
    for reason, titles in reasons.items():
        out.print(Text(f"skipped  {', '.join(titles)}: {reason}", style="dim"))


def _benchmarks(report: Report, out: Console) -> None:
    if not report.benchmarks:
        return
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for heading in ("scenario", "baseline", "ms", "best", "ms", "gain", "correct"):
        table.add_column(heading, justify="right" if heading in ("ms", "gain") else "left", overflow="fold")
    for benchmark in report.benchmarks:
        table.add_row(*_row(benchmark))
    out.print()
    device = next((b.device_name for b in report.benchmarks if b.device_name), report.device)
    form = ", short form" if all(b.short for b in report.benchmarks) else ""
    out.print(Text(f"Benchmarks on {device}{form} (medians)", style="bold"))
    out.print(table)
    for benchmark in report.benchmarks:
        for line in _remarks(benchmark, report.created):
            out.print(Text(line, style="dim"))


def _row(benchmark: Benchmark) -> tuple[str, ...]:
    baseline = next((v for v in benchmark.variants if v.baseline), None)
    best = fastest(benchmark)
    if baseline is None or baseline.median_ms is None:
        return (benchmark.scenario, benchmark.status, "-", "-", "-", "-", "-")
    correct = _correct(benchmark)
    if best is None:
        return (benchmark.scenario, baseline.label, _ms(baseline), "-", "-", "-", correct)
    gain = f"{best.speedup:.2f}x" if best.speedup is not None else "-"
    return (benchmark.scenario, baseline.label, _ms(baseline), best.label, _ms(best), gain, correct)


def fastest(benchmark: Benchmark) -> Variant | None:
    """The fastest variant besides the baseline among those that are not wrong; None when there is none."""
    right = [
        v
        for v in benchmark.variants
        if v.status == "ok" and v.correct is not False and v.median_ms is not None and not v.baseline
    ]
    return min(right, key=lambda v: v.median_ms or 0.0, default=None)


def _correct(benchmark: Benchmark) -> str:
    said = [v.correct for v in benchmark.variants if v.status != "skip"]
    if any(answer is False for answer in said):
        return "NO"
    return "yes" if said and all(said) else "not checked"


def _ms(variant: Variant) -> str:
    value = variant.median_ms
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _remarks(benchmark: Benchmark, now: datetime) -> Iterator[str]:
    name = benchmark.scenario
    if benchmark.workload:
        yield f"{name}: {benchmark.workload}"
    if benchmark.status != "ok":
        yield f"{name}: {benchmark.status}: {benchmark.reason}"
    for variant in benchmark.variants:
        if variant.status != "ok":
            yield f"{name}: {variant.label}: {variant.status}: {variant.reason}"
    if benchmark.cached:
        yield f"{name}: measured {_age(benchmark.measured, now)} ago and kept; anew: bench run {name}"
    if benchmark.device == "cuda":
        yield from _utilisation(benchmark)


def _utilisation(benchmark: Benchmark) -> Iterator[str]:
    """Every figure with the lens it was seen through; what was not measured says so."""
    found = benchmark.utilisation
    if found is None or found.gpu_percent is None:
        yield f"{benchmark.scenario}: utilisation: not measured"
    else:
        memory = "not measured" if found.memory_percent is None else f"{found.memory_percent:.0f} %"
        yield f"{benchmark.scenario}: GPU busy {found.gpu_percent:.0f} % ({found.gpu_lens}; whole run)"
        yield f"{benchmark.scenario}: memory busy {memory} ({found.memory_lens})"
    peaks = [v.peak_vram_bytes for v in benchmark.variants if v.peak_vram_bytes is not None]
    if peaks:
        yield f"{benchmark.scenario}: peak VRAM {size(max(peaks))} allocated by torch"


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
    text, style = _CLOSING.get(report.exit_code, (f"Ended with {report.exit_code.name}.", "bold"))
    line = Text(text, style=style)
    line.append(f" {report.seconds:.1f} s, exit code {int(report.exit_code)}.", style="none")
    out.print(line)
    out.print(Text(f"Next: {_next(report)}"), soft_wrap=True)


def _next(report: Report) -> str:
    if report.exit_code is not Exit.OK:
        first = next((r for r in report.results if r.status is Status.FAIL), None)
        return f"the lines under {first.code} above" if first else "see the required checks above"
    device = " --device cpu" if report.device == "cpu" else ""
    if report.command.startswith("bench"):
        return f"bench run{device} --json FILE  # keeps every sample"
    return f"bench run{device}  # the benchmarks at length"


def _pair(label: str, value: str, out: Console) -> None:
    out.print(Text.assemble((f"{label:<15} ", "bold"), value))
