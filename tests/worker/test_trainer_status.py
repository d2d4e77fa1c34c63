"""Status that libraries post to the launcher: what no client should send must not end
the loop of the launcher.
"""

import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.launcher_protocol.plan import TRAINER_STATUS
from client_lib.worker import trainer_status
from client_lib.worker.loop import Loop
from tests.kit.bounds import Bounds

HUGE = 10**400


class Over(Exception):
    """Ends a run of the loop, which may run again."""


class Steps(Loop):
    """A loop that runs until a condition holds."""

    def __init__(self) -> None:
        super().__init__(self._check)

    def run_until(self, is_over: Callable[[], bool], limit_s: float = 20.0) -> int:
        """Run, and return the number of rounds."""
        self._is_over, self._until, self._rounds = is_over, time.monotonic() + limit_s, 0
        self.call_later(0.01, lambda: None)
        with pytest.raises(Over):
            self.run()
        return self._rounds

    def _check(self) -> None:
        self._rounds += 1
        assert time.monotonic() < self._until
        if self._is_over():
            raise Over
        self.call_later(0.01, lambda: None)


@pytest.fixture
def loop() -> Iterator[Steps]:
    before = signal.set_wakeup_fd(-1)
    yield Steps()
    signal.set_wakeup_fd(before)


def test_a_post_that_is_no_status_is_refused_and_the_next_one_taken(
    loop: Steps, tmp_path: Path
) -> None:
    lines: list[bytes] = []
    status = trainer_status.TrainerStatus(loop, str(tmp_path / "token"), 0, lines.append)
    url, head = (
        status.variables[TRAINER_STATUS[0]],
        {"Authorization": f"Bearer {(tmp_path / 'token').read_text()}"},
    )
    wrong: list[Any] = [
        *(
            {"trainerStatus": {name: HUGE}}
            for name in ("progressPercentage", "estimatedRemainingSeconds")
        ),
        {"trainerStatus": {"metrics": [{"name": "x", "value": HUGE}]}},
        {"trainerStatus": []},
        {"trainerStatus": 3},
        {"trainerStatus": {"metrics": 3}},
        {"trainerStatus": {"metrics": [3]}},
    ]
    right = {"trainerStatus": {"metrics": [{"name": "loss", "value": "0.5"}]}}
    found: list[int] = []

    def post() -> None:
        with requests.Session() as session:
            session.trust_env = False
            for body in [*wrong, right]:
                found.append(
                    session.post(url, data=json.dumps(body), headers=head, timeout=10).status_code
                )

    poster = threading.Thread(target=post)
    poster.start()
    loop.run_until(lambda: not poster.is_alive())
    assert found == [422] * len(wrong) + [200]
    assert json.loads(b"".join(lines))[3] == {"loss": 0.5}


def test_without_a_free_descriptor_the_loop_rests(
    loop: Steps, tmp_path: Path, bounds: Bounds
) -> None:
    bounds(trainer_status, _AGAIN_S=0.3)
    status = trainer_status.TrainerStatus(loop, str(tmp_path / "token"), 0, lambda _: None)
    address = status.variables[TRAINER_STATUS[0]].split("/")[2].split(":")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection((address[0], int(address[1]))) as client:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest - 1, before[1]))
        held = []
        try:
            try:
                while True:
                    held.append(os.dup(0))
            except OSError:
                pass
            until = time.monotonic() + 0.25
            assert loop.run_until(lambda: time.monotonic() > until) < 60
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        loop.run_until(lambda: bool(status._open))
        client.sendall(b"\r\n")
