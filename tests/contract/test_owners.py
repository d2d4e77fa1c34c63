"""Users of one server who know nothing of each other, in one namespace of a cluster."""

import re
import signal

import pytest

from client_lib import Client, Job
from client_lib.spec.states import State
from tests.contract.places import ClusterPlace, becomes, ended, new_token
from tests.contract.test_promises import STAY, texts

pytestmark = pytest.mark.cluster


def objects_of(kube: ClusterPlace) -> list[str]:
    return sorted(
        str(each["metadata"]["name"]) for each in kube.cluster.api.get(kube.jobs)["items"]
    )


def test_two_owners_may_give_their_jobs_one_name(kube: ClusterPlace) -> None:
    other = Client(kube.url, new_token(kube.folder / "users.toml", "other"), insecure=True)
    first = kube.job(STAY, name="train")
    first.submit()
    becomes(first, State.RUNNING)
    script = (
        "import os\nprint('ran', os.environ['CLIENT_LIB_JOB_NAME'], "
        "os.environ['CLIENT_LIB_ATTEMPT'])\n"
    )
    script += (
        "import time\ntime.sleep(3)\nraise SystemExit(os.environ['CLIENT_LIB_ATTEMPT'] == '1')\n"
    )
    (kube.folder / "train.py").write_text(script)
    second = Job(
        script=kube.folder / "train.py",
        client=other,
        instance_type=kube.instance_type,
        name="train",
        code="snapshot",
        max_retry=1,
    )
    second.submit()
    becomes(second, State.RUNNING)
    plain, marked = objects_of(kube)
    assert plain == "train"
    assert re.fullmatch(r"train-[0-9a-f]{6}", marked)
    assert ended(second).info().state is State.SUCCEEDED, second.info().message
    assert texts(second, stream=["stdout"]) == ["ran train 1", "ran train 2"]
    assert first.info().state is State.RUNNING
    first.cancel()
    ended(first)


def test_the_second_is_found_again_when_the_first_is_gone(kube: ClusterPlace) -> None:
    other = Client(kube.url, new_token(kube.folder / "users.toml", "another"), insecure=True)
    first = kube.job(STAY, name="stays")
    first.submit()
    becomes(first, State.RUNNING)
    (kube.folder / "stay.py").write_text(STAY)
    second = Job(
        script=kube.folder / "stay.py",
        client=other,
        instance_type=kube.instance_type,
        name="stays",
        code="snapshot",
    )
    second.submit()
    becomes(second, State.RUNNING)
    (marked,) = [name for name in objects_of(kube) if name != "stays"]
    kube.restart(signal.SIGTERM, pause=lambda: kube.cluster.api.delete(f"{kube.jobs}/stays"))
    assert ended(kube.client.get_job("stays")).info().state is State.FAILED
    again = other.get_job("stays")
    assert again.info().state is State.RUNNING
    assert objects_of(kube) == [marked]
    again.cancel()
    assert ended(again).info().state is State.CANCELLED
