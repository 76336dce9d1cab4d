"""`healthcheck`: probe, verify, selftest and facts.

Exit codes: 0 fine, 1 a check failed, 2 usage, 3 the environment is unusable.
"""

from __future__ import annotations

import dataclasses
import json as json_module
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from healthcheck import children, options, selftest, verify
from healthcheck import probe as probe_module
from healthcheck.facts.collect import collect
from healthcheck.report import junit as junit_report
from healthcheck.report import terminal
from healthcheck.report.model import Report
from healthcheck.result import Exit

VERIFY_LIMIT = 300.0  # seconds


def application(name: str, what: str) -> typer.Typer:
    """A command line without rich's boxes and tracebacks: its words go to logs as well as to terminals."""
    return typer.Typer(
        name=name,
        help=what,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


app = application(
    "healthcheck",
    "Verifies the GPU, the driver and every library of the stack, and says how to fix what is wrong.",
)

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


@app.command()
def probe() -> None:
    """Is the GPU still there? One line, exit code 0 or 1, no CUDA context."""
    raise SystemExit(probe_module.main())


@app.command("verify")
def verify_command(
    device: Device = None,
    json: Json = None,
    junit: Junit = None,
    require: Require = None,
    time_limit: TimeLimit = None,
) -> None:
    """Check driver, GPU, stack and workspace, and run every library once."""
    chosen = options.check(
        device=device,
        time_limit=time_limit,
        default_limit=VERIFY_LIMIT,
        required=require,
        json=json,
        junit=junit,
    )
    deadline = children.Deadline(chosen.time_limit)
    with shown_progress() as progress:
        found = verify.verify(collect(chosen.device), deadline, progress)
    again = f"healthcheck verify --time-limit {2 * deadline.limit:.0f}"
    limit = verify.time_limit(deadline, found.unfinished, again)
    found = dataclasses.replace(found, results=(*found.results, limit))
    report = verify.assemble("verify", found, deadline=deadline, required=chosen.required)
    finish(report, chosen, chosen.people)


@app.command("selftest")
def selftest_command(
    device: Device = None,
    json: Json = None,
    junit: Junit = None,
    require: Require = None,
    time_limit: TimeLimit = None,
) -> None:
    """What a container runs at its start: verify and three short benchmarks. Writes to stderr only.

    SELFTEST=full|verify|off and SELFTEST_TIMEOUT rule it. The exit code is the true one under every
    SELFTEST_POLICY: the entrypoint applies the policy.
    """
    asked = selftest.settings(os.environ)
    chosen = options.check(
        device=device,
        time_limit=time_limit,
        default_limit=asked.limit,
        required=require,
        json=json,
        junit=junit,
    )
    if asked.mode == "off":
        print("healthcheck: the self-test is off (SELFTEST=off)", file=sys.stderr)
        return
    deadline = children.Deadline(chosen.time_limit)
    print(
        f"Dyno self-test, at most {deadline.limit:.0f} s (SELFTEST=off skips it)", file=sys.stderr, flush=True
    )
    with shown_progress() as progress:
        found = selftest.run(collect(chosen.device), asked.mode, deadline, progress)
    report = verify.assemble("selftest", found, deadline=deadline, required=chosen.required)
    finish(report, chosen, sys.stderr)


@app.command()
def facts(device: Device = None, json: Json = None) -> None:
    """What is there, without a judgement: GPU, driver, container, stack."""
    chosen = options.check(
        device=device, time_limit=None, default_limit=VERIFY_LIMIT, required=None, json=json, junit=None
    )
    found = collect(chosen.device)
    if chosen.json != options.STDOUT:
        terminal.facts(found, terminal.console(sys.stdout))
    if chosen.json is not None:
        options.write(chosen.json, json_module.dumps(dataclasses.asdict(found), indent=2) + "\n")


def finish(report: Report, chosen: options.Options, people: TextIO, kept: Path | None = None) -> None:
    """Show and write the report, then end with its exit code. People see it even where a file fails."""
    terminal.render(report, terminal.console(people))
    if kept is not None:
        print(f"Kept in {kept}", file=people)
    people.flush()
    if chosen.json is not None:
        options.write(chosen.json, report.model_dump_json(indent=2) + "\n")
    if chosen.junit is not None:
        options.write(chosen.junit, junit_report.render(report))
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
    with options.ending(program):
        code = commands(prog_name=program, standalone_mode=True)
        raise SystemExit(code or int(Exit.OK))


def main() -> None:
    """Entry point of the console script `healthcheck`."""
    run(app, "healthcheck")


if __name__ == "__main__":
    main()
