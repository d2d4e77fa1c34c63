"""The checkpoints of jobs over HTTP: what is shown, and to which users."""

from collections.abc import Callable

import pytest

from client_lib import Client, NotFound
from client_lib.launcher_protocol.checkpoint_lines import SeenCheckpoint, begin_line, line_of
from client_lib.spec import paths
from server_stub.files.job_dirs import log_dir
from tests.http.conftest import Api, Running
from tests.http.test_stacks import runs
from tests.logs.support import LogWriter

CHECKPOINTS = paths.job("train", "checkpoints")
WHOLE = SeenCheckpoint("/c/step-10.pt", "torch", 10, 5000, 1e9, "", "complete", True, [])
CUT = SeenCheckpoint(
    "/c/<b>\n20.pt", "torch", 20, 50, 1e9, "cut off: 50 bytes", "writing", True, ["latest"]
)


def saves(server: Running, job_id: str) -> None:
    log = LogWriter(log_dir(server.settings.data_dir / "jobs" / job_id, 1, 0))
    for line in (begin_line(), line_of(WHOLE), line_of(CUT)):
        log.write(line.decode().strip(), rank="-", stream="metrics")


@pytest.fixture
def running(server: Running, ann: Api) -> str:
    job_id = runs(server, ann)
    saves(server, job_id)
    return job_id


def test_the_client_lists_them(running: str, server: Running) -> None:
    with Client(server.url, token=server.tokens["ann"]) as client:
        first, second = client.get_job("train").checkpoints()
    assert (first.step, first.state, first.attempt, first.size) == (10, "complete", 1, 5000)
    assert (second.path, second.state, second.missing) == (CUT.path, "writing", CUT.missing)
    assert second.pointers == ["latest"]


def test_a_job_without_any(server: Running, ann: Api) -> None:
    runs(server, ann)
    assert ann("GET", CHECKPOINTS).json() == {"job": "train", "checkpoints": [], "complete": True}


def test_other_users_see_none(start_server: Callable[..., Running]) -> None:
    server = start_server(share_jobs=True)
    saves(server, runs(server, server.as_user("ann")))
    ben = server.as_user("ben")
    assert ben("GET", CHECKPOINTS, params={"owner": "ann"}).status_code == 403
    root = server.as_user("root")
    assert root("GET", CHECKPOINTS, params={"owner": "ann"}).status_code == 200


def test_a_hidden_job_of_another_user_is_not_found(running: str, ben: Api, server: Running) -> None:
    assert ben("GET", CHECKPOINTS, params={"owner": "ann"}).status_code == 404
    with (
        Client(server.url, token=server.tokens["ben"]) as client,
        pytest.raises(NotFound),
    ):
        client.get_job("train").checkpoints()


def test_a_job_may_forbid_them(server: Running, ann: Api) -> None:
    saves(server, runs(server, ann, observe=False))
    answer = ann("GET", CHECKPOINTS)
    assert answer.status_code == 409
    assert "observe=False: it shows no checkpoints" in answer.json()["message"]
