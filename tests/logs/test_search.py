"""The search for a regular expression in the lines that a job has printed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server_stub.files.job_dirs import log_dir
from server_stub.logs import search
from tests.kit.bounds import Bounds
from tests.logs import log_server
from tests.logs.support import LogWriter, Server, stamp


@pytest.fixture
def two(tmp_path: Path) -> tuple[LogWriter, LogWriter]:
    """The logs of two workers with a rank each, whose lines alternate: `0` at 0 s,
    `1` at 1 s ... `9` at 9 s.
    """
    log_server.write_job(tmp_path, n_workers=2)
    workers = [LogWriter(log_dir(tmp_path, 1, number)) for number in range(2)]
    for line in range(10):
        workers[line % 2].write(f"line {line}", at=line, rank=line % 2)
        if line == 5:
            workers[0].new_segment()
    return workers[0], workers[1]


@pytest.mark.usefixtures("two")
def test_lines_of_all_ranks_by_time_with_lines_of_their_rank_around(logs_server: Server) -> None:
    assert logs_server.text(grep="[45]$").splitlines() == ["[0] line 4", "[1] line 5"]
    around = ["[0] line 2", "[1] line 3", "[0] line 4", "[1] line 5", "[0] line 6", "[1] line 7"]
    assert logs_server.text(grep="line [45]", context=1).splitlines() == around
    assert logs_server.text(grep="line [48]", context=1).splitlines() == [
        f"[0] line {n}" for n in (2, 4, 6, 8)
    ]
    assert logs_server.text(grep="nothing") == ""


@pytest.mark.usefixtures("two")
def test_with_the_other_choices(logs_server: Server) -> None:
    assert logs_server.text(grep="line", rank=1, tail=2) == "line 7\nline 9\n"
    assert logs_server.text(grep="line [0-8]", since=stamp(7)).splitlines() == [
        "[1] line 7",
        "[0] line 8",
    ]
    assert logs_server.text(grep="line", tail=0) == ""
    with logs_server.get(grep="line", attempt=2) as answer:
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_an_expression_that_takes_too_long_ends_alone(
    logs_server: Server, writer: LogWriter, bounds: Bounds
) -> None:
    limit_s = search.LIMIT_S
    bounds(search, LIMIT_S=1.5)
    writer.write("a" * 60 + "b")
    with logs_server.get(grep="^(a+)+$") as answer:
        assert answer.status_code == 422
        assert answer.json()["message"] == "the search for '^(a+)+$' took longer than 1.5 s"
    bounds(search, LIMIT_S=limit_s)
    assert logs_server.text(grep="b$") == "[0] " + "a" * 60 + "b\n"


def test_too_many_lines(logs_server: Server, writer: LogWriter, bounds: Bounds) -> None:
    bounds(search, LINES_MAX=2)
    for _ in range(3):
        writer.write("same")
    with logs_server.get(grep="same") as answer:
        assert answer.json()["message"] == "'same' finds more than 2 lines or 64 MiB"
    assert logs_server.text(grep="same", tail=2).splitlines() == ["[0] same", "[0] same"]
    bounds(search, BYTES_MAX=10)
    with logs_server.get(grep="same", tail=1) as answer:
        assert answer.status_code == 422


def test_the_process_of_a_search_loads_little() -> None:
    heavy = "{'pydantic', 'fastapi', 'sqlalchemy'}"
    command = f"import sys, server_stub.logs.search; print({heavy} & sys.modules.keys())"
    assert (
        subprocess.run([sys.executable, "-c", command], capture_output=True, check=True).stdout
        == b"set()\n"
    )


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"grep": "("}, "grep='(' is not a regular expression: missing )"),
        ({"grep": "x" * 1001}, "longer than 1000 characters"),
        ({"grep": "x", "follow": "true"}, "takes no follow"),
        (
            {"grep": "x", "context": 1001},
            "context='1001': input should be less than or equal to 1000",
        ),
    ],
)
def test_wrong_requests(logs_server: Server, wrong: dict[str, Any], why: str) -> None:
    with logs_server.get(**wrong) as answer:
        assert answer.status_code == 422
        assert why in answer.json()["message"]
