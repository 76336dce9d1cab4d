"""What both command lines share: their options, how a report is shown and written, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TextIO

import typer

import healthcheck
from healthcheck import output
from healthcheck.drive import process
from healthcheck.options import Options
from healthcheck.report import junit as junit_report
from healthcheck.report import terminal
from healthcheck.report.model import CheckResult, Report
from healthcheck.result import Exit, Result, Status

Device = Annotated[
    str | None,
    typer.Option("--device", metavar="auto|cuda|cpu", help="Where to run; default DYNO_DEVICE, else auto."),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON; - is stdout.")
]
Junit = Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML.")]
Require = Annotated[
    list[str] | None,
    typer.Option("--require", metavar="CODE", help="Fail unless this check passes; may be repeated."),
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="SECONDS", help="For the whole command.")
]
List = Annotated[bool, typer.Option("--list", help="Name the codes of its checks, and run nothing.")]


def application(name: str, what: str) -> typer.Typer:
    """A command line without rich's boxes and tracebacks: its words go to logs as well as to terminals."""
    app = typer.Typer(
        name=name,
        help=what,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback(help=what)
    def program(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Dyno's version.")
        ] = False,
    ) -> None:
        del version

    return app


def _version(asked: bool) -> None:
    if asked:
        output.show(f"Dyno {healthcheck.__version__}\n")
        raise typer.Exit


def show_codes(known: Mapping[str, str]) -> None:
    """A line for each check: its code, as `--require` takes it, and its title."""
    output.show("".join(f"{code:<26} {title}\n" for code, title in known.items()))


Render = Callable[[Report], str]
UNWRITTEN = ("DYN-REPORT-001", "report written")


def finish(
    report: Report, chosen: Options, people: TextIO, kept: Mapping[Path, Render] | None = None
) -> None:
    """Write the report and show it, then end with its exit code.

    Files come first: whoever reads along may go away, and takes no report with him. One that cannot be
    written is a failure of the report itself (exit code 3), in every form that is still to be had. `kept` are
    files besides those of the options.
    """
    renders: dict[str, Render] = {str(path): render for path, render in (kept or {}).items()}
    if chosen.json is not None:
        renders[chosen.json] = as_json
    if chosen.junit is not None:
        renders[chosen.junit] = junit_report.render
    report = _written(report, {t: render for t, render in renders.items() if t != output.STDOUT})
    with output.tolerant(people):
        terminal.render(report, terminal.console(people))
        for directory in dict.fromkeys(path.parent for path in kept or ()):
            people.write(f"Kept in {directory}\n")
    if output.STDOUT in renders:
        output.say(renders[output.STDOUT](report), sys.stdout, end="")
    raise SystemExit(int(report.exit_code))


def as_json(report: Report) -> str:
    """The report as a file of JSON."""
    return report.model_dump_json(indent=2) + "\n"


def _written(report: Report, renders: Mapping[str, Render]) -> Report:
    """The report as it is after its files were written: with a failure for each that could not be."""
    lost: dict[str, output.Stop] = {}
    for target, render in renders.items():
        try:
            output.write(target, render(report))
        except output.Stop as stop:
            lost[target] = stop
    if not lost:
        return report
    failures = [_unwritten(stop) for stop in lost.values()]
    report = report.model_copy(update={"results": [*report.results, *failures], "exit_code": Exit.UNUSABLE})
    for target, render in renders.items():
        if target not in lost:  # it says exit code 0 so far
            with suppress(output.Stop):
                output.write(target, render(report))
    return report


def _unwritten(stop: output.Stop) -> CheckResult:
    found, _, cure = str(stop).rstrip(".").partition("; ")
    summary = f"{found[:1].upper()}{found[1:]}."
    return CheckResult.of(Result(*UNWRITTEN, Status.FAIL, summary, cure, unusable=True))


@contextmanager
def shown_progress() -> Iterator[process.Progress]:
    """A line that says what runs now, where a person is watching; it is gone at the end."""
    out = terminal.console(sys.stderr)
    if not out.is_terminal:
        yield lambda text: None
        return
    with out.status("gathering facts") as status:
        yield status.update


def run(commands: typer.Typer, program: str) -> None:
    """Run a command line: no traceback for a user's mistake, no encoding that can break a report."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, who does not want to hear
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        getattr(sys, name).reconfigure(errors="replace")
    with output.ending(program):
        code = commands(prog_name=program, standalone_mode=True)
        raise SystemExit(code or int(Exit.OK))
