"""`bench`: list the scenarios and run them.

Exit codes: 0 fine, 1 a benchmark failed or was wrong, 2 usage, 3 the environment is unusable.
"""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Mapping
from typing import Annotated

import typer

from healthcheck import benchmarks, children, options, verify
from healthcheck.checks import registry
from healthcheck.cli import Device, Json, Junit, Require, TimeLimit, finish, run, shown_progress
from healthcheck.facts.collect import collect
from healthcheck.result import Exit

BENCH_LIMIT = 3600.0  # seconds

app = typer.Typer(
    name="bench",
    help="Measures this GPU: scenarios with a baseline and optimised variants, results checked.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("list")
def list_command(json: Json = None) -> None:
    """The scenarios, and which of them have a CPU form."""
    known = scenarios()
    if json is None:
        for info in known.values():
            print(f"{info.name:<16}{info.title}{'' if info.has_cpu_form else ' (GPU only)'}")
        return
    listed = [{"name": i.name, "title": i.title, "has_cpu_form": i.has_cpu_form} for i in known.values()]
    options.write(json, json_module.dumps(listed, indent=2) + "\n")


@app.command("run")
def run_command(
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Default: all.")] = None,
    short: Annotated[bool, typer.Option("--short", help="The form that the self-test runs.")] = False,
    device: Device = None,
    json: Json = None,
    junit: Junit = None,
    require: Require = None,
    time_limit: TimeLimit = None,
) -> None:
    """Run scenarios one after another and report medians, gains and whether the results are right."""
    known = scenarios()
    chosen_names = list(dict.fromkeys(names or known))
    unknown = [name for name in chosen_names if name not in known]
    if unknown:
        raise options.Stop(f"unknown scenario {', '.join(unknown)}; known: {', '.join(known)}.", Exit.USAGE)
    chosen = options.check(
        device=device,
        time_limit=time_limit,
        default_limit=BENCH_LIMIT,
        required=require,
        json=json,
        junit=junit,
    )
    deadline = children.Deadline(chosen.time_limit)
    found = _found(chosen.device)
    if found.device == "cuda" or chosen.device == "cpu":
        with shown_progress() as progress:
            session = benchmarks.Session(
                device=found.device,
                short=short,
                deadline=deadline,
                gpu_index=benchmarks.gpu_index(found.facts),
                progress=progress,
            )
            benched = tuple(benchmarks.measure(known[name], session) for name in chosen_names)
        results = (*found.results, *map(benchmarks.result, benched))
        found = dataclasses.replace(found, benchmarks=benched, results=results)
    report = verify.assemble("bench run", found, deadline=deadline, required=chosen.required)
    finish(report, chosen, chosen.people)


def scenarios() -> Mapping[str, benchmarks.ScenarioInfo]:
    """The known scenarios; a package that does not load is an unusable environment, not a traceback."""
    try:
        return benchmarks.listed()
    except Exception as error:
        raise options.Stop(
            f"the scenarios cannot be loaded: {error}; rebuild the image.", Exit.UNUSABLE
        ) from None


def _found(device: str) -> verify.Verification:
    """The facts, and of the checks those that say whether the GPU can be measured at all."""
    facts = collect(device)
    results = tuple(r for r in registry.judge(facts) if registry.group(r.code) in ("GPU", "driver", "CUDA"))
    usable, why = verify.usable_device(facts, results)
    return verify.Verification(facts, usable, why, results)


def main() -> None:
    """Entry point of the console script `bench`."""
    run(app, "bench")


if __name__ == "__main__":
    main()
