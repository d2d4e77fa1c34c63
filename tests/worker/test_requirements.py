"""Extra packages of a job: installed into an environment that is kept, in front of those
that its interpreter has.
"""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import locked
from client_lib.launcher_protocol import control
from client_lib.worker.requirements import (
    PackageEnvironment,
    Parent,
    find_or_make,
    key_of,
    make_room,
    why,
)
from tests.kit.waiting import until
from tests.worker.conftest import Worker
from tests.worker.wheels import only_from, wheel

# in one worker of pytest-xdist: the environment of `parent` is made once
pytestmark = pytest.mark.xdist_group("requirements")

MakeWorker = Callable[..., Worker]
PATIENCE_S = 100.0  # pip takes seconds on a busy machine


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A virtual environment's python, which has `inherited` 1.0 and sees what
    runs the tests, pip among it.
    """
    folder = tmp_path_factory.mktemp("parent")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "tests.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    wheel(folder, "inherited")
    python = str(folder / "env" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "inherited"]
    subprocess.run(install, check=True, env=dict(os.environ) | only_from(folder))
    return python


def with_requirements(
    make: MakeWorker, folder: Path, python: str, script: str, *requirements: str, **fields: Any
) -> Worker:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | only_from(
        folder / "wheels"
    )
    given = {"environment": environment, "environments_dir": str(folder / "environments")} | fields
    return make(script, python=python, requirements=list(requirements), **given)


def go(one: Worker) -> Worker:
    """As Worker.go, and as long as pip may take."""
    assert one.connection
    assert one.connection.receive(PATIENCE_S) == {"event": control.READY}
    one.connection.send(control.order(control.GO))
    return one


def said(worker: Worker) -> str:
    return "\n".join(worker.lines("launcher", None))


@pytest.mark.process
def test_packages_are_there_beside_those_of_the_parent_which_stay(
    worker: MakeWorker, tmp_path: Path, parent: str
) -> None:
    wheel(tmp_path / "wheels", "extra", needs="inherited>=1")
    wheel(tmp_path / "wheels", "newer", needs="inherited>=2")
    wheel(tmp_path / "wheels", "inherited", "2.0")
    script = """
        import shutil, sys, extra, inherited, pytest
        print(extra.__version__, inherited.__version__, shutil.which("python") == sys.executable)
    """
    one = with_requirements(worker, tmp_path, parent, script, "extra")
    go(one.start())
    assert one.report(PATIENCE_S)["reason"] == "Completed", one.records()
    assert one.lines() == ["1.0 1.0 True"]
    assert "Successfully installed extra-1.0" in said(one)
    assert '"extra": "1.0"' in "".join(one.lines("metrics", None)), (
        "what the worker tells of its machine"
    )

    upgrading = with_requirements(
        worker, tmp_path, parent, script.replace("extra", "newer"), "newer"
    )
    go(upgrading.start())
    upgrading.report(PATIENCE_S)
    assert upgrading.lines() == ["1.0 2.0 True"]
    shown = [parent, "-c", "import inherited; print(inherited.__version__)"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == "1.0\n"


@pytest.mark.process
def test_an_environment_is_made_once_for_all_workers_and_used_again_also_by_a_command(
    worker: MakeWorker, tmp_path: Path, parent: str
) -> None:
    wheel(tmp_path / "wheels", "extra")
    script = "import extra; print(extra.__file__)"
    workers = [with_requirements(worker, tmp_path, parent, script, "extra") for _ in range(2)]
    command = ["sh", "-c", f"python -c '{script}'"]  # it finds the packages by its PATH
    fields = {"command": command, "type": "binary", "requirements_python": parent}
    workers.append(with_requirements(worker, tmp_path, parent, "", "extra", **fields))
    workers[2].plan = workers[2].plan._replace(python=None)
    Path(workers[2].directory.plan).write_text(workers[2].plan.to_json())
    for one in workers[:2]:
        one.start()
    for one in workers[:2]:
        go(one)
    go(workers[2].start())
    reports = [one.report(PATIENCE_S) for one in workers]
    assert [report["reason"] for report in reports] == ["Completed"] * 3
    assert sum("Successfully installed" in said(one) for one in workers) == 1
    assert len({one.lines()[0] for one in workers}) == 1


@pytest.mark.process
def test_a_package_of_the_snapshot_is_installed_anew_when_it_changes(
    worker: MakeWorker, tmp_path: Path, parent: str
) -> None:
    seen = []
    for text in ("one", "two"):
        project = tmp_path / text
        project.mkdir()
        wheel(project / "wheels", "own", text=f"text = {text!r}")
        (project / "train.py").write_text("import own; print(own.text, own.__file__)")
        with tarfile.open(tmp_path / "snapshot.tar.gz", "w:gz") as archive:
            for entry in project.iterdir():
                archive.add(entry, entry.name)
        given = {
            "snapshot": str(tmp_path / "snapshot.tar.gz"),
            "working_dir": ".",
            "command": ["train.py"],
        }
        one = with_requirements(
            worker, tmp_path, parent, "", "./wheels/own-1.0-py3-none-any.whl", **given
        )
        go(one.start())
        assert one.report(PATIENCE_S)["reason"] == "Completed", one.records()
        seen += one.lines()
    assert [line.split()[0] for line in seen] == ["one", "two"]


@pytest.mark.process
def test_a_package_that_is_not_there_is_named_and_no_rank_starts(
    worker: MakeWorker, tmp_path: Path, parent: str
) -> None:
    wheel(tmp_path / "wheels", "extra")
    one = with_requirements(worker, tmp_path, parent, "print('ran')", "extra==9.9").start()
    report = one.report(PATIENCE_S)
    assert (report["reason"], report["ranks"]) == ("StartFailed", [])
    assert report["message"] == (
        "requirements=[extra==9.9] can't be installed: no version of extra==9.9 is there; there "
        "are: 1.0"
    )
    assert one.lines() == []
    assert not list((tmp_path / "environments").glob("*/"))


@pytest.mark.process
def test_a_stop_ends_an_installation_at_once(
    worker: MakeWorker, tmp_path: Path, parent: str
) -> None:
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as silent:  # an index that takes the question and never answers
        index = {
            "PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/",
            "PIP_TIMEOUT": "100",
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | index
        one = with_requirements(
            worker, tmp_path, parent, "print('ran')", "extra", environment=environment
        ).start()
        silent.settimeout(PATIENCE_S)
        asked, _ = silent.accept()
        one.stop(30.0)
        assert one.report()["reason"] == "Cancelled"
        asked.close()
    until(lambda: not one.left_over(), "pip is gone")


@pytest.mark.process
def test_an_interpreter_without_pip_gets_one(worker: MakeWorker, tmp_path: Path) -> None:
    pytest.importorskip("ensurepip")
    base = sys._base_executable  # type: ignore[attr-defined]
    subprocess.run([base, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    wheel(tmp_path / "wheels", "extra")
    python = str(tmp_path / "bare" / "bin" / "python")
    one = with_requirements(
        worker, tmp_path, python, "import extra; print(extra.__version__)", "extra"
    )
    go(one.start())
    assert (one.report(PATIENCE_S)["reason"], one.lines()) == ("Completed", ["1.0"])


def conda_environment(prefix: Path, *left_out: str) -> str:
    """The python of a folder as conda makes them: an installation of its own, and no virtual
    environment. Its standard library is that of the Python which runs the tests, without
    `left_out`."""
    standard = Path(sysconfig.get_path("stdlib"))
    library = prefix / "lib" / standard.name
    (library / "site-packages").mkdir(parents=True)
    for entry in standard.iterdir():
        if entry.name not in ("site-packages", "dist-packages", "sitecustomize.py", *left_out):
            (library / entry.name).symlink_to(entry)
    (prefix / "conda-meta").mkdir()
    (prefix / "bin").mkdir()
    python = prefix / "bin" / "python"
    shutil.copy2(Path(sys._base_executable).resolve(), python)  # type: ignore[attr-defined]
    return str(python)


def packages_of(python: str) -> Path:
    """Where it looks for installed packages first."""
    ask = [python, "-c", "import site; print(site.getsitepackages()[0])"]
    place = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.mark.process
def test_packages_of_a_conda_environment_are_seen_and_it_stays_as_it_is(
    worker: MakeWorker, tmp_path: Path
) -> None:
    python = conda_environment(tmp_path / "conda")
    inherited = packages_of(python)
    (inherited / "inherited.py").write_text("__version__ = 'of conda'")
    (inherited / "pip.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    wheel(tmp_path / "wheels", "extra")
    one = with_requirements(
        worker,
        tmp_path,
        python,
        "import extra, inherited; print(extra.__version__, inherited.__version__)",
        "extra",
    )
    go(one.start())
    assert one.report(PATIENCE_S)["reason"] == "Completed", one.records()
    assert one.lines() == ["1.0 of conda"]
    assert [path.name for path in inherited.iterdir() if path.suffix == ".py"] == ["inherited.py"]
    assert not list(inherited.glob("extra*"))


@pytest.mark.process
def test_where_python_brings_no_pip_uv_puts_one_there(worker: MakeWorker, tmp_path: Path) -> None:
    python = conda_environment(tmp_path / "conda", "ensurepip")
    wheel(tmp_path / "wheels", "extra")
    pip_as_wheel(tmp_path / "wheels")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    path = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(tmp_path),
    }
    variables = path | only_from(tmp_path / "wheels")
    with_uv = variables | {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(tmp_path / "wheels"),
        "UV_NO_INDEX": "1",
    }
    script = "import extra; print(extra.__version__)"
    one = with_requirements(worker, tmp_path, python, script, "extra", environment=with_uv)
    go(one.start())
    assert one.report(PATIENCE_S)["reason"] == "Completed", one.records()
    assert one.lines() == ["1.0"]

    (tmp_path / "bin" / "uv").unlink()
    elsewhere = str(tmp_path / "others")
    without = with_requirements(
        worker, tmp_path, python, script, "extra", environment=variables, environments_dir=elsewhere
    ).start()
    assert "the interpreter has no pip, and there is no uv in PATH" in str(
        without.report(PATIENCE_S)["message"]
    )


def pip_as_wheel(folder: Path) -> None:
    """The pip that this machine has, as an index would give it."""
    about = distribution("pip")
    with zipfile.ZipFile(folder / f"pip-{about.version}-py3-none-any.whl", "w") as archive:
        for file in about.files or ():
            if (
                ".." not in file.parts
                and file.suffix != ".pyc"
                and file.name not in ("INSTALLER", "REQUESTED", "RECORD")
            ):
                archive.write(str(file.locate()), str(file))
        archive.writestr(f"pip-{about.version}.dist-info/RECORD", "")


def made(folder: Path, key: str, size: int, used_at: float) -> PackageEnvironment:
    environment = PackageEnvironment(str(folder), key)
    os.makedirs(environment.prefix)
    (Path(environment.folder) / "complete.json").write_text(f'{{"bytes": {size}}}')
    os.utime(Path(environment.folder) / "complete.json", (used_at, used_at))
    return environment


def test_those_not_used_for_longest_go_but_none_that_is_used(tmp_path: Path) -> None:
    for number, key in enumerate("abcd"):
        made(tmp_path, key, 10, 1000.0 + number)
    (tmp_path / "half").mkdir()
    used = PackageEnvironment(str(tmp_path), "a").use()
    os.utime(tmp_path / "a" / "complete.json", (1, 1))
    assert used is not None
    make_room(str(tmp_path), 25, str(tmp_path / "d"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "d"]
    os.close(used)
    make_room(str(tmp_path), 25, str(tmp_path / "d"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a", "d"]
    make_room(str(tmp_path), 15, str(tmp_path / "d"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["d"]
    assert PackageEnvironment(str(tmp_path), "a").use() is None


def test_a_launcher_does_not_wait_for_one_that_is_made_again(tmp_path: Path) -> None:
    environment = made(tmp_path, "a", 10, 1000.0)
    with locked(environment.lock):
        assert environment.use() is None
    fd = environment.use()
    assert fd is not None
    os.close(fd)


def test_one_that_is_completed_while_others_are_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    remove = PackageEnvironment.remove

    def remove_while_the_other_is_completed(one: PackageEnvironment) -> None:
        (other,) = {"first", "second"} - {Path(one.folder).name}
        (tmp_path / other / "complete.json").write_text('{"bytes": 1}')
        remove(one)

    # the moment before the removal can't be hit from outside
    monkeypatch.setattr(PackageEnvironment, "remove", remove_while_the_other_is_completed)
    make_room(str(tmp_path), 25, str(tmp_path / "new"))
    (left,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert (left / "complete.json").exists()


def test_another_interpreter_other_packages_or_requirements_are_another_environment(
    tmp_path: Path,
) -> None:
    parent = Parent("/usr/bin/python3", "3.11", [str(tmp_path)])
    first = key_of(parent, ["a", "b"])
    assert key_of(parent, ["b", "a"]) == first
    assert key_of(parent, ["a"]) != first
    assert key_of(parent._replace(python="/opt/python3"), ["a", "b"]) != first
    paths = [tmp_path / name / "own.whl" for name in ("here", "there", "other")]
    for path, content in zip(paths, ("same", "same", "another"), strict=True):
        path.parent.mkdir()
        path.write_text(content)
    here, there, other = (key_of(parent, [str(path)]) for path in paths)
    assert here == there != other, "a file is known by its name and content"
    (tmp_path / "torch-2.8.0.dist-info").mkdir()
    assert key_of(parent, ["a", "b"]) != first


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement x==9 (from versions: "
            "1, 2)\nERROR: No matching distribution found for x==9",
            "no version of x==9 is there; there are: 1, 2",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement nope (from versions: "
            "none)\nERROR: No matching distribution found for nope",
            "nope was not found: the package index has no such package for this interpreter",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by "
            "'NewConnectionError('Failed to establish a new connection: [Errno -2] Name or "
            "service not known')': /simple/x/\nERROR: Could not find a version that satisfies the "
            "requirement x (from versions: none)\nERROR: No matching distribution found for x",
            "x was not found: the package index can't be reached",
        ),
        (
            "ERROR: Cannot install a==1 and b==1 because these package versions have conflicting "
            "dependencies.\nThe conflict is caused by:\n    a 1 depends on c==1\n    b 1 depends "
            "on c==2\n\nTo fix this",
            "a==1 and b==1 can't be installed together: a 1 depends on c==1; b 1 depends on c==2",
        ),
        (
            "ERROR: Invalid requirement: 'a b': Expected end\n    a b\n      ^",
            "'a b' is no requirement as pip understands it",
        ),
        (
            "  error: subprocess-exited-with-error\n      RuntimeError: no compiler\n"
            "ERROR: Failed to build 'flash-attn' when getting requirements to build wheel",
            "flash-attn could not be built: RuntimeError: no compiler",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",)
        * 2,
        ("", "pip ended without a message"),
    ],
)
def test_what_pip_says_becomes_a_sentence_with_the_package(lines: str, sentence: str) -> None:
    assert why(lines.splitlines()) == sentence.replace("ERROR: ", "")


@pytest.mark.process
def test_a_worker_does_not_wait_for_the_other_worker_that_uses_the_environment_already(
    tmp_path: Path,
    parent: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The other launcher keeps its shared lock until both workers have run."""
    facts = PackageEnvironment.facts
    looked = threading.Event()

    def noted(self: PackageEnvironment) -> dict[str, Any] | None:
        found = facts(self)
        if found is None:
            looked.set()
        return found

    wheel(tmp_path / "wheels", "extra")
    variables = dict(os.environ) | only_from(tmp_path / "wheels")
    folder = str(tmp_path / "environments")
    made = find_or_make(folder, parent, ["extra"], variables)
    complete = Path(made.complete)
    complete.rename(tmp_path / "later")  # as if the other worker were still making it
    lock = os.open(made.lock, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # to know when the other has looked
    monkeypatch.setattr(PackageEnvironment, "facts", noted)
    second = threading.Thread(target=find_or_make, args=(folder, parent, ["extra"], variables))
    second.daemon = True
    second.start()
    assert looked.wait(PATIENCE_S)
    (tmp_path / "later").rename(complete)
    fcntl.flock(lock, fcntl.LOCK_SH)
    second.join(20.0)
    is_waiting = second.is_alive()
    os.close(lock)
    assert not is_waiting
    assert capfd.readouterr().out.count("waits for another worker") == 1
