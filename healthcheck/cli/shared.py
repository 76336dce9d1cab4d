"""What both command lines share: their options, how a report is shown and written, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

import healthcheck
from healthcheck import children, output
from healthcheck.options import Options
from healthcheck.report import junit as junit_report
from healthcheck.report import terminal
from healthcheck.report.model import Report
from healthcheck.result import Exit

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


def finish(report: Report, chosen: Options, people: TextIO, closing: str = "") -> None:
    """Write the report and show it, then end with its exit code; 3 where a file could not be written.

    Files come first: whoever reads along may go away, and takes no report with him.
    """
    said = {
        chosen.json: report.model_dump_json(indent=2) + "\n",
        chosen.junit: junit_report.render(report),
    }
    lost: list[output.Stop] = []
    for target, text in said.items():
        if target not in (None, output.STDOUT):
            try:
                output.write(str(target), text)
            except output.Stop as stop:
                lost.append(stop)
    with output.tolerant(people):
        terminal.render(report, terminal.console(people))
        if closing:
            people.write(f"{closing}\n")
    if output.STDOUT in said:
        output.say(said[output.STDOUT], sys.stdout, end="")
    if lost:
        raise lost[0]
    raise SystemExit(int(report.exit_code))


@contextmanager
def shown_progress() -> Iterator[children.Progress]:
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
