"""The rooms of the house: data goes one way, and only `drive` and the command lines start anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = ("checks", "report", "measure", "judge")


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of `healthcheck`."""
    found = {}
    for file in sorted((ROOT / "healthcheck").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(tree: ast.AST, *, anywhere: bool) -> Iterator[str]:
    """What a module imports when loaded, or (`anywhere`) in its functions too; not what type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif anywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from imported(node, anywhere=anywhere)


def graph(*, anywhere: bool) -> dict[str, set[str]]:
    known = modules()
    found = {}
    for name, file in known.items():
        targets = set(imported(ast.parse(file.read_text()), anywhere=anywhere)) & set(known)
        found[name] = {t for t in targets if t != name and not name.startswith(f"{t}.")}
    return found


def reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in arrows[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


@pytest.mark.parametrize("anywhere", [False, True])
def test_no_module_imports_itself_by_a_detour(anywhere: bool) -> None:
    arrows = graph(anywhere=anywhere)
    assert [name for name in arrows if name in reached(name, arrows)] == []


@pytest.mark.parametrize("room", PURE)
def test_no_arrow_leads_from_a_pure_room_to_what_starts_processes(room: str) -> None:
    arrows = graph(anywhere=True)
    inside = [name for name in arrows if name.startswith(f"healthcheck.{room}")]
    assert len(inside) > 2
    beyond = {target for name in inside for target in reached(name, arrows)}
    assert sorted(n for n in beyond if n.startswith(("healthcheck.drive", "healthcheck.cli"))) == []


def test_of_dynos_own_processes_all_are_started_in_drive() -> None:
    starters = {
        name
        for name, file in modules().items()
        if {"subprocess", "multiprocessing"} & set(imported(ast.parse(file.read_text()), anywhere=True))
    }
    in_the_stack = ("healthcheck.exercise.", "healthcheck.bench.")  # children themselves: ffmpeg is a program
    assert {n for n in starters if not n.startswith(("healthcheck.drive.", *in_the_stack))} == set()
    assert "healthcheck.drive.process" in starters


@pytest.mark.parametrize("room", ["exercise", "bench", "measure", "recipes"])
def test_what_runs_in_the_stack_needs_none_of_dynos_tools(room: str) -> None:
    tools = {"pydantic", "typer", "rich", "pynvml", "jinja2", "prometheus_client"}
    arrows, files = graph(anywhere=True), modules()
    inside = [name for name in arrows if name.startswith(f"healthcheck.{room}")]
    for name in {*inside, *(target for start in inside for target in reached(start, arrows))}:
        targets = imported(ast.parse(files[name].read_text()), anywhere=True)
        assert not {target.split(".")[0] for target in targets} & tools, name
