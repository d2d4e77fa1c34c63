"""Somebody removes the directory of a running server."""

import shutil
from pathlib import Path

import pytest

from tests.faults.conftest import Start

pytestmark = pytest.mark.process

SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize("gone", ["state", "data"])
def test_a_server_whose_directory_is_gone_ends_and_says_so(
    gone: str, start: Start, tmp_path: Path
) -> None:
    server = start("--data-dir", str(tmp_path / "data"))
    server.accepted("sleeps", SLEEPS)
    server.running("sleeps")
    shutil.rmtree(tmp_path / gone)
    assert server.process.wait(10) == 1
    assert f"{tmp_path / gone} is gone" in server.output
    again = start("--data-dir", str(tmp_path / "data"))
    assert again.facts()


def test_another_directory_in_its_place_is_not_its_own(start: Start, tmp_path: Path) -> None:
    first = start()
    first.facts()
    (tmp_path / "state").rename(tmp_path / "moved")
    second = start()
    assert second.facts()["pid"] == second.process.pid
    assert first.process.wait(10) == 1
    assert second.call("GET", "/healthz").ok
    assert second.process.poll() is None
