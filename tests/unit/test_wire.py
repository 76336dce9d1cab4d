"""Events go to the descriptor of the parent, one a line, whatever numbers they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck import wire

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def emitted(event: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> str:
    read, write = os.pipe()
    monkeypatch.setenv(wire.DESCRIPTOR, str(write))
    wire.emit(event)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        return answer.read()


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_any_event_is_one_line_of_strict_json(event: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        line = emitted(event, monkeypatch)
    assert line.count("\n") == 1
    assert set(json.loads(line, parse_constant=pytest.fail)) == set(event)


def test_numbers_that_json_cannot_say_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    line = emitted({"a": float("nan"), "b": [float("inf")], "c": 1.5}, monkeypatch)
    assert json.loads(line) == {"a": None, "b": [None], "c": 1.5}


def test_by_hand_events_go_to_stdout() -> None:
    code = "from healthcheck import wire; wire.emit({'n': 1})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == {"n": 1}
