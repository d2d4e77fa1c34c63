"""Checkpoints that a server removes and sends, for their owner alone."""

import io
import os
import sys
import tarfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
import requests

from client_lib import Client
from client_lib.errors import BadResponse
from client_lib.launcher_protocol.checkpoint_lines import SeenCheckpoint, begin_line, line_of
from client_lib.spec import paths
from server_stub.files.job_dirs import log_dir
from server_stub.http.api import answers
from server_stub.runtimes.local import checkpoints as local_checkpoints
from server_stub.runtimes.local.checkpoints import LocalCheckpoints
from server_stub.service import job_checkpoints
from tests.http.conftest import Api, Running
from tests.http.test_stacks import runs
from tests.kit.bounds import Bounds
from tests.kit.waiting import until
from tests.logs.support import LogWriter

PRUNE = paths.job("train", "checkpoints/prune")
ARCHIVE = paths.job("train", "checkpoints/archive")
CHECKPOINTS = paths.job("train", "checkpoints")


def seen(path: Path) -> SeenCheckpoint:
    status = path.stat()
    return SeenCheckpoint(
        *(str(path), "torch", 1, status.st_size, status.st_mtime, "", "complete", True, [])
    )


def has_checkpoints(server: Running, job_id: str, folder: Path) -> list[Path]:
    """Let the runtime have two checkpoints, and the log of the job tell them."""
    server.runtime.checkpoints = LocalCheckpoints(folder, None, sys.executable)
    folder.mkdir(exist_ok=True)
    found = [folder / "step-1.safetensors", folder / "step-2.safetensors"]
    log = LogWriter(log_dir(server.settings.data_dir / "jobs" / job_id, 1, 0))
    lines = [begin_line()]
    for path in found:
        path.write_bytes((2).to_bytes(8, "little") + b"{}")
        lines.append(line_of(seen(path)))
    for line in lines:
        log.write(line.decode().strip(), rank="-", stream="metrics")
    return found


@pytest.fixture
def saved(server: Running, ann: Api, tmp_path: Path) -> list[Path]:
    """The checkpoints of a running job of ann."""
    return has_checkpoints(server, runs(server, ann), tmp_path / "checkpoints")


def test_early_ones_are_told_first_and_removed_then(saved: list[Path], ann: Api) -> None:
    first, second = saved
    answer = ann("POST", PRUNE, json={"keep": 1}).json()
    (early,) = answer["checkpoints"]
    assert (early["path"], early["step"], early["size"]) == (str(first), 1, 10)
    assert first.exists()
    removed = ann("POST", PRUNE, json={"keep": 1, "paths": [str(first), str(second)]}).json()
    assert removed == answer
    assert os.listdir(second.parent) == [second.name]


def test_a_checkpoint_is_sent_as_an_archive(saved: list[Path], ann: Api) -> None:
    answer = ann("GET", ARCHIVE, params={"path": str(saved[0])})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert archive.getnames() == ["step-1.safetensors"]


def test_nothing_but_a_listed_checkpoint_is_sent(saved: list[Path], ann: Api) -> None:
    other = saved[0].with_name("notes.txt")
    other.write_text("mine")
    answer = ann("GET", ARCHIVE, params={"path": str(other)})
    assert answer.status_code == 404
    assert f"job train has no checkpoint {other}" in answer.json()["message"]


def test_a_checkpoint_that_is_gone_is_an_error_before_the_first_byte(
    saved: list[Path], ann: Api
) -> None:
    saved[0].unlink()
    answer = ann("GET", ARCHIVE, params={"path": str(saved[0])})
    assert answer.status_code == 500
    assert "can't be read: FileNotFoundError" in answer.json()["message"]


def test_an_archive_that_breaks_off_is_not_complete(saved: list[Path], ann: Api) -> None:
    with saved[0].open("r+b") as file:
        file.truncate(2**30)  # more than the buffers between the program and this test hold
        with ann.session.get(
            ann.url + ARCHIVE, params={"path": str(saved[0])}, stream=True, timeout=20
        ) as answer:
            file.truncate(0)
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                for _ in answer.iter_content(2**20):
                    pass


def test_a_download_that_breaks_off_leaves_nothing(
    saved: list[Path], server: Running, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    with Client(server.url, token=server.tokens["ann"]) as client, saved[0].open("r+b") as file:
        file.truncate(2**30)  # sparse, and larger than what is fetched until it shrinks
        shrinking = threading.Thread(target=lambda: shrink_when(file, lambda: any_bytes(here)))
        shrinking.start()
        with pytest.raises(BadResponse):
            client.get_job("train").download(here, checkpoint=1)
        shrinking.join()
    assert os.listdir(here) == []


def any_bytes(folder: Path) -> bool:
    return any(path.is_file() and path.stat().st_size for path in folder.rglob("*"))


def shrink_when(file: IO[bytes], condition: Callable[[], bool]) -> None:
    until(condition, "bytes have arrived")
    file.truncate(0)


def acts(user: Api, path: Path, **params: str) -> set[int]:
    """The answers to a removal, and to a request for the bytes."""
    removal = user("POST", PRUNE, json={"keep": 1, "paths": [str(path)]}, params=params)
    sent = user("GET", ARCHIVE, params={"path": str(path), **params})
    return {removal.status_code, sent.status_code}


def test_another_user_finds_no_job(saved: list[Path], ben: Api, root: Api) -> None:
    assert acts(ben, saved[0], owner="ann") == {404}
    assert saved[0].exists()
    assert root("POST", PRUNE, json={"keep": 1}, params={"owner": "ann"}).status_code == 200


def test_a_user_of_a_server_that_shares_jobs_removes_and_reads_none(
    start_server: Callable[..., Running], tmp_path: Path
) -> None:
    server = start_server(share_jobs=True)
    saved = has_checkpoints(server, runs(server, server.as_user("ann")), tmp_path / "c")
    assert acts(server.as_user("ben"), saved[0], owner="ann") == {403}
    assert saved[0].exists()


def test_where_the_server_sees_no_files_the_way_out_is_told(
    saved: list[Path], server: Running, ann: Api
) -> None:
    server.runtime.checkpoints = None
    assert acts(ann, saved[0]) == {422}
    problem = ann("POST", PRUNE, json={"keep": 1}).json()
    assert "on disks of its workers, which this server does not see" in problem["message"]
    assert "client-lib exec train -- rm -r PATH" in problem["hint"]


def test_none_goes_while_a_job_waits_for_a_copy(
    saved: list[Path], server: Running, ann: Api
) -> None:
    ann.submit(name="next", after=["any:train"], checkpoint_from="train")
    answer = ann("POST", PRUNE, json={"keep": 1, "paths": [str(saved[0])]})
    assert answer.status_code == 409
    assert "job next waits for a copy of the checkpoints of train" in answer.json()["message"]
    assert saved[0].exists()
    ann("POST", paths.job("next", "cancel"))
    assert ann("POST", PRUNE, json={"keep": 1}).status_code == 200


def test_after_the_end_of_a_job_the_list_leaves_out_what_was_removed(
    server: Running, ann: Api, tmp_path: Path, bounds: Bounds
) -> None:
    bounds(job_checkpoints, _LOOK_S=60)
    bounds(local_checkpoints, _LOOK_S=60)
    job_id = runs(server, ann)
    first, second = has_checkpoints(server, job_id, tmp_path / "checkpoints")
    first.unlink()

    assert listed(ann) == [str(first), str(second)]  # its launcher looks again soon
    ends(ann)
    assert listed(ann) == [str(second)]
    server.runtime.checkpoints = None
    assert listed(ann) == [str(first), str(second)]  # nobody looks: as they were last seen


def listed(user: Api) -> list[str]:
    return [each["path"] for each in user("GET", CHECKPOINTS).json()["checkpoints"]]


def ends(user: Api) -> None:
    job = user("POST", paths.job("train", "cancel")).json()
    while job["state"] != "CANCELLED":
        job = user("GET", paths.job("train"), params={"after_version": job["version"]}).json()


def test_if_the_disk_does_not_answer_the_list_is_as_it_was_seen(
    saved: list[Path], server: Running, ann: Api, tmp_path: Path, bounds: Bounds
) -> None:
    bounds(job_checkpoints, _LOOK_S=0.2)
    bounds(local_checkpoints, _LOOK_S=60)
    answers_now = tmp_path / "answers-now"
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\nuntil [ -e {answers_now} ]; do sleep 0.1; done\n")
    slow.chmod(0o700)
    server.runtime.checkpoints = LocalCheckpoints(saved[0].parent, None, str(slow))
    ends(ann)
    saved[0].unlink()
    try:
        assert listed(ann) == list(map(str, saved))
    finally:
        answers_now.touch()


def stalled(user: Api, path: Path) -> requests.Response:
    """The begin of a download that nobody reads on."""
    with path.open("r+b") as file:
        file.truncate(2**30)
    return user.session.get(user.url + ARCHIVE, params={"path": str(path)}, stream=True, timeout=20)


def test_downloads_that_nobody_reads_leave_the_list_alone(
    saved: list[Path], ann: Api, bounds: Bounds
) -> None:
    bounds(job_checkpoints, _LOOK_S=60)
    bounds(local_checkpoints, _LOOK_S=60)
    ends(ann)
    with ExitStack() as downloads:
        for _ in range(4):  # as many as a user may have at once
            downloads.enter_context(stalled(ann, saved[0]))
        saved[1].unlink()
        assert listed(ann) == [str(saved[0])]


def test_a_download_that_nobody_reads_ends(saved: list[Path], ann: Api, bounds: Bounds) -> None:
    bounds(answers, _IDLE_S=0.5)
    with ExitStack() as downloads:
        begun = [downloads.enter_context(stalled(ann, saved[0])) for _ in range(4)]
        assert ann("POST", PRUNE, json={"keep": 1}).status_code == 200
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            for _ in begun[0].iter_content(2**20):
                pass


@pytest.mark.parametrize("body", [{}, {"keep": 0}, {"keep": 1, "paths": ["x"] * 1001}])
def test_a_wrong_request_is_refused(saved: list[Path], ann: Api, body: dict[str, object]) -> None:
    assert ann("POST", PRUNE, json=body).status_code == 422
    assert saved[0].exists()
