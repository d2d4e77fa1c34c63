"""The stacks of a rank that was forked from a warm pool."""

import sys
from pathlib import Path

import pytest

from client_lib.spec.stacks import parse
from tests.warm.conftest import WarmPool, WarmWorker
from tests.worker.test_stacks import taken

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("warm pool"),
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]


def test_a_warm_rank_has_the_stacks_of_its_script(warm_pool: WarmPool, tmp_path: Path) -> None:
    worker = WarmWorker(
        tmp_path,
        """
        import time
        def waits():
            print("runs", flush=True)
            time.sleep(1000)
        waits()
        """,
    )
    try:
        worker.started_by(warm_pool).go()
        assert worker.started["warm"], worker.started
        worker.waits_for("runs")
        (only,) = taken(worker)
        (thread,) = parse(only["dump"])
        assert [frame.function for frame in thread.frames] == ["waits", "<module>"]
    finally:
        worker.close()
