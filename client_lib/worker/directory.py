"""The directory of one worker, which runtimes and the launcher share: its files, and the
lock of a living launcher.
"""

import contextlib
import json
import os
import socket
import sys
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

from client_lib.worker.system import boot_id, start_time

if sys.platform != "win32":  # where clients use other functions of this module
    import fcntl

# in the environment of every process of a worker; empty: it belongs to no worker
MARKER = "CLIENT_LIB_WORKER_DIR"
IMPORTS, STACKS = "imports", "stacks"  # rank_runner.py uses the same names
ALREADY_RUNS = 75  # exit code of a launcher that found the lock taken
# exit code of a launcher that found the traces of another: nothing starts twice in one directory
ALREADY_RAN = 76

Opener = Callable[[str, int], int]
"""Opens a file by path and flags, as the `opener` of open() does: a server may have
to refuse links and pipes.
"""


class Directory:
    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.plan = self._below("plan.json")  # the plan (plan.py); 0600, it holds the environment
        self.lock = self._below(
            "lock"
        )  # held by the launcher for its whole life: {pid, start_time, boot_id, host}
        self.control = self._below("control.sock")  # control.py
        self.output = self._below("launcher.out")  # errors of a launcher that cannot even start
        self.processes = self._below("processes.json")
        """{rank: {pid, pgid, start_time}}, written as soon as the ranks run; to clean
        up after a dead launcher.
        """
        self.log = self._below("log")  # segments of the log (format.py)
        self.errors = self._below("errors")  # TORCHELASTIC_ERROR_FILE of each rank
        self.metrics = self._below("metrics")
        """Pipe to which ranks write their metrics (client_lib.tracking); there if
        the plan allows to observe.
        """
        self.status_token = self._below("status-token")  # for what libraries post (metrics.py)
        self.rank_pipes = self._below(
            "ranks"
        )  # output pipes of an elastic worker's ranks (worker_log.py)
        self.imports = self._below(IMPORTS)
        """JSON list of installed modules that local rank 0 had imported at its end;
        there if the plan asks for it.
        """
        self.stacks = self._below(STACKS)
        """A file per rank, to which it writes its stacks; there if the plan allows
        to take them (stacks.py).
        """
        self.stacks_taken = self._below(
            "stacks.json"
        )  # the stacks of all ranks, as they were last taken
        self.work = self._below("work")  # the unpacked snapshot; complete as soon as it is there
        self.inputs = self._below(
            "inputs"
        )  # in a pod: the outputs of the jobs that this one waited for
        self.outputs = self._below(
            "outputs"
        )  # the files before the ranks ran (outputs/collector.py)
        self.environment = self._below(
            "environment.json"
        )  # the environment with extra packages (requirements.py)
        self.reserve = self._below(
            "reserve"
        )  # takes up room that is needed at the end on a full disk (disk.py)
        self.report = self._below(
            "report.json"
        )  # the end of the worker (report.py); complete as soon as it is there

    def _below(self, name: str) -> str:
        return os.path.join(self.path, name)

    def error_file(self, rank: int) -> str:
        return os.path.join(self.errors, "%d.json" % rank)


def renew(directory: Directory) -> None:
    """Prepare the directory of a dead launcher, none of whose processes is alive, for another one.
    The log continues, and the unpacked code stays as the ranks left it."""
    for path in (
        directory.lock,
        directory.control,
        directory.processes,
        directory.report,
        directory.imports,
    ):
        remove(path)
    try:
        fd = os.open(
            directory.errors, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        )  # not through a link in its place
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(fd):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


class Taken(Exception):
    """Another launcher holds the lock, or held it before. `exit_code` is
    ALREADY_RUNS or ALREADY_RAN.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def acquire(path: str) -> int:
    """Take the lock while the returned descriptor is open, and write the holder
    into the file. Raises Taken.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not take(fd, fcntl.LOCK_EX):
        os.close(fd)
        raise Taken("another launcher holds %s" % path, ALREADY_RUNS)
    if os.fstat(fd).st_size:
        os.close(fd)
        raise Taken("another launcher held %s before" % path, ALREADY_RAN)
    pid = os.getpid()
    holder = {
        "pid": pid,
        "start_time": start_time(pid),
        "boot_id": boot_id(),
        "host": socket.gethostname(),
    }
    os.pwrite(fd, json.dumps(holder).encode(), 0)
    return fd


def is_held(path: str, opener: Opener = os.open) -> bool:
    """True if a process holds the lock now; False also without a lock file."""
    try:
        fd = opener(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not take(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: str, wait: bool = True) -> Iterator[bool]:
    """Hold the exclusive lock of a file inside; yields False if another process holds a
    lock (only without `wait`).
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield take(fd, fcntl.LOCK_EX, wait)
    finally:
        os.close(fd)


def take(fd: int, kind: int, wait: bool = False) -> bool:
    """Take a lock, LOCK_EX or LOCK_SH; False if another process holds one that excludes
    it (only without `wait`).
    """
    try:
        fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def remove(path: str) -> None:
    """Remove the file if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def read_json(path: str, opener: Optional[Opener] = None) -> Optional[Dict[str, Any]]:
    """The object in a file of this directory; None: it is missing or incomplete."""
    try:
        with open(path, encoding="utf-8", opener=opener) as file:
            data = json.load(file)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def last_line(path: str, opener: Optional[Opener] = None) -> str:
    """The last line of a text; "": it has none, or can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=opener) as file:
            return (file.read().strip().splitlines() or [""])[-1]
    except OSError:
        return ""


def write_json(path: str, data: Mapping[str, Any], durable: bool = False) -> None:
    """Write an object as `write_file` does."""
    write_file(path, json.dumps(data).encode(), durable)


def write_file(path: str, data: bytes, durable: bool = False) -> None:
    """Write a complete file atomically, for this user alone; `durable`: it is on the
    disk before it gets its name.
    """
    temporary = path + ".new"
    remove(temporary)  # of a killed process; or a pipe of the job's, at which `open` would wait
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(fd)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)  # a full disk, say; the data may hold a token
        raise


def sync(path: "Union[str, os.PathLike[str]]") -> None:
    """Write a file, or the list of names in a folder, through to the disk, so that it
    survives a loss of power.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(path: "Union[str, os.PathLike[str]]") -> str:
    """Digest of a whole file."""
    import hashlib  # here: few launchers need it

    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1024 * 1024), b""):
            found.update(block)
    return found.hexdigest()


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def launcher_command(worker_dir: str, python: str = sys.executable) -> List[str]:
    """The argv that starts this installation's launcher on a directory. By path and isolated: that
    starts twice as fast as `-m`, and neither the caller's folder nor PYTHON* variables have an
    effect."""
    main = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    return [python, "-I", "-S", main, worker_dir]


def runner_file(name: str, directory: Directory) -> str:
    """A module of this package as a file that any interpreter can run."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if os.path.exists(beside):
        return beside
    import pkgutil  # here: only a zipapp reads it

    source = pkgutil.get_data("client_lib.worker", name)
    assert source is not None
    path = os.path.join(directory.path, name)
    with open(path, "wb") as file:
        file.write(source)
    return path
