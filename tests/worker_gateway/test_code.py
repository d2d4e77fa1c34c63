"""Code and functions that workers elsewhere fetch, and results that they bring:
with the SDK, as users do.
"""

import os
from pathlib import Path

import pytest

from client_lib import Client, Executor, Job, State
from client_lib.spec import paths
from tests.kit.local_server import CLIENT_VARIABLES
from tests.worker_gateway.conftest import Site, Start
from tests.worker_gateway.test_outages import texts
from tests.worker_gateway.test_rights import Speaker

pytestmark = pytest.mark.process


@pytest.fixture
def gateway(site: Start) -> Site:
    return site()


@pytest.fixture
def client(gateway: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(f"CLIENT_LIB_{name}", raising=False)
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))
    token = (gateway.state_dir / "token").read_text().strip() if gateway.facts() else ""
    return Client(gateway.facts()["url"], token)


def shared_size(scale: int) -> tuple[str, int]:
    return os.environ["RANK"], int(os.environ["WORLD_SIZE"]) * scale


def submitted(client: Client, folder: Path, text: str, name: str) -> Job:
    """A script of a folder with a module beside it, as a snapshot."""
    folder.mkdir()
    (folder / "beside.py").write_text(f"word = {text!r}\n")
    (folder / "train.py").write_text(
        "import beside, os; print(beside.word, os.path.basename(os.getcwd()))"
    )
    job = Job(
        script=str(folder / "train.py"), code="snapshot", n_workers=2, name=name, client=client
    )
    job.submit()
    return job


@pytest.mark.smoke
def test_each_worker_fetches_the_code_as_it_was_submitted(
    gateway: Site, client: Client, tmp_path: Path
) -> None:
    job = submitted(client, tmp_path / "one", "as submitted", "one")
    (tmp_path / "one" / "beside.py").write_text("word = 'edited later'\n")
    assert job.wait(60).state is State.SUCCEEDED
    info = gateway.job("one")
    assert [texts(gateway.stored_log(info, worker)) for worker in (0, 1)] == [
        ["as submitted work"]
    ] * 2


def test_a_token_opens_the_code_of_its_own_job_alone(
    gateway: Site, client: Client, tmp_path: Path
) -> None:
    (gateway.state_dir / "data" / "pods.json").write_text('{"held": [0]}')
    jobs = [submitted(client, tmp_path / name, name, name) for name in ("mine", "other")]
    infos = [gateway.job(job.job_name or "") for job in jobs]
    mine, other = (Speaker(gateway, info, of_pod=1) for info in infos)
    fetched = mine(method="GET", what="/snapshot", body=b"")
    assert fetched.content == gateway.get(paths.snapshot(infos[0]["code"]["sha256"])).content
    assert fetched.content != other(method="GET", what="/snapshot", body=b"").content
    assert mine(method="GET", what="/snapshot", body=b"", name="other").status_code == 403
    assert mine(method="GET", what="/function", body=b"").status_code == 404


def test_code_that_is_gone_is_said(
    gateway: Site, client: Client, tmp_path: Path, site: Start
) -> None:
    (gateway.state_dir / "data" / "pods.json").write_text('{"held": [0, 1]}')
    submitted(client, tmp_path / "gone", "gone", "gone")
    gateway.end()
    next((gateway.state_dir / "data" / "snapshots").glob("*/code.tar.gz")).unlink()
    ended = site(pods={}).ended("gone")
    assert (ended["state"], ended["reason"]) == ("FAILED", "CodeFetch")
    assert "the server does not give the snapshot" in ended["message"]


def test_a_function_runs_and_each_rank_brings_its_result(gateway: Site, client: Client) -> None:
    job = Job(
        script=shared_size,
        args=(10,),
        n_workers=2,
        processes_per_worker=2,
        name="call",
        client=client,
    )
    job.submit()
    assert job.results(timeout=60) == [(str(rank), 40) for rank in range(4)]
    assert "waits" not in "".join(
        (gateway.pod(gateway.job("call"), worker) / "stderr").read_text() for worker in (0, 1)
    )


def test_a_worker_finds_the_outputs_of_the_jobs_before_and_may_fetch_no_others(
    gateway: Site, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import os, pathlib\n"
        "folder = pathlib.Path(os.environ.get('CLIENT_LIB_AFTER_0_OUTPUTS', 'none'))\n"
        "for path in sorted(folder.rglob('*')):\n"
        "    print(path.relative_to(folder), path.is_dir() or len(path.read_text()))\n"
        "pathlib.Path('kept').mkdir(); pathlib.Path('kept/model.pt').write_text('x' * 10**6)\n"
        "pathlib.Path('line').write_text('one')\n"
    )
    script = str(tmp_path / "code" / "train.py")
    Job(script=script, code="snapshot", name="first", client=client).submit()
    second = Job(
        script=script, code="snapshot", name="second", n_workers=2, after=["first"], client=client
    )
    second.submit()
    assert second.wait(60).state is State.SUCCEEDED
    found = texts(gateway.stored_log(gateway.job("second"), 1))
    assert found == ["kept True", "kept/model.pt 1000000", "line 3"]
    (gateway.state_dir / "data" / "pods.json").write_text('{"held": [0]}')
    submitted(client, tmp_path / "third", "third", "third")
    third = Speaker(gateway, gateway.job("third"), of_pod=1)
    assert third(method="GET", what="/inputs", body=b"").status_code == 404


def test_a_worker_gets_the_result_of_another_call_as_an_argument(
    gateway: Site, client: Client
) -> None:
    with Executor(client=client) as executor:
        first = executor.submit(shared_size, 10)
        assert executor.submit(max, first, ("0", 20)).result(60) == ("0", 20)


def test_code_that_was_changed_on_its_way_is_not_run(
    gateway: Site, client: Client, tmp_path: Path, site: Start
) -> None:
    (gateway.state_dir / "data" / "pods.json").write_text('{"held": [0, 1]}')
    submitted(client, tmp_path / "other", "other", "other")
    gateway.end()
    archive = next((gateway.state_dir / "data" / "snapshots").glob("*/code.tar.gz"))
    archive.write_bytes(archive.read_bytes() + b"\0")
    ended = site(pods={}).ended("other")
    assert (ended["state"], ended["reason"]) == ("FAILED", "CodeFetch")
    assert "does not have the digest that was submitted" in ended["message"]
