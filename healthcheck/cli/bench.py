"""`bench`: list the scenarios, run them, show a kept report again.

Exit codes: 0 fine, 1 a benchmark failed or was wrong, 2 usage, 3 the environment is unusable.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from healthcheck import catalogue, options, output, verify
from healthcheck.checks import registry
from healthcheck.checks.cuda import initialisation
from healthcheck.cli.shared import (
    Device,
    Json,
    Junit,
    List,
    Require,
    TimeLimit,
    application,
    as_json,
    finish,
    run,
    show_codes,
    shown_progress,
)
from healthcheck.drive import budget, exercises, process, scenarios
from healthcheck.facts.collect import collect
from healthcheck.judge import claims
from healthcheck.report import junit as junit_report
from healthcheck.report import markdown, terminal
from healthcheck.report.model import Benchmark, Report
from healthcheck.result import Exit
from healthcheck.signals import Interrupted

BENCH_LIMIT = 3600.0  # seconds

app = application(
    "bench", "Measures this GPU: scenarios with a baseline and optimised variants, results checked."
)

Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="DIR",
        help="Keep report.json, junit.xml and log.txt in a new directory DIR/<time>/.",
    ),
]


@app.command("list")
def list_command(json: Json = None) -> None:
    """The scenarios, and which of them have a CPU form."""
    known = _known()
    if json is None:
        for info in known.values():
            gpu_only = "" if info.has_cpu_form else " (GPU only)"
            output.show(f"{info.name:<16}{info.title}{gpu_only}\n")
        return
    listed = [{"name": i.name, "title": i.title, "has_cpu_form": i.has_cpu_form} for i in known.values()]
    output.write(json, json_module.dumps(listed, indent=2) + "\n")


@app.command("run")
def run_command(
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Default: all.")] = None,
    short: Annotated[bool, typer.Option("--short", help="The form that the self-test runs.")] = False,
    device: Device = None,
    json: Json = None,
    junit: Junit = None,
    kept_in: Output = None,
    require: Require = None,
    time_limit: TimeLimit = None,
    list_codes: List = False,
) -> None:
    """Run scenarios one after another, and hold what they give against peaks and published claims."""
    known = _known()
    chosen_names = list(dict.fromkeys(names or known))
    unknown = [name for name in chosen_names if name not in known]
    if unknown:
        raise output.Stop(f"unknown scenario {', '.join(unknown)}; known: {', '.join(known)}.", Exit.USAGE)
    codes = catalogue.of_bench(chosen_names)
    if list_codes:
        return show_codes(codes)
    chosen = options.check(
        device=device,
        time_limit=time_limit,
        default_limit=BENCH_LIMIT,
        required=require,
        json=json,
        junit=junit,
        known=codes,
    )
    results = None if kept_in is None else output.fresh_directory(Path(kept_in), datetime.now(timezone.utc))
    deadline = budget.Deadline(chosen.time_limit)
    log: list[str] = []
    found = _found(chosen.device, deadline)
    signal: Interrupted | None = None
    if found.device == "cuda" or chosen.device == "cpu":
        with narrated(log) as progress:
            session = scenarios.Session(
                device=found.device,
                short=short,
                deadline=deadline,
                gpu_index=scenarios.gpu_index(found.facts),
                progress=progress,
            )
            measured, signal = _measured([known[name] for name in chosen_names], session)
        benched = scenarios.judged(measured)
        answers = (*found.results, *scenarios.results(benched))
        found = replace(found, benchmarks=benched, results=answers)
    report = verify.assemble(
        "bench run",
        found,
        deadline=deadline,
        required=chosen.required,
        claims=claims.judge(claims.load(), found.benchmarks),
        ended=signal.exit if signal else None,
    )
    return finish(report, chosen, chosen.people, kept(results, log) if results else None)


def _measured(
    infos: Sequence[scenarios.ScenarioInfo], session: scenarios.Session
) -> tuple[list[Benchmark], Interrupted | None]:
    """What each scenario gave, in a child of its own; up to a signal, which is handed back."""
    measured: list[Benchmark] = []
    for place, info in enumerate(infos):
        try:
            measured += scenarios.measure([info], replace(session, to_come=len(infos) - place))
        except scenarios.Partial as cut:
            measured += cut.measured
            signal, late = cut.signal, infos[place + 1 :]
        except Interrupted as between:
            signal, late = between, infos[place:]
        else:
            continue
        why = f"interrupted by {signal.name}"
        return [*measured, *(scenarios.not_begun(info, session, why) for info in late)], signal
    return measured, None


@app.command("report")
def report_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A report.json of an earlier run.")],
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown page.")] = False,
) -> None:
    """Show a kept report again."""
    report = _read(file)
    if as_markdown:
        output.show(markdown.render(report))
    else:
        with output.tolerant(sys.stdout, product=True):
            terminal.render(report, terminal.console(sys.stdout))


def kept(directory: Path, log: list[str]) -> Mapping[Path, Callable[[Report], str]]:
    """The files of a run in `directory`: the report in every form, and what ran when."""
    return {
        directory / "report.json": as_json,
        directory / "junit.xml": junit_report.render,
        directory / "log.txt": lambda report: "\n".join([*log, "", terminal.text(report)]),
    }


@contextmanager
def narrated(log: list[str]) -> Iterator[process.Progress]:
    """Progress on the terminal; without one (CI) a line for each measurement. `log` gets them all."""
    with shown_progress() as progress:

        def say(text: str) -> None:
            line = f"{datetime.now(timezone.utc):%H:%M:%S} {text}"
            log.append(line)
            if sys.stderr.isatty():
                progress(text)
            else:
                output.say(line, sys.stderr)

        yield say


def _known() -> Mapping[str, scenarios.ScenarioInfo]:
    """The known scenarios; a package that does not load is an unusable environment, not a traceback."""
    try:
        return scenarios.listed()
    except Exception as error:
        raise output.Stop(
            f"the scenarios cannot be loaded: {error}; rebuild the image.", Exit.UNUSABLE
        ) from None


def _found(device: str, deadline: budget.Deadline) -> verify.Verification:
    """The facts, and of the checks those that say whether the GPU can be measured at all."""
    facts = collect(device)
    results = [r for r in registry.judge(facts) if registry.subject(r.code) in scenarios.GATES]
    usable, why = verify.usable_device(facts, results)
    error = exercises.cuda_error(deadline) if usable == "cuda" else None
    results.append(initialisation(error))
    return verify.Verification(facts, "cpu" if error else usable, why, tuple(results))


def _read(file: Path) -> Report:
    try:
        return Report.model_validate_json(file.read_bytes())
    except OSError as error:
        raise output.Stop(f"cannot read {file}: {error.strerror}.", Exit.USAGE) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise output.Stop(
            f"{file} is no report of this version of Dyno: {where}: {first['msg']}; "
            "name a report.json that `bench run --output` or --json has written.",
            Exit.USAGE,
        ) from None


def main() -> None:
    """Entry point of the console script `bench`."""
    run(app, "bench")


if __name__ == "__main__":
    main()
