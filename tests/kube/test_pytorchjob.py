"""The dry run of a PyTorchJob, which shows whether Kueue would queue it."""

import pytest

from server_stub.runtimes.kube.api import Api, ApiError, connect
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.queues import is_queued
from tests.cluster import Cluster
from tests.kube.test_real_api import PATHS

NAMESPACE = "queues"

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(control_plane: Cluster) -> Api:
    control_plane.namespace(NAMESPACE)
    return connect(control_plane.kubeconfig, None)


def test_nobody_queues_where_there_is_no_kueue_for_pytorch_jobs(api: Api) -> None:
    assert not is_queued(api, PYTORCHJOB, "jobs")


def test_nothing_is_made_of_it(api: Api, control_plane: Cluster) -> None:
    PYTORCHJOB.dry_run(api, NAMESPACE)
    assert control_plane.api.get(PATHS["PyTorchJob"].format(NAMESPACE))["items"] == []


def test_what_is_refused_is_an_error(api: Api) -> None:
    with pytest.raises(ApiError, match="nowhere"):
        PYTORCHJOB.dry_run(api, "nowhere")
