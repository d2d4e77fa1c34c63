"""Extra packages in pods: from an index of the user's, into an environment that sees the image's;
or why not.

Pods reach nothing but this machine, so the index is here. The image is that of the other tests with
pip laid over it.
"""

import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pip
import pytest

from client_lib import Job
from client_lib.spec.states import Reason, State
from tests.cluster import oci
from tests.contract.places import ClusterPlace, ended
from tests.deploy import image as deployed
from tests.worker.wheels import wheel

pytestmark = pytest.mark.cluster

WITH_PIP = "localhost/python-pip:local"
PACKAGES = "usr/lib/python3/dist-packages"
HEADER = """\
# /// script
# dependencies = ["extra>=1"]
# ///
"""
USE = """\
import extra, pip, sys
print(extra.__version__, pip.__path__[0], sys.prefix != sys.base_prefix)
"""


@pytest.fixture(scope="module")
def image(cluster_place: ClusterPlace, tmp_path_factory: pytest.TempPathFactory) -> str:
    """In the cluster's store, by name."""
    folder = tmp_path_factory.mktemp("image")
    with tarfile.open(folder / "pip.layer", "w") as layer:
        layer.add(pip.__path__[0], f"{PACKAGES}/pip")
    lowest = deployed.lowest(cluster_place.cluster.home, "python", folder)
    oci.write(folder / "image.tar", WITH_PIP, [lowest, folder / "pip.layer"])
    cluster_place.cluster.load(str(folder / "image.tar"))
    return WITH_PIP


@pytest.fixture(scope="module")
def index(
    cluster_place: ClusterPlace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """What makes pip ask it: one package, in one version."""
    folder = tmp_path_factory.mktemp("index")
    wheel(folder / "extra", "extra")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    machine = cluster_place.cluster.network.host_ip
    with ThreadingHTTPServer((machine, 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "PIP_INDEX_URL": f"http://{machine}:{server.server_port}/",
            "PIP_TRUSTED_HOST": machine,
        }
        server.shutdown()


def texts(job: Job, stream: str) -> list[str]:
    return [entry.text for entry in job.log_entries(follow=False, stream=stream)]


def test_what_the_header_of_a_script_asks_for_is_there_beside_the_image_s(
    kube: ClusterPlace, image: str, index: dict[str, str]
) -> None:
    job = kube.run(HEADER + USE, base_image=image, env_variables=index, n_workers=2)
    assert job.info().state is State.SUCCEEDED, job.info().message
    assert texts(job, "stdout") == [f"1.0 /{PACKAGES}/pip True"] * 2
    assert [line for line in texts(job, "launcher") if "Successfully installed" in line] == [
        "Successfully installed extra-1.0"
    ] * 2


def test_a_wheel_of_the_project_is_installed_out_of_the_snapshot(
    kube: ClusterPlace, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("./wheels/own-2.0-py3-none-any.whl\n")
    wheel(tmp_path / "wheels", "own", "2.0")
    (tmp_path / "train.py").write_text("import own; print(own.__version__)\n")
    monkeypatch.chdir(tmp_path)
    options = {
        "requirements": "requirements.txt",
        "base_image": image,
        "env_variables": {"PIP_NO_INDEX": "1"},
    }
    job = Job(script="train.py", client=kube.client, **options)  # type: ignore[arg-type]
    job.submit()
    assert ended(job).info().state is State.SUCCEEDED, job.info().message
    assert texts(job, "stdout") == ["2.0"]


def test_a_package_that_the_index_has_not_ends_the_job_before_a_rank_starts(
    kube: ClusterPlace, image: str, index: dict[str, str]
) -> None:
    info = kube.run(
        USE, base_image=image, env_variables=index, n_workers=2, requirements=["extra==9.9"]
    ).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert (
        "requirements=[extra==9.9] can't be installed: no version of extra==9.9 is there; there "
        "are: 1.0"
    ) in (info.message)
    assert [worker.exit_code for worker in info.workers] != [0, 0]
    assert info.started_at is None


def test_an_image_that_can_install_nothing_says_so(kube: ClusterPlace) -> None:
    info = kube.run(USE, requirements=["extra"]).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert (
        "requirements=[extra] can't be installed: the interpreter has no pip, and there is no uv"
        in info.message
    )
