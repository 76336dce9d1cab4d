"""`healthcheck`: probe, verify, selftest and facts.

Exit codes: 0 fine, 1 a check failed, 2 usage, 3 the environment is unusable.
"""

from __future__ import annotations

import dataclasses
import json as json_module
import os
import sys

from healthcheck import catalogue, options, output, selftest, verify
from healthcheck import probe as probe_module
from healthcheck.cli.shared import (
    Device,
    Json,
    Junit,
    List,
    Require,
    TimeLimit,
    application,
    finish,
    run,
    show_codes,
    shown_progress,
)
from healthcheck.drive import budget
from healthcheck.facts.collect import collect
from healthcheck.report import terminal

VERIFY_LIMIT = 300.0  # seconds


app = application(
    "healthcheck",
    "Verifies the GPU, the driver and every library of the stack, and says how to fix what is wrong.",
)


@app.command()
def probe() -> None:
    """Is the GPU still there? One line, exit code 0 or 1, no CUDA context."""
    raise SystemExit(probe_module.main())


@app.command("verify")
def verify_command(
    *,
    device: Device = None,
    json: Json = None,
    junit: Junit = None,
    require: Require = None,
    time_limit: TimeLimit = None,
    list_codes: List = False,
) -> None:
    """Check driver, GPU, stack and workspace, and run every library once."""
    known = catalogue.of_verify()
    if list_codes:
        return show_codes(known)
    chosen = options.check(
        device=device,
        time_limit=time_limit,
        default_limit=VERIFY_LIMIT,
        required=require,
        json=json,
        junit=junit,
        known=known,
    )
    deadline = budget.Deadline(chosen.time_limit)
    with shown_progress() as progress:
        found = verify.verify(collect(chosen.device), deadline, progress)
    again = f"healthcheck verify --time-limit {min(2 * deadline.limit, options.LONGEST):.0f}"
    limit = verify.time_limit(deadline, found.unfinished, again)
    found = dataclasses.replace(found, results=(*found.results, limit))
    report = verify.assemble("verify", found, deadline=deadline, required=chosen.required)
    return finish(report, chosen, chosen.people)


@app.command("selftest")
def selftest_command(
    *,
    device: Device = None,
    json: Json = None,
    junit: Junit = None,
    require: Require = None,
    time_limit: TimeLimit = None,
    list_codes: List = False,
) -> None:
    """What a container runs at its start: verify and three short benchmarks. Writes to stderr only.

    SELFTEST=full|verify|off and SELFTEST_TIMEOUT rule it. The exit code is the true one under every
    SELFTEST_POLICY: the entrypoint applies the policy.
    """
    known = catalogue.of_selftest()
    if list_codes:
        return show_codes(known)
    asked = selftest.settings(os.environ)
    chosen = options.check(
        device=device,
        time_limit=time_limit,
        default_limit=asked.limit,
        required=require,
        json=json,
        junit=junit,
        known=known,
    )
    if asked.mode == "off":
        output.say("healthcheck: the self-test is off (SELFTEST=off)", sys.stderr)
        return None
    deadline = budget.Deadline(chosen.time_limit)
    output.say(f"Dyno self-test, at most {deadline.limit:.0f} s (SELFTEST=off skips it)", sys.stderr)
    with shown_progress() as progress:
        found = selftest.run(collect(chosen.device), asked.mode, deadline, progress)
    report = verify.assemble("selftest", found, deadline=deadline, required=chosen.required)
    return finish(report, chosen, sys.stderr)


@app.command()
def facts(device: Device = None, json: Json = None) -> None:
    """What is there, without a judgement: GPU, driver, container, stack."""
    chosen = options.check(
        device=device,
        time_limit=None,
        default_limit=VERIFY_LIMIT,
        required=None,
        json=json,
        junit=None,
        known={},
    )
    found = collect(chosen.device)
    if chosen.json is not None:
        output.write(chosen.json, json_module.dumps(dataclasses.asdict(found), indent=2) + "\n")
    if chosen.json != output.STDOUT:
        with output.tolerant(sys.stdout, product=True):
            terminal.facts(found, terminal.console(sys.stdout))


def main() -> None:
    """Entry point of the console script `healthcheck`."""
    run(app, "healthcheck")


if __name__ == "__main__":
    main()
