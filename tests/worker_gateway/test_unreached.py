"""A pod whose server never answers: its address is wrong, or the server is gone."""

import json
from pathlib import Path

import pytest

from tests.worker_gateway.conftest import free_port
from tests.worker_gateway.test_peers import DEADLINE_S, Gang, folder

__all__ = ["folder"]
pytestmark = pytest.mark.process


def test_an_agent_that_never_reaches_its_server_ends_and_names_the_address(folder: Path) -> None:
    gang = Gang(folder, "open('ran', 'w').close()", 1)
    address = f"http://127.0.0.1:{free_port()}"
    told = gang.root(0) / "plan" / "pod.json"
    told.write_text(
        json.dumps({**json.loads(told.read_bytes()), "server_url": address, "claim_s": 0.5})
    )
    assert gang.start(0).wait(DEADLINE_S) == 1
    word = gang.word(0)
    assert (word["reason"], word["ranks"]) == ("NodeLost", [])
    assert word["message"].startswith(f"worker 0 has not reached its server at {address} within")
    assert "Connection refused" in word["message"]
    assert not (folder / "ran").exists()
