"""A report holds anything that a process of the job may write: it is refused, or
everything that reads it can go on.
"""

import json
import os
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.launcher_protocol.json_entries import ENTRIES_MAX, entries
from client_lib.launcher_protocol.outcome import LAST_LINES, Ended, of_ranks
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.report import ProcessReport, as_json, storable, within_bounds
from client_lib.worker import stacks
from server_stub.files import outputs
from server_stub.files.job_dirs import opener
from server_stub.runtimes.verdict import (
    Stage,
    WorkerStatus,
    ended_at,
    last_stacks,
    notes,
    started_at,
    verdict,
)
from server_stub.worker_gateway.report import MAX_BYTES, parse, read
from tests.kit.examples import examples

RANKS = [
    Ended(
        0,
        1,
        None,
        1.8e9,
        1.8e9 + 9,
        1.8e9 + 8,
        False,
        False,
        "KeyError: 1",
        "Traceback",
        ["a line"],
    ),
    Ended(1, None, 15, 1.8e9, 1.8e9 + 9, 1.8e9 + 9, True, False, None, None, []),
]
PLAN = WorkerPlan(
    "train", 1, 0, 1, 2, "pytorch2", ["train.py"], None, {}, [], "/", "", 0, None, 1, "/"
)
WHOLE: dict[str, Any] = {
    **as_json(PLAN, of_ranks(RANKS, False, 0), RANKS, 1.8e9, 1.8e9 + 10, 7, 900),
    "outputs": {
        "kept": 1,
        "bytes": 2,
        "left_out": [{"path": "a", "size": 3, "why": "b"}],
        "left_out_count": 2,
    },
    "notes": ["rank 0 trains alone"],
    "stacks": [
        {
            "rank": 0,
            "pid": 1,
            "parent": 0,
            "wchan": None,
            "cpu_s": 1.5,
            "name": "a",
            "state": "S",
            "dump": None,
        }
    ],
}
texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    [
        "9999-12-31T23:59:59.999999+00:00",
        "0001-01-01T00:00:00+23:00",
        "2026-11-21T10:00:00",
        "Completed",
        "NaN",
    ]
)
numbers = st.just(float("inf")) | st.integers() | st.integers(-(10**30), 10**30) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
MISSING = object()


def places(value: object, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [here, *(place for key, each in inner for place in places(each, (*here, key)))]


def changed(place: tuple[Any, ...], value: object) -> Any:
    """The whole report with another value in one place."""
    if not place:
        return None if value is MISSING else value
    report = deepcopy(WHOLE)
    inside: Any = report
    for key in place[:-1]:
        inside = inside[key]
    if value is MISSING:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return report


@given(
    st.lists(
        st.tuples(st.sampled_from(places(WHOLE)), values | st.just(MISSING)), min_size=1, max_size=2
    )
)
def test_a_report_is_refused_or_every_reader_goes_on(
    changes: list[tuple[tuple[Any, ...], object]],
) -> None:
    sent = [json.dumps(changed(place, value)) for place, value in changes]
    workers = []
    for number, text in enumerate(sent):
        with suppress(ValueError):
            workers.append(WorkerStatus(number, Stage.ENDED, "host", parse(text)))
    workers.append(WorkerStatus(9, Stage.ENDED, "host", parse(json.dumps(WHOLE))))
    found = verdict(workers, stopped=False, lost_first=False)
    assert found.message is not None
    assert started_at(workers)
    assert ended_at(workers)
    assert last_stacks(workers)
    for worker in workers:
        assert worker.info().model_dump_json()
    said = (*notes(workers), *outputs.notes(worker.report for worker in workers))
    assert all(isinstance(note, str) for note in said)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "[" * 10**6, '{"a":' * 10**6, '{"protocol": ' + "9" * 5000 + "}"],
    ids=["empty", "list", "object", "null", "lists", "objects", "digits"],
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(text)


def test_a_report_with_too_many_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 200000 commas and brackets"):
        parse(json.dumps(WHOLE | {"newer": [[]] * ENTRIES_MAX}))


@given(
    n_ranks=st.integers(1, 64),
    first=st.integers(0, 63),
    line=st.sampled_from(["x", "0.1, 0.2, ", "\u20ac", ","]),
    length=st.integers(1, 4096),
)
@settings(max_examples=examples(8), deadline=None)
def test_the_server_takes_each_report_of_a_launcher(
    n_ranks: int, first: int, line: str, length: int
) -> None:
    lines = [(line * length)[:length]] * LAST_LINES
    ranks = [RANKS[0]._replace(rank=number, last_lines=lines) for number in range(n_ranks)]
    outcome = of_ranks(ranks, False, 0)._replace(first=ranks[first % n_ranks])
    whole = as_json(PLAN, outcome, ranks, 1.8e9, 1.8e9 + 10, 7, 900)
    sent = parse(json.dumps(within_bounds(whole)))
    assert [rank["exit_code"] for rank in sent["ranks"]] == [1] * n_ranks
    kept = sent["ranks"][first % n_ranks]["last_lines"]
    assert kept == lines[: len(kept)]
    assert len(kept) >= 10
    if len(json.dumps(whole)) + entries(json.dumps(whole)) < ENTRIES_MAX:
        assert sent == whole


def test_the_server_takes_the_stacks_of_a_worker() -> None:
    dump = '  File "x", line 1 in f\n' * 20_000
    taken = [process_report(dump) for _ in range(1000)]
    sent = json.dumps({"mark": "m", "processes": stacks.within_bounds(taken, stacks.ALL_MAX)})
    assert entries(sent) <= ENTRIES_MAX
    assert len(sent) < MAX_BYTES


def process_report(dump: str) -> ProcessReport:
    return {
        "rank": 0,
        "pid": 1,
        "parent": 0,
        "name": "python",
        "state": "S",
        "wchan": None,
        "cpu_s": 1.5,
        "dump": dump,
        "why": None,
    }


def test_a_field_that_this_version_lacks_is_kept() -> None:
    assert dict(parse(json.dumps(WHOLE | {"newer": [1]})))["newer"] == [1]


def test_only_a_file_of_a_bounded_size_is_read(tmp_path: Path) -> None:
    only_files = opener(tmp_path, MAX_BYTES)
    path = tmp_path / "report.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert read(str(path), only_files) is None
    path.unlink()
    os.mkfifo(path)
    assert read(str(path), only_files) is None
    path.unlink()
    (tmp_path / "other").write_text(json.dumps(WHOLE))
    path.symlink_to("other")
    assert read(str(path), only_files) is None


@given(values)
def test_a_launcher_writes_texts_that_the_server_can_read(value: Any) -> None:
    assert parse(
        json.dumps(WHOLE | {"message": storable("bad \udcff name"), "newer": storable(value)})
    )
