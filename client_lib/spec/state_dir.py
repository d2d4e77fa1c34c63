"""The directory where the local server of this machine and user keeps its state: one rule for
client and server.

A home that many hosts share is unsuitable: locks and SQLite's WAL are unsafe on a network file
system, and a loopback address of one host means nothing on another. So the host's name is part of
the path, and on a network file system the state moves to a local disk. `choose` is pure;
`state_dir` reads the machine. Standard library only.
"""

import contextlib
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "CLIENT_LIB_STATE_DIR"
LOCAL_DISK = Path("/var/tmp")  # survives a reboot, unlike /tmp

SERVER_JSON = "server.json"
"""0600, written by the server once it listens: {url, pid, version, boot_id,
host, started_at, data_dir}.
"""
TOKEN = "token"
"""0600: the token of the local server, made at its first start."""
STOP_JSON = "stop.json"
"""0600, written by a client that asks the server to end: {pid, cwd}. The server logs the content
and removes the file.
"""
SERVER_LOCK = "server.lock"
"""flock of the running server, for its whole life."""
START_LOCK = "start.lock"
"""flock of the client that starts the server."""
SERVER_LOG = "server.log"

Mount = tuple[str, str]  # (mount point, type of the file system)

_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afpfs",
        "webdav",
        "afs",
        "9p",
        "virtiofs",
        "autofs",
        "ncpfs",
    }
    | {
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "panfs",
        "orangefs",
        "pvfs2",
        "wekafs",
        "quobyte",
    }
    | {"ocfs2", "gfs2"}
)
_LOCAL_FUSE = frozenset(
    {"fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.ntfs-3g", "fuse.encfs", "fuse.gocryptfs"}
)
_MAC_MOUNT = re.compile(r".* on (?P<point>/.*?) \((?P<type>\w+)[,)]")


def state_dir() -> Path:
    """The directory, absolute; it may not be there yet (see make_private):
    `$CLIENT_LIB_STATE_DIR`, or `choose`.
    """
    if chosen := chosen_state_dir():
        return chosen
    base = os.path.realpath(Path.home() / ".local" / "state")
    return choose(Path(base), socket.gethostname(), _uid(), mounts())


def chosen_state_dir() -> Path | None:
    """The directory in `$CLIENT_LIB_STATE_DIR`, absolute; None: the variable is not set."""
    path = os.environ.get(VARIABLE)
    return Path(os.path.abspath(os.path.expanduser(path))) if path else None


def choose(base: Path, host: str, uid: int, mounts: Iterable[Mount]) -> Path:
    """The directory by host below `base` (`~/.local/state`, links resolved); below
    /var/tmp if that is on a network.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "_", host).lstrip(".") or "localhost"
    if on_network(base, mounts):
        return LOCAL_DISK / f"client_lib-{uid}" / host
    return base / "client_lib" / host


def on_network(path: Path, mounts: Iterable[Mount]) -> bool:
    """Does `path` (there or not, its links resolved by the caller) lie on a file system that other
    hosts share? An unknown FUSE type counts as one: a state on a local disk is right in any case.
    """
    best = -1
    fs_type = ""
    for point, mounted in mounts:
        # the deepest mount above `path`; of two on one point the later, which hides the first
        if len(point) >= best and (path == Path(point) or Path(point) in path.parents):
            best = len(point)
            fs_type = mounted
    return fs_type in _NETWORK or (fs_type.startswith("fuse.") and fs_type not in _LOCAL_FUSE)


def mounts() -> list[Mount]:
    """The mounts of this machine; empty if they are not known (then every path counts as local)."""
    if sys.platform == "darwin":
        return parse_mac_mounts(
            subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False).stdout
        )
    try:
        return parse_proc_mounts(Path("/proc/self/mounts").read_text(errors="surrogateescape"))
    except OSError:
        return []


def parse_proc_mounts(text: str) -> list[Mount]:
    """Mounts in /proc/self/mounts: `device point type options dump pass`, white
    space and backslash in octal.
    """
    rows = (line.split(" ") for line in text.split("\n"))
    return [
        (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), row[1]), row[2])
        for row in rows
        if len(row) > 2
    ]


def parse_mac_mounts(text: str) -> list[Mount]:
    """Mounts in the output of macOS' `mount`: `server:/home on /Users/me (nfs, automounted)`."""
    found = map(_MAC_MOUNT.match, text.split("\n"))
    return [(match["point"], match["type"]) for match in found if match]


def make_private(path: Path) -> Path:
    """Create `path` (and what is missing above it) with mode 0700, ours alone.

    Raises:
        PermissionError: it is another user's, or a link: in /var/tmp anybody may have put it there.
        OSError: it can't be created.
    """
    for directory in reversed([path, *path.parents]):
        if not directory.is_dir():
            with contextlib.suppress(FileExistsError):  # another process is as quick as we are
                directory.mkdir(mode=0o700)
        is_on_local_disk = LOCAL_DISK in directory.parents
        if directory != path and not is_on_local_disk:
            continue
        if is_on_local_disk and directory.is_symlink():
            raise PermissionError(
                f"{directory} is a link, and anybody may write to {LOCAL_DISK}; remove it"
            )
        there = directory.stat()
        if there.st_uid != _uid():
            raise PermissionError(
                f"{directory} belongs to user id {there.st_uid}, not to you; set {VARIABLE}"
            )
        if stat.S_IMODE(there.st_mode) & 0o077:
            directory.chmod(0o700)
    return path


def _uid() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0
