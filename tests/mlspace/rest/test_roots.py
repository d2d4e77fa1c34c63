"""Which paths of a request are this server's own, and with what such a job runs."""

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, SubmitRequest
from server_stub.http.api.public_v2 import jobs
from server_stub.settings import Settings


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (tmp_path / "other.py").write_text("print(2)\n")
    return folder


def placed(settings: Settings, script: object, **spec: object) -> SubmitRequest:
    return asyncio.run(jobs.place(JobSpec(script=str(script), **spec), settings))


def sharing(*folders: Path) -> Settings:
    return Settings(state_dir=folders[0], public_v2_roots=list(folders))


def test_a_script_below_a_root_runs_where_it_lies(shared: Path) -> None:
    request = placed(sharing(shared), f"{shared}/train.py --epochs 3")
    assert isinstance(request.code, CodeInPlace)
    assert request.code.sha256 == hashlib.sha256(b"print(1)\n").hexdigest()
    assert (request.submitter.working_dir, request.submitter.python) == (None, sys.executable)
    assert "PATH" in request.submitter.environment


def test_a_relative_script_and_a_command_begin_in_the_first_root(
    shared: Path, tmp_path: Path
) -> None:
    settings = sharing(shared, tmp_path)
    assert placed(settings, "train.py").submitter.working_dir == str(shared)
    assert placed(settings, "bash run.sh").submitter.working_dir == str(shared)
    assert placed(settings, "bash -c 'sleep 1'", type="binary").submitter.working_dir == str(shared)


@pytest.mark.parametrize(
    "way", ["{0}/../other.py", "{0}/link.py", "/etc/nowhere.py", "../other.py"]
)
def test_no_way_leads_out_of_the_roots(way: str, shared: Path) -> None:
    (shared / "link.py").symlink_to(shared.parent / "other.py")
    with pytest.raises(InvalidRequest, match="lies outside") as refused:
        placed(sharing(shared), way.format(shared))
    assert "public_v2_roots" in (refused.value.hint or "")


def test_a_root_may_be_a_link_itself(shared: Path) -> None:
    link = shared.parent / "link"
    link.symlink_to(shared)
    assert placed(sharing(link), link / "train.py").code.mode == "in_place"


def test_a_script_that_is_not_there_is_refused_at_once(shared: Path) -> None:
    for script in ("nowhere.py", f"{shared}/folder.py"):
        (shared / "folder.py").mkdir(exist_ok=True)
        with pytest.raises(InvalidRequest, match="can't be read"):
            placed(sharing(shared), script)


def test_the_one_user_of_a_local_server_may_run_all_that_the_server_can_read(
    shared: Path, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path)
    assert placed(settings, shared.parent / "other.py").code.mode == "in_place"
    assert placed(settings, "sleep 1", type="binary").submitter.working_dir == str(Path.home())


def test_with_many_users_nothing_is_shared_until_the_admin_says_so(
    shared: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users.toml"
    with pytest.raises(InvalidRequest, match="none"):
        placed(Settings(state_dir=tmp_path, users_file=users), shared / "train.py")
    named = Settings(state_dir=tmp_path, users_file=users, public_v2_roots=[shared])
    assert placed(named, shared / "train.py").code.mode == "in_place"
    # a command names no folder: what it is on this machine is what its user means
    assert (
        placed(Settings(state_dir=tmp_path, users_file=users), "sleep 1").submitter.working_dir
        is None
    )


def test_the_server_s_own_secrets_stay_with_it(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
    assert "geheim" not in placed(sharing(shared), "train.py").model_dump_json()
