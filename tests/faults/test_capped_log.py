"""A job that logs without end: its head and its tail are kept, and who reads it is
told how much is between.
"""

from pathlib import Path

import pytest

from client_lib.spec import paths
from tests.faults.conftest import Start

pytestmark = pytest.mark.process

LINES = 40_000
LIMIT = 2**20


def test_head_and_tail_are_kept_and_the_gap_is_counted(start: Start, tmp_path: Path) -> None:
    server = start(CLIENT_LIB_SERVER_LOG_LIMIT_BYTES=str(LIMIT))
    server.accepted("talks", f"for i in range({LINES}): print('line', i, 'x' * 60)")
    assert server.ended("talks")["state"] == "SUCCEEDED"
    kept = sum(
        path.stat().st_size
        for path in tmp_path.glob("state/data/jobs/*/attempts/1/workers/0/log/*")
    )
    assert kept < 1.3 * LIMIT

    text = server.lines("talks")
    numbers = [int(line.split()[1]) for line in text if line.startswith("line ")]
    assert (numbers[0], numbers[-1]) == (0, LINES - 1)
    assert numbers == sorted(set(numbers))
    frames = server.call(
        "GET", paths.job("talks", "logs"), headers={"Accept": paths.LOG_FRAMES}
    ).content
    (gap,) = [line.split() for line in frames.splitlines() if line.startswith(b"@gap ")]
    assert gap[:3] == [b"@gap", b"1", b"0"]
    hidden = int(gap[3]) - (LINES - len(numbers))
    assert 0 <= hidden < 10, "records of the worker's packages may be among the missing ones"
