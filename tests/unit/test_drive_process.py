"""A child's crash, hang, noise and garbage are outcomes, and its process group never outlives it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from healthcheck.drive import process
from healthcheck.facts import stack

REPOSITORY = str(Path(process.__file__).resolve().parents[2])


def run(tmp_path: Path, code: str, time_limit: float = 20) -> process.Outcome:
    (tmp_path / "played.py").write_text(
        f"import os, sys, time, signal\nfrom healthcheck import wire\n{code}\n"
    )
    return process.run(
        "played",
        time_limit=time_limit,
        python=sys.executable,
        environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
    )


def test_events_arrive_in_order_and_noise_is_kept_apart(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        "print('noise'); wire.emit({'n': 1}); print('{\"n\": 9}', file=sys.stderr); wire.emit({'n': 2})",
    )
    assert found.ok
    assert [e["n"] for e in found.events] == [1, 2]
    assert "noise" in found.output and '{"n": 9}' in found.output


def test_a_crash_keeps_what_was_answered_before_and_names_the_signal(tmp_path: Path) -> None:
    found = run(tmp_path, "wire.emit({'n': 1}); os.kill(os.getpid(), signal.SIGSEGV)")
    assert found.events == ({"n": 1},)
    assert found.cause == "was ended by SIGSEGV"


def test_a_hang_ends_at_the_limit_together_with_its_grandchildren(tmp_path: Path) -> None:
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); wire.emit({'pid': p.pid}); time.sleep(60)"
    )
    found = run(tmp_path, code, time_limit=2)
    assert found.timed_out and not found.ok
    with pytest.raises(ProcessLookupError):
        for _ in range(50):
            os.kill(found.events[0]["pid"], 0)
            time.sleep(0.1)


def test_a_grandchild_that_holds_the_pipes_does_not_hold_up_the_answer(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60'], close_fds=False); wire.emit({'n': 1})"
    found = run(tmp_path, code)
    assert found.ok and found.events == ({"n": 1},)  # waiting for the pipes would have met the time limit


def test_lines_that_are_no_event_are_dropped(tmp_path: Path) -> None:
    code = (
        "fd = int(os.environ['DYNO_RESULT_FD'])\n"
        "os.write(fd, b'not json\\n[1]\\n\\xff\\n'); wire.emit({'n': 1}); os.write(fd, b'{\"half\": ')"
    )
    assert run(tmp_path, code).events == ({"n": 1},)


def test_a_flood_of_noise_is_cut_to_its_end(tmp_path: Path) -> None:
    found = run(tmp_path, "print('x' * 1_000_000); print('the end')")
    assert len(found.output) <= 8_000
    assert found.output.rstrip().endswith("the end")


def test_an_interpreter_that_is_not_there_is_an_outcome() -> None:
    found = process.run("json", time_limit=5, python="/nowhere/python")
    assert found.returncode == 127
    assert "/nowhere/python" in found.output


def test_an_exception_in_the_parent_ends_the_child(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nfrom healthcheck import wire\nwire.emit({'pid': os.getpid()})\ntime.sleep(60)\n"
    )
    seen: list[int] = []

    def refuse(event: dict[str, int]) -> None:
        seen.append(event["pid"])
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        process.run(
            "slow",
            time_limit=20,
            python=sys.executable,
            environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
            on_event=refuse,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], signal.SIGCONT)


def test_a_caller_in_another_thread_ends_its_child_by_an_event(tmp_path: Path) -> None:
    stop, seen = threading.Event(), []
    (tmp_path / "slow.py").write_text(
        "import os, time\nfrom healthcheck import wire\nwire.emit({'pid': os.getpid()})\ntime.sleep(60)\n"
    )

    def note(event: dict[str, int]) -> None:
        seen.append(event["pid"])
        stop.set()

    with pytest.raises(process.Stopped):
        process.run(
            "slow",
            time_limit=50,
            python=sys.executable,
            environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
            on_event=note,
            stop=stop,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_a_childs_share_of_the_cores_gives_way_to_the_users_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert process.environment(3)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in process.environment()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in process.environment(3)


def test_a_users_files_in_the_current_directory_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    code = f"""
import os, sys
os.chdir({str(tmp_path)!r})
from healthcheck.drive import process
safe = process.environment()
outcome = process.run("json.tool", ["--help"], time_limit=20, python=sys.executable, environment=safe)
sys.exit(outcome.output if not outcome.ok else 0)
"""
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no safe path")
    (tmp_path / "caller").mkdir()
    (tmp_path / "caller/call_json.py").write_text(code)
    found = process.run(
        "call_json",
        time_limit=30,
        python=sys.executable,
        environment={**process.environment(), "PYTHONPATH": f"{tmp_path / 'caller'}:{REPOSITORY}"},
    )
    assert found.ok, found.output


@pytest.mark.parametrize(("output", "words"), [("", ""), ("a\nb\n\n", "b"), ("x" * 500, "x" * 200)])
def test_last_words(output: str, words: str) -> None:
    assert process.last_words(process.Outcome((), 1, False, output, 0.0)) == words


def test_in_the_image_the_stacks_python_is_named_even_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DYNO_STACK_PYTHON", raising=False)
    monkeypatch.setattr(sys, "prefix", stack.TOOLS)
    assert stack.stack_python() == stack.STACK_PYTHON
