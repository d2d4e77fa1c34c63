"""Functions as jobs: what they return and raise, the same on this machine and in pods,
whose Python is the image's.
"""

import getpass
import os
from pathlib import Path
from typing import Any

import click
import pytest

import client_lib
from client_lib import JobFailed, NotShared
from client_lib.functions import payload
from client_lib.spec.states import State
from tests.contract.places import ClusterPlace, Place, ended

pytestmark = pytest.mark.process

CACHES = ("HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "XDG_CACHE_HOME")


class Diverged(Exception):
    """Raised in a worker and caught here: neither pods nor the snapshot have this module."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's working directory, which is the snapshot."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def total(parts: list[int]) -> int:
    return sum(parts)


def ranks(scale: int, rank: int, world_size: int) -> tuple[int, int, str]:
    return scale * rank, world_size, os.environ["CLIENT_LIB_JOB_NAME"]


def diverge(rank: int) -> None:
    if rank == 3:
        raise Diverged("loss is nan")
    import time

    time.sleep(600)


@pytest.mark.smoke
def test_each_rank_returns_its_own_value(place: Place) -> None:
    job = place.job(ranks, args=(10,), n_workers=2, processes_per_worker=2)
    job.submit()
    assert job.results(timeout=90) == [(10 * rank, 4, job.name) for rank in range(4)]


def test_what_a_rank_raises_is_raised_here_as_its_own_class(place: Place) -> None:
    job = place.job(diverge, n_workers=2, processes_per_worker=2, grace_s=1)
    job.submit()
    with pytest.raises(Diverged, match="loss is nan") as raised:
        job.result(timeout=90)
    cause = raised.value.__cause__
    assert isinstance(cause, JobFailed)
    assert "rank 3 of job" in cause.message
    assert 'raise Diverged("loss is nan")' in cause.message


def test_another_version_of_python_is_said_in_a_sentence_and_nothing_is_called(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not every machine has two Pythons
    monkeypatch.setattr(payload, "here", lambda version: {"python": [3, 7], "cloudpickle": version})
    job = place.job(lambda: print("called"))
    job.submit()
    with pytest.raises(
        JobFailed,
        match=r"worker 0 can't read the function: it was submitted from Python 3\.7, and this",
    ):
        job.result(timeout=90)
    assert "called" not in [entry.text for entry in job.log_entries(follow=False, stream="stdout")]


@pytest.mark.cluster
def test_a_module_that_the_image_lacks_is_named(kube: ClusterPlace) -> None:
    job = kube.job(lambda: click.get_app_dir("x"), n_workers=2)
    job.submit()
    with pytest.raises(
        JobFailed, match=r"worker \d has no module 'click': add requirements=\['click'\]"
    ):
        job.result(timeout=90)


@pytest.mark.cluster
def test_a_folder_that_the_server_sees_and_pods_do_not_is_none_to_run_in(
    kube: ClusterPlace,
) -> None:
    """The server is on this machine."""
    with pytest.raises(NotShared, match="the workers of this server do not see the folder"):
        kube.job(look, code="in_place").submit()


def look() -> tuple[str, dict[str, bool]]:
    """Who runs this, and in which of the usual cache folders it can write."""
    found = {}
    for name in CACHES:
        folder = Path(os.environ[name]) / "made" / "here"
        folder.mkdir(parents=True)
        (folder / "model").write_text("weights")
        found[name] = (folder / "model").read_text() == "weights"
    return getpass.getuser(), found


@pytest.mark.cluster
def test_a_decorated_function_of_a_restricted_pod_has_a_user_and_writable_caches(
    kube: ClusterPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called as people do: the server is that of the environment."""
    monkeypatch.setenv("CLIENT_LIB_ENDPOINT", kube.url)
    monkeypatch.setenv("CLIENT_LIB_TOKEN", kube.token)
    monkeypatch.setenv("CLIENT_LIB_INSECURE", "1")
    user, caches = client_lib.remote(instance_type="small", name="looks")(look)()
    assert user == "user"
    assert caches == dict.fromkeys(CACHES, True)
    job = kube.client.get_job("looks")
    assert ended(job).info().state is State.SUCCEEDED


def test_an_argument_may_be_the_result_of_another_call(place: Place) -> None:
    options: dict[str, Any] = {
        "client": place.client,
        "instance_type": place.instance_type,
        "code": "snapshot",
        "grace_s": 5,
    }
    with client_lib.Executor(**options) as executor:
        parts = [executor.submit(total, [number]) for number in (1, 2)]
        assert executor.submit(total, [*parts, 10]).result(90) == 13
