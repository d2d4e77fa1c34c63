"""A new catalogue with an error: `server check` finds it, and a server that gets it starts with the
last valid one.

The API server of the cluster does not answer: neither needs it.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import InvalidRequest
from client_lib.spec import paths
from server_stub.__main__ import main
from server_stub.runtimes.kube.catalogue.file import load_or_kept, read
from tests.kit.server_process import ServerProcess
from tests.kube.test_connect import kubeconfig

pytestmark = pytest.mark.process

GOOD = "instance_types: [{name: a.1gpu, cpu: 1, memory_gib: 2}]\n"
BETTER = GOOD.replace("a.1gpu", "b.1gpu")
WRONG = BETTER.replace("cpu:", "cpus:")


class Site:
    """The data directory of one server, and its catalogue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "catalogue.yaml"
        self.kubeconfig = kubeconfig(folder)
        self.servers: list[ServerProcess] = []

    def start(self, catalogue: str, **variables: str) -> ServerProcess:
        self.file.write_text(catalogue)
        given = {
            "RUNTIME": "kubernetes",
            "KUBECONFIG": str(self.kubeconfig),
            "CATALOGUE": str(self.file),
        } | variables
        prefixed: dict[str, Any] = {
            f"CLIENT_LIB_SERVER_{name}": value for name, value in given.items()
        }
        self.servers.append(ServerProcess(self.folder / "state", **prefixed))
        return self.servers[-1]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    for server in found.servers:
        server.kill()


def types(server: ServerProcess) -> list[str]:
    return [each["name"] for each in server.get(paths.INSTANCE_TYPES).json()["instance_types"]]


def test_a_server_that_gets_a_wrong_catalogue_uses_the_last_valid_one_and_says_so(
    site: Site,
) -> None:
    first = site.start(GOOD)
    assert types(first) == ["a.1gpu"]
    assert first.get(paths.READYZ).text == "ok\n"
    assert not [
        check
        for check in first.get(paths.DOCTOR).json()["checks"]
        if check["name"] == "catalogue file"
    ]
    first.end()

    second = site.start(WRONG)
    assert types(second) == ["a.1gpu"]
    ready = second.get(paths.READYZ)
    warning = (
        "the file of the catalogue is not valid, and an earlier one is used; `client-lib doctor` "
        "has the error"
    )
    assert (ready.status_code, ready.text.splitlines()) == (200, ["ok", f"warning: {warning}"])
    (check,) = [
        each
        for each in second.get(paths.DOCTOR).json()["checks"]
        if each["name"] == "catalogue file"
    ]
    error = (
        f"the catalogue {site.file}: line 1: unknown field 'instance_types.0.cpus'; did you mean "
        "'cpu'?"
    )
    assert not check["ok"]
    assert check["message"].startswith(error)
    assert check["message"].endswith(" UTC is used instead")
    assert error in second.end()[1]


def test_the_copy_is_that_of_the_last_valid_file(tmp_path: Path) -> None:
    file, kept = tmp_path / "catalogue.yaml", tmp_path / "kept.yaml"
    for text in (GOOD, BETTER):
        file.write_text(text)
        assert load_or_kept(file, kept)[1] == ""
        file.write_text(WRONG)
        found, problem = load_or_kept(file, kept)
        assert (found, kept.read_text()) == (read(text), text)
        assert "unknown field" in problem


def test_a_damaged_copy_is_replaced_by_the_next_good_file(tmp_path: Path) -> None:
    file, kept = tmp_path / "catalogue.yaml", tmp_path / "kept.yaml"
    kept.write_text("instance_types: [")
    file.write_text(WRONG)
    with pytest.raises(InvalidRequest, match=f"the catalogue {file}: .*unknown field"):
        load_or_kept(file, kept)
    file.write_text(GOOD)
    assert load_or_kept(file, kept) == (read(GOOD), "")
    assert kept.read_text() == GOOD


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("catalogue.yaml", GOOD, 0, "is valid; its instance types are a.1gpu"),
        (
            "catalogue.yaml",
            WRONG,
            2,
            "line 1: unknown field 'instance_types.0.cpus'; did you mean 'cpu'?",
        ),
        (
            "catalogue.yaml",
            GOOD + "defaults: {instance_type: c}\n",
            2,
            "defaults.instance_type='c' is none of",
        ),
        (
            "catalogue.toml",
            '[[instance_types]]\nname = "a.1gpu"\n',
            0,
            "is valid; its instance types are a.1gpu",
        ),
        ("catalogue.toml", '[[instance_types]]\nnam = "a"\n', 2, "nam"),
        ("missing.yaml", None, 2, "No such file"),
    ],
)
def test_a_catalogue_is_checked_before_a_server_gets_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str | None,
    code: int,
    said: str,
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    assert main(["check", str(file)]) == code
    printed = capsys.readouterr()
    shown, other = (printed.out, printed.err) if code == 0 else (printed.err, printed.out)
    assert said in shown
    assert not other


def test_the_client_has_the_command_that_checks_a_catalogue(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "client_lib", "server", "check", str(tmp_path / "missing.yaml")]
    ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "No such file" in ended.stderr
    assert "Traceback" not in ended.stderr
