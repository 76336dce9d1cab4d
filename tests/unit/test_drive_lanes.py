"""Which work shares a child: as many lanes as pay, about equally long."""

from __future__ import annotations

import pytest

from healthcheck.drive import lanes


def tasks(**seconds: float) -> list[lanes.Task]:
    return [lanes.Task(name, value) for name, value in seconds.items()]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, ("abcde",)),  # 25 s, one start
        (2, ("ad", "bce")),  # 12 and 13 s
        (3, ("a", "be", "cd")),  # 9, 8 and 8 s
        (4, ("a", "be", "cd")),  # a fourth lane would leave 9 s as the longest, and not pay
    ],
)
def test_the_heaviest_go_first_and_each_to_the_lane_it_makes_least_long(
    most: int, expected: tuple[str, ...]
) -> None:
    found = lanes.spread(tasks(e=2, d=3, c=5, b=6, a=9), most)
    assert found == tuple(tuple(lane) for lane in expected)


def test_what_takes_less_than_a_start_stays_in_one_lane_and_in_its_order() -> None:
    # One lane: 1.5 s and a start of 1.5 s. Two: 1 s and 3 s of starts.
    assert lanes.spread(tasks(x=0.5, a=0.5, m=0.5), 4) == (("x", "a", "m"),)


@pytest.mark.parametrize(("seconds", "expected"), [(1, (("a", "b"),)), (4, (("a",), ("b",)))])
def test_what_each_child_must_load_anew_keeps_small_tasks_together(
    seconds: float, expected: tuple[tuple[str, ...], ...]
) -> None:
    # With 5 s to load. 1 s each: 7 + 1.5 in one lane, 6 + 3 in two. 4 s each: 13 + 1.5 against 9 + 3.
    assert lanes.spread([lanes.Task(name, seconds, extra=5) for name in "ab"], 4) == expected


def test_no_task_makes_no_lane() -> None:
    assert lanes.spread([], 4) == ()
