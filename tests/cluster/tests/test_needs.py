"""What a machine lacks is said in one line, before anything is changed:
no cluster, milliseconds.
"""

import fcntl
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import debian, missing, needs, programs
from tests.cluster.fixtures import own
from tests.cluster.layers import components
from tests.cluster.places import Home


@pytest.fixture
def commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seems_run_by: Callable[[int], None]
) -> Path:
    """All that may be found on the PATH, for one who may do everything; each
    test takes something away.
    """
    folder = tmp_path / "commands"
    folder.mkdir()
    for name in (*needs.PACKAGE_OF, "go", "apt-get", "dpkg-deb"):
        (folder / name).write_text("#!/bin/sh\necho go1.26.8\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    seems_run_by(0)
    # these tests run on machines of all kinds
    monkeypatch.setattr(needs, "_capabilities", lambda: -1)
    monkeypatch.setattr(needs, "_overlay", lambda: None)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Nothing is built there."""
    return Home(tmp_path / "home")


def test_a_machine_that_has_all_of_it_lacks_nothing(commands: Path, home: Home) -> None:
    assert missing(["api", "kwok"], home) is None


def test_who_is_not_root_is_told_so(
    commands: Path, home: Home, seems_run_by: Callable[[int], None]
) -> None:
    seems_run_by(1000)
    assert missing(["api"], home) == "root is needed, for namespaces and cgroups; try: sudo -E"


def test_a_root_that_may_not_make_namespaces_is_told_so(
    commands: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a root without rights, as in a container
    monkeypatch.setattr(needs, "_capabilities", lambda: 0)
    assert "CAP_SYS_ADMIN" in str(missing(["api"], home))


@pytest.mark.parametrize(("command", "package"), needs.PACKAGE_OF.items())
def test_a_missing_command_is_named_with_its_package(
    commands: Path, home: Home, command: str, package: str
) -> None:
    (commands / command).unlink()
    assert (
        missing(["api"], home)
        == f"the command {command} is missing; Debian has it in the package {package}"
    )


def test_without_go_nothing_can_be_built(commands: Path, home: Home) -> None:
    (commands / "go").unlink()
    assert (
        missing(["api"], home)
        == "the command go is missing; the programs are built with Go 1.26 or newer"
    )


def test_a_go_that_is_too_old_is_named(commands: Path, home: Home) -> None:
    (commands / "go").write_text("#!/bin/sh\necho go1.19.8\n")
    assert (
        missing(["api"], home) == f"Go 1.26 or newer is needed; {commands}/go is or says: go1.19.8"
    )


def test_what_a_go_refuses_is_passed_on_in_one_line(commands: Path, home: Home) -> None:
    (commands / "go").write_text(
        "#!/bin/sh\nprintf 'go.mod requires\\ngo >= 1.26.0\\n' >&2\nexit 1\n"
    )
    assert str(missing(["api"], home)).endswith("is or says: go.mod requires go >= 1.26.0")


def test_what_is_built_needs_no_go(commands: Path, home: Home) -> None:
    (commands / "go").unlink()
    for name in [*components(["api"]), "pause"]:
        program = programs.path(home, name)
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch()
    assert missing(["api"], home) is None
    assert missing(["kwok"], home) is not None


def test_without_apt_the_commands_that_it_would_bring_are_named(commands: Path, home: Home) -> None:
    (commands / "apt-get").unlink()
    told = str(missing(["node"], home))
    assert told.startswith("not a Debian, and these commands are missing: containerd, ctr, runc")


@pytest.mark.skipif(not shutil.which("apt-get"), reason="this system has no apt")
def test_another_apt_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    lock = (tmp_path / "lock").open("w")
    fcntl.lockf(lock, fcntl.LOCK_EX)
    threading.Timer(1.5, lock.close).start()
    begun = time.monotonic()
    done = debian._apt_get(
        "clean", "-o", f"Dir::Cache={tmp_path}", "-o", f"Dir::Cache::archives={tmp_path}"
    )
    assert done.returncode == 0, done.stdout
    assert time.monotonic() - begun >= 1.4


def test_a_machine_without_cgroups_is_told_so(
    commands: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the kernel's own can't be taken away
    monkeypatch.setattr(needs, "CGROUPS", tmp_path / "none")
    assert (
        missing(["node"], home)
        == f"{tmp_path}/none is not there or can't be written to, where pods get their limits"
    )
    assert missing(["kwok"], home) is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_missing_cgroup_controller_is_named(
    commands: Path, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    folder = tmp_path / "cgroup"
    for name in ("cpu", "pids"):
        (folder / name).mkdir(parents=True)
    if version == 2:
        (folder / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    # the kernel's own can't be changed
    monkeypatch.setattr(needs, "CGROUPS", folder)
    assert missing(["node"], home) == f"{folder} lacks the controllers memory"


def test_tests_skip_with_that_line(
    commands: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_HOME", str(home.root))
    (commands / "go").unlink()
    with (
        pytest.raises(pytest.skip.Exception, match="the command go is missing"),
        own("any", ["api"]),
    ):
        raise AssertionError("it went on")


def test_two_runs_of_tests_at_once_have_two_clusters_and_the_next_takes_the_first_over(
    commands: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_HOME", str(home.root))
    with own("any", ["api"]) as one, own("any", ["api"]) as other:
        assert (one.name, other.name) == ("any", "any-2")
    with own("any", ["api"]) as next_:
        assert next_.name == "any"


def test_nothing_was_made(commands: Path, home: Home) -> None:
    shutil.rmtree(commands)
    assert missing(["node"], home) is not None
    assert not home.root.exists()
