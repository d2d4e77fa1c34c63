"""Outputs and packages of workers elsewhere: what they keep arrives at the
server, also when that was away.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib import Client, Job, State
from client_lib.launcher_protocol.output_store import SourceFile
from client_lib.spec import paths
from client_lib.worker.outputs.http_store import HttpStore
from tests.kit.local_server import CLIENT_VARIABLES
from tests.worker_gateway.conftest import Site, Start
from tests.worker_gateway.test_rights import Speaker

pytestmark = pytest.mark.process

PATIENCE_S = 90.0


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Site], Client]:
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(f"CLIENT_LIB_{name}", raising=False)
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))

    def connect(server: Site) -> Client:
        url = server.facts()["url"]
        return Client(url, (server.state_dir / "token").read_text().strip())

    return connect


def submitted(client: Client, folder: Path, script: str, name: str, workers: int = 1) -> Job:
    folder.mkdir()
    (folder / "train.py").write_text(script)
    job = Job(
        script=str(folder / "train.py"),
        code="snapshot",
        n_workers=workers,
        name=name,
        client=client,
    )
    job.submit()
    return job


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.smoke
def test_what_workers_elsewhere_leave_is_listed_and_downloaded_alike(
    site: Start, client: Callable[[Site], Client], tmp_path: Path
) -> None:
    script = """
import os
rank = os.environ["RANK"]
os.makedirs("out")
open("out/%s #?%%41" % rank, "w").write(rank)
open("same", "w").write("same")
open("log", "w").write(rank)
open("empty", "w")
os.symlink("/etc/passwd", "secret")
"""
    job = submitted(client(site()), tmp_path / "code", script, "kept", workers=2)
    assert job.wait(PATIENCE_S).state is State.SUCCEEDED
    job.download(tmp_path / "here")
    assert tree(tmp_path / "here") == {
        "out/0 #?%41": "0",
        "out/1 #?%41": "1",
        "same": "same",
        "log": "0",
        "worker-1/log": "1",
        "empty": "",
    }
    left = job.client.job_outputs("kept").left_out
    assert [(one.path, one.worker) for one in left] == [("secret", 0), ("secret", 1)]


def test_a_server_that_is_away_at_the_end_gets_the_outputs_when_it_is_back(
    site: Start, client: Callable[[Site], Client], tmp_path: Path
) -> None:
    script = f"""
import os, time
print("started", flush=True)
while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)
open("model", "w").write("x" * 20_000_000)
"""
    server = site(pods={})
    job = submitted(client(server), tmp_path / "code", script, "away")
    assert next(iter(job.log_lines())) == "started"
    server.end()
    (tmp_path / "go").touch()
    time.sleep(1)  # the worker goes on without it, whatever it is at then
    back = site()
    job = client(back).get_job("away")
    assert job.wait(PATIENCE_S).state is State.SUCCEEDED
    (path,) = job.download(tmp_path / "here")
    assert path.read_text() == "x" * 20_000_000


@pytest.fixture
def store(
    site: Start, client: Callable[[Site], Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[HttpStore, Client]:
    """Clients for a job whose worker 0 has no pod, in whose place the test sends the requests."""
    server = site(pods={"held": [0]}, CLIENT_LIB_SERVER_OUTPUTS_LIMIT_BYTES="30000000")
    submitted(client(server), tmp_path / "code", "print('x')", "held", workers=2)
    token = tmp_path / "token"
    token.write_text(Speaker(server, server.job("held"), of_pod=1).token)
    monkeypatch.setenv("CLIENT_LIB_POD_UID", "uid-of-test")
    made = HttpStore(
        server.facts()["url"] + paths.worker("held", 1, 0) + "/outputs", str(token), None
    )
    return made, client(server)


def put(to: HttpStore, path: Path, name: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        to.keep(SourceFile(name, fd, True, lambda: None))
    finally:
        os.close(fd)


def kept(client: Client) -> dict[str, int]:
    return {file.path: file.size for file in client.job_outputs("held").files}


def test_the_server_takes_versions_bounds_them_and_forgets(
    store: tuple[HttpStore, Client], tmp_path: Path
) -> None:
    to, asking = store
    (tmp_path / "file").write_bytes(b"1" * 20_000_000)
    put(to, tmp_path / "file", "a/model.pt")
    (tmp_path / "file").write_bytes(b"2" * 25_000_000)
    put(to, tmp_path / "file", "a/model.pt")  # takes the place of the other
    assert kept(asking) == {"a/model.pt": 25_000_000}
    with pytest.raises(OSError, match=r"and may keep 30\.0 MB"):
        put(to, tmp_path / "file", "b.pt")
    to.leave_out("b.pt", 25_000_000, "too much")
    assert [(left.path, left.why) for left in asking.job_outputs("held").left_out] == [
        ("b.pt", "too much")
    ]
    to.forget("a/model.pt")
    assert kept(asking) == {}
    for hostile in ("../../etc/x", "a//b", "a/./b"):
        with pytest.raises(OSError, match="is no relative path"):
            put(to, tmp_path / "file", hostile)
    assert kept(asking) == {}
