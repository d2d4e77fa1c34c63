"""The first line in which ranks differ."""

from collections.abc import Sequence

import pytest

from client_lib.launcher_protocol.record import GOES_ON, LINE, PROGRESS
from client_lib.log_reading.divergence import Divergence, find
from client_lib.log_reading.reader import LogEntry
from tests.log_reading.test_rendering import entry


def places(entries: Sequence[LogEntry], ranks: int = 3) -> list[Divergence]:
    return find(lambda: entries, range(ranks))


def steps(rank: int, *numbers: int, at: float = 0.0) -> list[LogEntry]:
    return [
        entry(f"step {n} loss {0.1 * n + rank} at 12:0{rank}:07", rank=rank, at=at + n)
        for n in numbers
    ]


def test_numbers_times_and_addresses_make_no_difference() -> None:
    same = [
        entry(f"rank {n}: 0x7f{n}a <{n}e-3> cuda:{n} {'ab' * n}cdef0123", rank=n) for n in range(3)
    ]
    assert places([*same, *steps(0, 1, 2), *steps(1, 1, 2), *steps(2, 1, 2)]) == []
    assert places([entry("loss 0.1", rank=1), entry("loss nan", rank=2)])


def test_the_line_is_shown_with_those_around_it_for_each_side() -> None:
    lost = [entry(text, rank=1, at=4) for text in ("no batch left", *"123456")]
    [found] = places(
        [*steps(0, 1, 2, 3, 4, 5, 6, 7), *steps(2, 1, 2, 3, 4, 5), *steps(1, 1, 2, 3), *lost]
    )
    assert (found.stream, found.agreed) == ("stdout", 3)
    (most, other) = found.sides
    assert (most["ranks"], [text[:6] for text in most["before"]], len(most["after"])) == (
        [0, 2],
        ["step 2", "step 3"],
        4,
    )
    assert (other["ranks"], other["after"]) == ([1], ["no batch left", *"12345"])


def test_a_rank_that_prints_no_more_is_a_side_also_if_it_never_printed() -> None:
    [found] = places([*steps(0, 1, 2), *steps(1, 1, 2, 3)])
    assert (found.agreed, [side["ranks"] for side in found.sides]) == (0, [[0, 1], [2]])
    assert found.sides[1]["after"] == []


def test_what_rank_0_alone_prints_is_no_difference_but_what_it_alone_lacks() -> None:
    own = [entry("epoch 1", at=0.5), *steps(0, 1), entry("saved"), *steps(0, 2)]
    assert places([*own, *steps(1, 1, 2), *steps(2, 1, 2)]) == []
    [found] = places([*own, *steps(1, 1, 2, 3), *steps(2, 1, 2, 3)])
    assert (found.agreed, [side["ranks"] for side in found.sides]) == (2, [[1, 2], [0]])


def test_rank_0_stands_with_those_whose_line_it_prints_after_lines_of_its_own() -> None:
    own = [*steps(0, 1), entry("saved"), *steps(0, 2)]
    [found] = places([*own, *steps(1, 1, 2), *steps(2, 1), entry("killed", rank=2)])
    assert [side["ranks"] for side in found.sides] == [[0, 1], [2]]
    assert found.sides[0]["before"][-1] == "saved"


def test_each_stream_is_compared_by_itself_and_the_earlier_place_comes_first() -> None:
    raised = entry("Traceback (most recent call last):", rank=1, at=3.5, stream="stderr")
    found = places([*steps(0, 1, 2, 3, 4), *steps(1, 1, 2, 3), *steps(2, 1, 2, 3, 4), raised])
    assert [(each.stream, each.agreed) for each in found] == [("stderr", 0), ("stdout", 3)]


def test_pieces_are_one_line_and_progress_and_lines_of_no_rank_are_none() -> None:
    pieces = [entry("loading", rank=1, kind=GOES_ON), entry(" done", rank=1)]
    others = [
        entry("10%", rank=2, kind=PROGRESS),
        entry("x", rank=None, stream="train.log"),
        entry("y", rank=None),
    ]
    assert (
        places([*pieces, *others, entry("loading done", rank=2), entry("loading done", rank=0)])
        == []
    )


@pytest.mark.parametrize("kind", [LINE, GOES_ON])
def test_a_line_without_its_end_counts(kind: str) -> None:
    [found] = places([entry("waiting for", rank=1, kind=kind)])
    assert found.sides[1]["after"] == ["waiting for"]
