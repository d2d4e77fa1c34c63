"""Client and server agree on where the local state lies, and it is never on a
disk that other hosts share.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.spec import state_dir
from client_lib.spec.state_dir import choose, make_private, parse_mac_mounts, parse_proc_mounts

PROC = """\
/dev/vda / ext4 rw 0 0
filer:/home /home nfs4 rw,vers=4.2 0 0
/dev/nvme0 /home/local\\040disk ext4 rw 0 0
/etc/auto.home /work autofs rw 0 0
filer:/work/ann /work/ann nfs rw 0 0
juice /mnt/juice fuse.juicefs rw 0 0
overlay /mnt/rootless fuse.fuse-overlayfs rw 0 0
"""
MOUNTS = parse_proc_mounts(PROC)


def where(base: str, host: str = "node1") -> str:
    return str(choose(Path(base), host, 1000, MOUNTS))


def test_below_the_home_by_host_name() -> None:
    assert where("/root/.local/state") == "/root/.local/state/client_lib/node1"


def test_a_home_on_the_network_moves_to_a_local_disk() -> None:
    assert where("/home/ann/.local/state") == "/var/tmp/client_lib-1000/node1"


def test_two_hosts_with_one_home_never_share_a_state() -> None:
    for base in ("/home/ann/.local/state", "/root/.local/state"):
        assert where(base, "node1") != where(base, "node2")


def test_the_deepest_mount_counts_and_of_two_on_one_point_the_later() -> None:
    assert where("/home/local disk/.local/state").startswith("/home/local disk")
    assert where("/homestead/.local/state").startswith("/homestead")
    assert (
        str(choose(Path("/home/a"), "h", 1, [*MOUNTS, ("/home", "ext4")])) == "/home/a/client_lib/h"
    )


def test_a_home_that_the_automounter_has_not_mounted_yet_counts_as_network() -> None:
    assert where("/work/ben/.local/state").startswith("/var/tmp")


@pytest.mark.parametrize(("base", "moves"), [("/mnt/juice/a", True), ("/mnt/rootless/a", False)])
def test_an_unknown_fuse_file_system_counts_as_network(base: str, moves: bool) -> None:
    assert where(base).startswith("/var/tmp") == moves


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", "/scratch/x")
    assert str(state_dir.state_dir()) == "/scratch/x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an account")
def test_a_user_without_a_home_may_name_the_directory() -> None:
    """A container that runs under an arbitrary user id has such a user."""
    code = (
        "import os; from client_lib.spec.state_dir import state_dir; os.setuid(54321); "
        "print(state_dir())"
    )
    environ = {state_dir.VARIABLE: "/scratch/x"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert (said.stdout, said.stderr) == ("/scratch/x\n", "")


def test_a_host_name_can_not_leave_the_directory() -> None:
    assert where("/root", host="../../etc") == "/root/client_lib/_.._etc"
    assert where("/root", host="..") == "/root/client_lib/localhost"
    assert where("/root", host="") == "/root/client_lib/localhost"


def test_mounts_of_macos_are_read() -> None:
    text = (
        "/dev/disk3s1 on / (apfs, sealed, local)\n"
        "filer:/home on /Users/ann lee (nfs, automounted)\n"
        "map auto_home on /System/Volumes/Data/home (autofs, automounted)\n"
    )
    assert parse_mac_mounts(text) == [
        ("/", "apfs"),
        ("/Users/ann lee", "nfs"),
        ("/System/Volumes/Data/home", "autofs"),
    ]


def test_a_mount_point_may_hold_what_python_takes_for_the_end_of_a_line() -> None:
    assert parse_proc_mounts("filer:/x /mnt/a\x0cb\u2028c nfs4 rw 0 0\n") == [
        ("/mnt/a\x0cb\u2028c", "nfs4")
    ]


def test_this_machine_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(state_dir.VARIABLE, raising=False)
    assert state_dir.state_dir().is_absolute()


def test_the_directory_is_made_private(tmp_path: Path) -> None:
    made = make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o755)
    make_private(made)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_planted_link_on_the_local_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the real /var/tmp belongs to everybody
    monkeypatch.setattr(state_dir, "LOCAL_DISK", tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "client_lib-0").symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="is a link"):
        make_private(tmp_path / "client_lib-0" / "node1")


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make a directory that belongs to another user"
)
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to user id 12345"):
        make_private(tmp_path)
