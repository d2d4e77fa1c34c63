"""What a build of the project contains: a wheel and an sdist, made by the locked hatchling."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from client_lib import __version__
from client_lib.version import commit

ROOT = Path(__file__).resolve().parents[2]
WHEEL = f"client_lib-{__version__}-py3-none-any.whl"
SDIST = f"client_lib-{__version__}"

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("build")]


def build(project: Path, folder: Path, *options: str) -> None:
    line = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options]
    variables = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(line, cwd=project, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        return message_from_bytes(wheel.read(f"client_lib-{__version__}.dist-info/METADATA"))


def test_the_wheel_holds_both_packages_and_the_launcher_of_hydra(built: Path) -> None:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        names = set(wheel.namelist())
    sources = {
        str(path.relative_to(ROOT))
        for folder in ("client_lib", "server_stub")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    added = {name for name in names if not name.startswith(f"client_lib-{__version__}.dist-info/")}
    moved = {"client_lib/plugins/hydra.py"}
    assert added == sources - moved | {"hydra_plugins/client_lib_launcher.py", "client_lib/COMMIT"}


def test_the_sdist_holds_every_file_of_the_repository(built: Path) -> None:
    """Also behind links to folders, by which the chart has the manifests of the base."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    files: set[str] = set()
    for name in listed.splitlines():
        path = ROOT / name
        below = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        files |= {str(each.relative_to(ROOT)) for each in below}
    with tarfile.open(built / f"{SDIST}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert sorted(files - names) == []


def test_the_metadata_has_what_an_index_shows(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("client-lib", __version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Author"] == "the client_lib authors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "kubernetes" in metadata["Keywords"].split(",")
    assert {"server", "postgres", "torch"} <= set(metadata.get_all("Provides-Extra", []))


def test_the_oldest_python_that_is_named_is_the_oldest_one_that_is_accepted(
    metadata: Message,
) -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier", [])))
    assert metadata["Requires-Python"] == f">={named[0]}"
    first = int(named[0].removeprefix("3."))
    assert named == [f"3.{first + number}" for number in range(len(named))]


def test_wheel_and_sdist_name_the_commit(built: Path) -> None:
    known = commit()
    assert known, "these tests run in a checkout"
    with zipfile.ZipFile(built / WHEEL) as wheel:
        assert wheel.read("client_lib/COMMIT").decode().strip() == known
    with tarfile.open(built / f"{SDIST}.tar.gz") as sdist:
        file = sdist.extractfile(f"{SDIST}/client_lib/COMMIT")
        assert file is not None
        assert file.read().decode().strip() == known


def test_an_unpacked_sdist_makes_the_same_wheel_where_there_is_no_git(
    built: Path, tmp_path: Path
) -> None:
    with tarfile.open(built / f"{SDIST}.tar.gz") as sdist:
        sdist.extractall(tmp_path, filter="data")
    build(tmp_path / SDIST, tmp_path / "again", "-t", "wheel")
    assert (tmp_path / "again" / WHEEL).read_bytes() == (built / WHEEL).read_bytes()


def test_the_installed_code_knows_the_commit_of_its_build(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        wheel.extractall(tmp_path)
    ask = "from client_lib import version; print(version.__file__, version.commit())"
    shown = subprocess.check_output([sys.executable, "-c", ask], cwd=tmp_path, text=True)
    assert shown.split() == [str(tmp_path / "client_lib" / "version.py"), commit()]
