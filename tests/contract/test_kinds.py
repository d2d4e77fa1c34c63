"""An operator who changes the kind of the jobs loses none: what runs goes on, what
is new is of the new kind.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_lib.spec.states import State
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.trainjob import TRAINJOB
from tests.cluster import Cluster
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, becomes, ended
from tests.contract.test_promises import texts

KINDS = {"pytorchjob": PYTORCHJOB, "trainjob": TRAINJOB}

pytestmark = pytest.mark.cluster


@pytest.fixture
def kinds(cluster: Cluster, tmp_path: Path) -> Iterator[ClusterPlace]:
    place = ClusterPlace(tmp_path, cluster, "kinds")
    yield place
    place.close()


def names(place: ClusterPlace, kind: str) -> list[str]:
    listed = place.cluster.api.get(KINDS[kind].collection(place.namespace))["items"]
    return [str(each["metadata"]["name"]) for each in listed]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_jobs_go_on_with_their_kind_when_another_one_is_chosen(
    kinds: ClusterPlace, sig: signal.Signals
) -> None:
    script = "import time\nprint('began', flush=True)\ntime.sleep(20)\n"
    old = kinds.job(script, name="old", n_workers=2)
    old.submit()
    becomes(old, State.RUNNING)
    assert names(kinds, "pytorchjob") == ["old"]  # the cluster has both kinds
    kinds.choose("trainjob", sig)
    new = kinds.job(script, name="new", n_workers=2)
    new.submit()
    becomes(new, State.RUNNING)
    assert (names(kinds, "pytorchjob"), names(kinds, "trainjob")) == (["old"], ["new"])
    kinds.choose("pytorchjob", sig)
    for name in ("old", "new"):
        job = ended(kinds.client.get_job(name))
        assert (job.info().state, job.info().attempt) == (State.SUCCEEDED, 1), job.info().message
        assert texts(job, stream=["stdout"]) == ["began", "began"]
    for _ in KINDS:
        assert_nothing_is_left(kinds)
        kinds.choose("trainjob", sig)
