"""The list of a job's checkpoints, from what the launchers of its attempts have told."""

import json

import pytest

from client_lib.launcher_protocol.checkpoint_lines import (
    SeenCheckpoint,
    begin_line,
    line_of,
    removed_line,
)
from server_stub.curves.checkpoints import Told, listed
from server_stub.curves.tracker import Tracker

FIRST = SeenCheckpoint("/c/step-10.pt", "torch", 10, 500, 100.0, "", "complete", True, [])
LAST = SeenCheckpoint(
    "/c/last.pt", "torch", None, 50, 205.0, "cut off", "writing", True, ["latest"]
)


def tracker_of(*lines: bytes) -> Tracker:
    tracker = Tracker(100)
    for line in lines:
        tracker.add(0.0, None, "metrics", "", line.decode().rstrip("\n"))
    return tracker


def told(*seen: SeenCheckpoint, ended: bool = True, **facts: object) -> Told:
    return Told({each.path: each for each in seen}, facts.get("printed", []), ended)  # type: ignore[arg-type]


def test_a_later_line_replaces_or_removes() -> None:
    larger = FIRST._replace(size=600)
    tracker = tracker_of(
        begin_line(), line_of(FIRST), line_of(LAST), line_of(larger), removed_line(LAST.path)
    )
    assert tracker.checkpoints == {FIRST.path: larger}


def test_a_new_list_forgets_the_list_before() -> None:
    tracker = tracker_of(begin_line(), line_of(FIRST), begin_line(), line_of(LAST))
    assert tracker.checkpoints == {LAST.path: LAST}


def test_without_a_line_nobody_has_looked() -> None:
    assert tracker_of().checkpoints is None
    assert tracker_of(begin_line()).checkpoints == {}


@pytest.mark.parametrize(
    "item",
    [
        ["/c/a.pt", "torch", 10, 500, 100.0, "", "whole", True, []],
        ["/c/a.pt", "torch", 10, 500, float("nan"), "", "complete", True, []],
        ["/c/a.pt", "torch", 10**30, 500, 100.0, "", "complete", True, []],
        ["/c/a.pt", "torch", "x", 500, 100.0, "", "complete", True, []],
        ["/c/a.pt", "torch", 10, -1, 100.0, "", "complete", True, []],
        ["/" + "a" * 5000, "torch", 10, 500, 100.0, "", "complete", True, []],
        [1, "torch", 10, 500, 100.0, "", "complete", True, []],
        ["/c/a.pt", "torch", 10, 500, 100.0, "", "complete", True, ["x"] * 11],
        [[]],
        {},
        [],
    ],
)
def test_what_no_launcher_writes_is_left_out(item: object) -> None:
    line = json.dumps([None, "checkpoint", item]).encode()
    assert not tracker_of(line).checkpoints


def test_a_path_with_half_a_character_can_be_answered() -> None:
    tracker = tracker_of(begin_line(), line_of(FIRST._replace(path="/c/\udc80.pt")))
    assert list(tracker.checkpoints or {}) == ["/c/?.pt"]


def test_a_thousand_checkpoints_are_kept() -> None:
    many = [line_of(FIRST._replace(path=f"/c/{number}.pt")) for number in range(1200)]
    assert len(tracker_of(begin_line(), *many).checkpoints or {}) == 1000


def test_the_order_is_that_of_the_steps() -> None:
    late = FIRST._replace(path="/c/step-9.pt", step=9, modified=300.0)
    unknown = FIRST._replace(path="/c/model.pt", step=None, own=False)
    found = listed([told(FIRST, late, unknown)])
    assert [each.path for each in found] == ["/c/model.pt", "/c/step-9.pt", "/c/step-10.pt"]


def test_the_step_that_was_printed_before_stands_for_one_without_a_name() -> None:
    printed = [(100.0, 10.0), (200.0, 20.0), (300.0, 30.0)]
    (found,) = listed([told(LAST, printed=printed)])
    assert found.step == 20
    (at_once,) = listed([told(LAST._replace(modified=299.95), printed=printed)])
    assert at_once.step == 30


def test_of_an_ended_attempt_nothing_is_being_written() -> None:
    (running,) = listed([told(LAST, ended=False)])
    (ended,) = listed([told(LAST)])
    assert (running.state, ended.state) == ("writing", "damaged")


def test_each_checkpoint_belongs_to_the_attempt_that_wrote_it() -> None:
    again = LAST._replace(modified=400.0)
    before = FIRST._replace(path="/c/start.pt", own=False)
    found = listed(
        [
            told(FIRST, LAST, before),
            Told(None, [], True),  # its launcher was killed before it looked
            told(FIRST._replace(own=False), again, before),
        ]
    )
    assert {each.path: each.attempt for each in found} == {
        "/c/step-10.pt": 1,
        "/c/last.pt": 3,
        "/c/start.pt": None,
    }


def test_the_newest_list_counts() -> None:
    assert listed([told(FIRST), told()]) == []
    assert listed([]) == []
