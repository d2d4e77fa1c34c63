"""A server of a cluster that finds another one on its data."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests

from client_lib.spec import paths
from client_lib.spec.state_dir import make_private
from server_stub import server_files
from tests.kit.processes import free_port
from tests.kit.server_process import DEADLINE_S, ServerProcess
from tests.kit.waiting import until
from tests.kube.cases import SMALL

pytestmark = pytest.mark.process


@contextmanager
def second_server(folder: Path, port: int) -> Iterator[ServerProcess]:
    """A server that waits for another one; its cluster never answers."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    kubeconfig = {
        "clusters": [cluster],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig))
    (folder / "catalogue.yaml").write_text(SMALL)
    server = ServerProcess(
        folder / "state",
        f"--port={port}",
        CLIENT_LIB_SERVER_RUNTIME="kubernetes",
        CLIENT_LIB_SERVER_KUBECONFIG=str(folder / "kubeconfig"),
        CLIENT_LIB_SERVER_CATALOGUE=str(folder / "catalogue.yaml"),
    )
    try:
        until(lambda: "this one waits until that one ends" in server.output)
        yield server
    finally:
        server.kill()


def test_a_second_server_of_a_cluster_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    state = make_private(tmp_path / "state")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    first = ExitStack()
    first.enter_context(server_files.locked([state], {"pid": 1, "host": "first"}))
    with first, second_server(tmp_path, port) as second:
        assert requests.get(url + paths.HEALTHZ, timeout=DEADLINE_S).text == "ok\n"
        refused = requests.get(url + paths.READYZ, timeout=DEADLINE_S)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert "(pid 1, host first) works on" in refused.json()["message"]
        first.close()
        second.facts()
        assert requests.get(url + paths.READYZ, timeout=DEADLINE_S).text.startswith("ok\n")
        assert second.end()[0] == 0


def test_a_server_that_waits_for_another_one_ends_at_sigterm(tmp_path: Path) -> None:
    state = make_private(tmp_path / "state")
    with server_files.locked([state], {}), second_server(tmp_path, free_port()) as second:
        assert second.end()[0] == 0
