"""Runs buildx bake with the plan as its environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from image import base, context, engine, explain, host, install
from image import plan as planning
from image.arguments import Arguments
from image.base import Base
from image.fault import Stop
from image.plan import Pins, Plan
from image.shell import Run

BAKE_FILE = "docker-bake.hcl"


def environment(plan: Plan, chosen: Base) -> dict[str, str]:
    """The variables of docker-bake.hcl."""
    return {
        "BASE_IMAGE": chosen.reference,
        "BASE_IDENTITY": chosen.identity,
        "GPU_ARCHS": " ".join(plan.gpu_archs),
        "FLASH_ATTN": plan.flash_attn.route,
        "WHEELHOUSE": context.WHEELS,
        "DEBIAN_MIRROR": plan.debian_mirror,
        "PYPI_INDEX": plan.pypi_index,
        "CA_BUNDLE": plan.ca_bundle,
        "TAGS": ",".join(plan.tags),
        "MAX_JOBS": str(plan.max_jobs),
        "BUILD_ID": plan.build_id,
        "LOCK_DIGEST": plan.lock_digest,
        "SOURCE_DATE_EPOCH": str(plan.source_date_epoch),
        # Attestations hold times and paths of this machine, and turn the image into an index.
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    }


def command(plan: Plan, builder: str, buildx: str) -> list[str]:
    """The bake call, to be run in the copy that `context` makes.

    Its builder is the engine's own: no other sees the base image, and no other leaves its result here.
    """
    argv = ["docker", "buildx", "bake", "--builder", builder, "--file", BAKE_FILE]
    if engine.at_least(buildx, "0.19"):  # since then it asks before it reads outside the current directory
        argv += [f"--allow=fs.read={plan.ca_bundle}"] if plan.ca_bundle else []
    return [*argv, plan.target]


def prepare(target: str, arguments: Arguments, pins: Pins, root: Path, run: Run) -> tuple[Plan, host.Host]:
    """The plan for this host, or Stop with every fault."""
    facts = host.read(arguments, root, run)
    made = planning.make(target, arguments, pins, facts)
    if not isinstance(made, Plan):
        raise Stop(made)
    return made, facts


def build(
    target: str,
    arguments: Arguments,
    pins: Pins,
    root: Path,
    *,
    run: Run,
    say: Callable[[str], None],
    dry_run: bool = False,
) -> int:
    """Build the image; return bake's exit code. `dry_run` prints what would be run instead.

    The plan comes before the engine: a wrong argument or a full disk is said before anything is installed.
    """
    made, facts = prepare(target, arguments, pins, root, run)
    if dry_run:
        return _dry_run(made, facts, say)
    if engine.problems(facts.engine):
        found = install.ensure(run, say, made.debian_mirror)
        made, facts = prepare(target, arguments, pins, root, run)  # now the engine's own disk is known
    else:
        found = facts.engine
    say(explain.plan(made, facts))
    chosen = base.ensure(
        arguments.base, run=run, say=say, mirror=made.debian_mirror, epoch=made.source_date_epoch
    )
    argv = command(made, found.builder, found.buildx)
    wheel = Path(made.wheelhouse) / made.flash_attn.wheel if made.wheelhouse else None
    with tempfile.TemporaryDirectory(prefix="dyno-context-") as directory:
        context.copy(root, wheel, Path(directory))
        done = run(argv, env=environment(made, chosen), show=True, cwd=Path(directory))
    if done.ok:
        say(_afterwards(made))
    else:
        say(f"build: bake ended with {done.returncode}; its own lines above say why")
    return done.returncode


def _dry_run(made: Plan, facts: host.Host, say: Callable[[str], None]) -> int:
    chosen = Base(made.base.reference or base.REPOSITORY, "(read from the base when it is there)", "")
    for name, value in environment(made, chosen).items():
        say(f"{name}={value}")
    say(" ".join(command(made, facts.engine.builder or "default", facts.engine.buildx)))
    return 0


def _afterwards(made: Plan) -> str:
    name = made.tags[-1].removesuffix(":latest")
    return "\n".join(
        [
            f"built {', '.join(made.tags)}",
            f"run it:          docker run --rm -it --gpus all --shm-size 8g {name}",
            f"without a GPU:   docker run --rm {name} healthcheck selftest --device cpu",
            f"its size:        python3 -m image size {name}",
        ]
    )
