"""The operating system: processes, memory, and what a worker runs on.

`choose` returns the implementation for Linux, or for other Unix systems. A launcher's ranks must
die with it, and it must find their left-over processes. `Linux` uses the kernel for both
(parent-death signal, child subreaper, /proc); `Portable` uses a watcher process on a liveness pipe,
and process groups. CLIENT_LIB_PORTABLE=1 chooses `Portable` on Linux too: the tests run both.

The program of the ranks runs this file to list its packages and the hardware.
"""

import contextlib
import errno
import json
import os
import re
import signal
import sys
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple, Union

if sys.platform != "win32":  # where no launcher runs
    import resource

OPEN_FILES = "CLIENT_LIB_OPEN_FILES"
"""Variable with the soft limit of open files that ranks get: a server raises its own
limit, which launchers inherit.
"""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_MEMINFO = "/proc/meminfo"
# bytes; version 1 of control groups has a number of this size where there is no limit
_UNLIMITED = 2**60
_SHORT = 0.05  # memory is short if a smaller part of it is available
_HAS_PROC = os.path.exists("/proc/self/stat")


def restore_open_files() -> None:
    """Set the soft limit of open files to that of the variable, and remove the variable."""
    soft = os.environ.pop(OPEN_FILES, "")
    if soft:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (int(soft), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )


def forbid_new_privileges() -> None:
    """Keep this process and its descendants from getting rights that it lacks, as by
    sudo (Linux). Raises OSError.
    """
    import ctypes  # here: few launchers need it

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "new privileges can't be forbidden")


class Linux:
    """Parent-death signal and child subreaper: no descendant can outlive the launcher unseen."""

    def __init__(self) -> None:
        import ctypes  # here: takes 4 ms, and other systems do not need it

        # PyDLL does not release the interpreter's lock around the call, which is made between fork
        # and exec
        self._prctl: Any = ctypes.PyDLL(None).prctl
        self._launcher = os.getpid()
        self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def before_exec(self) -> None:
        """In the child, between fork and exec: it dies when the launcher dies."""
        self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._launcher:  # the launcher died before the call above could see it
            os._exit(1)

    def rank_ended(self, pid: int) -> None:
        """The rank was reaped: its pid may belong to another process from now on."""

    def descendants(self, marker: str) -> List[int]:
        """Living descendants of this process, including those in sessions of their own whose
        parents are gone. A process with an empty variable `marker` belongs to no worker: it and its
        descendants are left out."""
        if (
            not has_children()
        ):  # the subreaper adopts orphans: there is no descendant, and no need to search /proc
            return []
        children: Dict[int, List[int]] = {}
        for pid in pids():
            fields = stat("/proc/%d" % pid)
            if fields and fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(pid)
        apart, waiting = os.fsencode(marker + "="), [self._launcher]
        found: Set[int] = set()
        while waiting:
            for pid in children.get(waiting.pop(), []):
                if pid not in found and apart not in _environment(pid):
                    found.add(pid)
                    waiting.append(pid)
        return sorted(found)

    def close(self) -> None:
        """Called when no process of the ranks is alive."""


class Portable:
    """The methods of `Linux`, elsewhere. A watcher behind a pipe kills the ranks' groups
    when the launcher is gone.
    """

    def __init__(self) -> None:
        reader, self._pipe = os.pipe()
        if os.fork() == 0:
            os.close(self._pipe)
            _watch(reader)  # never returns
        os.close(reader)

    def before_exec(self) -> None:
        os.write(self._pipe, b"+%d\n" % os.getpid())

    def rank_ended(self, pid: int) -> None:
        os.write(self._pipe, b"-%d\n" % pid)

    def descendants(self, marker: str) -> None:  # noqa: ARG002  # as on Linux
        """None: processes that left the group of their rank cannot be found."""

    def close(self) -> None:
        os.write(self._pipe, b"end\n")


System = Union[Linux, Portable]


def choose() -> System:
    """The system of this machine. Called once, while the launcher has no other
    descriptors and no threads.
    """
    portable = not sys.platform.startswith("linux") or os.environ.get("CLIENT_LIB_PORTABLE") == "1"
    return Portable() if portable else Linux()


def _watch(pipe: int) -> None:
    """The watcher: record the living groups; kill them at an end of file without "end"."""
    os.setsid()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    quiet = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # a reader of the launcher's output must not wait for this process
        os.dup2(quiet, fd)
    groups: Set[int] = set()
    with os.fdopen(pipe, "rb") as lines:
        for line in lines:
            if line.startswith(b"+"):
                groups.add(int(line[1:]))
            elif line.startswith(b"-"):
                groups.discard(int(line[1:]))
            else:
                os._exit(0)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    os._exit(0)


def ended_children() -> Iterator[Tuple[int, int]]:
    """Reap every child that has ended; yields its pid and its status, as os.waitpid does."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def has_children() -> bool:
    """True if this process has a child, which may have ended (Linux)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def boot_id() -> str:
    """An identifier that changes with every boot of this machine."""
    if _HAS_PROC:
        return content("/proc/sys/kernel/random/boot_id").decode().strip()
    # macOS. kern.boottime changes when the clock is set, and every running job would count as lost
    return _answer(["sysctl", "-n", "kern.bootsessionuuid"]) or "unknown"


def start_time(pid: int) -> Optional[str]:
    """Start time of the process in the system's own format; with the pid it
    identifies it. None: it is gone.
    """
    if _HAS_PROC:
        fields = stat("/proc/%d" % pid)
        return fields[19] if fields else None  # field 22 of proc(5)
    return _answer(["ps", "-o", "lstart=", "-p", str(pid)])


def parent(pid: int) -> Optional[int]:
    """Pid of the parent (Linux); None: no such process, or another system."""
    fields = stat("/proc/%d" % pid)
    return int(fields[1]) if fields else None


def user_of(pid: int) -> Optional[int]:
    """Real user id of the process (Linux); None: no such process. The owner of its
    folder in /proc may be root.
    """
    lines = content("/proc/%d/status" % pid).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), None)


def group_members(pgid: int) -> List[int]:
    """Living processes of a process group (Linux)."""
    return [pid for pid in pids() if stat("/proc/%d" % pid)[2:3] == [str(pgid)]]


def marked(name: str, value: str) -> List[int]:
    """Living processes that were started with `name=value` in their environment (Linux;
    elsewhere none is found).
    """
    wanted = os.fsencode("%s=%s" % (name, value))
    return [pid for pid in pids() if wanted in _environment(pid)]


def out_of_memory_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory, in this
    cgroup or on this machine.
    """
    return max(
        number(path, b"oom_kill ")
        for path in ("/proc/vmstat", _memory_groups()[0] + "/memory.events")
    )


def memory_kills() -> Tuple[int, int]:
    """`out_of_memory_kills`, and the number of processes of this control group (the container) that
    the kernel has killed because its memory limit was reached."""
    events = ("/memory.events", "/memory.oom_control")  # of versions 2 and 1
    of_group = max(
        number(folder + name, b"oom_kill ") for folder in _memory_groups() for name in events
    )
    return out_of_memory_kills(), of_group


def memory_is_short() -> bool:
    """The machine, or the control group of this process, has hardly any memory left (Linux)."""
    total, available = (number(_MEMINFO, name) for name in (b"MemTotal:", b"MemAvailable:"))
    return (memory_of_limit() or 0.0) > 1 - _SHORT or available < _SHORT * total


def memory_of_limit() -> Optional[float]:
    """The part of its memory limit that the control group of this process (the container) uses,
    apart from what the kernel drops when it needs memory; None: there is no limit (Linux)."""
    version_2 = ("/memory.max", "/memory.current", b"inactive_file ")
    version_1 = ("/memory.limit_in_bytes", "/memory.usage_in_bytes", b"total_inactive_file ")
    for place, folder in enumerate(_memory_groups()):
        most, current, cached = version_1 if place else version_2
        limit, used = (content(folder + name).strip() for name in (most, current))
        if limit.isdigit() and used.isdigit() and 0 < int(limit) < _UNLIMITED:
            return (int(used) - number(folder + "/memory.stat", cached)) / int(limit)
    return None


def _memory_groups() -> List[str]:
    """Folders of the control groups of this process: that of version 2, then those of version 1,
    the last of which is where a container has its mount."""
    lines = content("/proc/self/cgroup").decode().splitlines()
    version_2 = next((line[3:] for line in lines if line.startswith("0::")), "")
    version_1 = [line.split(":", 2)[2].rstrip("/") for line in lines if ":memory:" in line]
    return [
        "/sys/fs/cgroup" + version_2,
        *("/sys/fs/cgroup/memory" + group for group in (*version_1, "")),
    ]


def number(path: str, name: bytes, base: int = 10) -> int:
    """The number in the line of a kernel's file that begins so; 0: there is none."""
    return next(
        (
            int(line.split()[1], base)
            for line in content(path).splitlines()
            if line.startswith(name)
        ),
        0,
    )


def _answer(argv: List[str]) -> Optional[str]:
    import subprocess  # here: takes 8 ms, and Linux does not need it

    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return done.stdout.decode().strip() or None
    return None


def catches(pid: int, signum: int) -> bool:
    """True if the process has a handler for this signal (Linux)."""
    return bool(number("/proc/%d/status" % pid, b"SigCgt:", 16) & 1 << (signum - 1))


def pids() -> List[int]:
    """The processes of this machine, or of this pod (Linux)."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if _HAS_PROC else []


def below(pid: int) -> List[int]:
    """The children of a process, and theirs (Linux)."""
    found: List[int] = []
    with contextlib.suppress(OSError):  # the process or the thread has ended meanwhile
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                found += map(int, file.read().split())
    return found + [each for child in found for each in below(child)]


def open_files(pid: int) -> Iterator[str]:
    """Targets of a process's descriptors (Linux); none for a process that
    is gone, or another user's.
    """
    folder, names = "/proc/%d/fd" % pid, []
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    for name in names:
        with contextlib.suppress(OSError):  # closed since the listing
            yield os.readlink(os.path.join(folder, name))


def content(path: str) -> bytes:
    """Content of a file of the kernel; empty for one that is not there, or another user's. Raises
    OSError: this process has too many open files. What is there must not look as if it were not."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return b""


def _environment(pid: int) -> List[bytes]:
    """Environment with which the process was started."""
    return content("/proc/%d/environ" % pid).split(b"\0")


def stat(path: str) -> List[str]:
    """Fields 3 and up (state, ppid, pgrp, ...) of the stat file of a process or thread, /proc/PID
    or below it; []: it has ended, or is another user's and hidden."""
    try:
        with open(path + "/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (
        FileNotFoundError,
        ProcessLookupError,
        PermissionError,
    ):  # any other error is not its end
        return []


# --- what a worker runs on

_PACKAGES_MAX, _TEXT_MAX, _PART = (
    5000,
    100,
    60,
)  # packages in all, characters of a text, and entries of a line
_DISTRIBUTION = r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info"
_SEED = r"(?i)(?:.*_)?SEED|PYTHONHASHSEED|CUBLAS_WORKSPACE_CONFIG|.*DETERMINISTIC.*"
_PLAIN = r"(?i)[-:\d]{1,20}|random|true|false"  # a phrase may be the seed of a wallet
_SECRET = r"(?i)TOKEN|KEY|SECRET|PASSWORD"  # as client_lib.spec.job masks them


def describe(environment: Dict[str, str], has_python: bool = True) -> bytes:
    """Lines of the stream `metrics` of the log with the interpreter, packages, torch, CUDA, driver,
    GPUs, CPU and variables of seeds. `has_python` False: the ranks run another program than this
    interpreter. Packages are known by the names of their folders, which takes 1 ms for 190
    packages; importlib.metadata takes 60 ms."""
    import glob

    driver = "/proc/driver/nvidia/"
    gpus = [
        _found(r"^Model:\s*(.+)$", path)
        for path in sorted(glob.glob(driver + "gpus/*/information"))
    ]
    hardware = {
        "cpu": _found(r"^model name\s*: (.+)$", "/proc/cpuinfo") or os.uname().machine,
        "cores": str(os.cpu_count()),
        "driver": _found(r"Module\s.*?(\d+\.[\d.]+)", driver + "version"),
        "gpus": ", ".join(gpus),
    }
    packages: Dict[str, str] = {}
    for folder in sys.path if has_python else ():
        names: List[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(folder or ".")
        for found in filter(None, (re.fullmatch(_DISTRIBUTION, name) for name in names)):
            packages.setdefault(_clean(found[1]).replace("_", "-").lower(), _clean(found[2]))
        version_py = os.path.join(folder, "torch", "version.py")
        hardware["torch"] = hardware.get("torch") or _found(r"^__version__ = '(.+)'", version_py)
        hardware["cuda"] = hardware.get("cuda") or _found(r"^(?:cuda|hip)\b.* = '(.+)'", version_py)
        hardware["python"] = "%s %s" % (sys.implementation.name, sys.version.split()[0])
    seeds = {
        name: value
        for name, value in environment.items()
        if re.fullmatch(_SEED, name)
        and re.fullmatch(_PLAIN, value)
        and not re.search(_SECRET, name)
    }
    lines = []
    for part, facts in (("hardware", hardware), ("seeds", seeds), ("packages", packages)):
        items = sorted((_clean(name), value) for name, value in facts.items() if value)[
            :_PACKAGES_MAX
        ]
        lines += [{part: dict(items[at : at + _PART])} for at in range(0, len(items), _PART)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _found(pattern: str, path: str) -> str:
    found = re.search(pattern, content(path)[:65536].decode("utf-8", "replace"), re.MULTILINE)
    return _clean(found[1]) if found else ""


def _clean(text: str) -> str:
    return text.strip().encode("utf-8", "replace").decode()[:_TEXT_MAX]


if __name__ == "__main__":
    del sys.path[0]  # this folder: the ranks do not have it
    sys.stdout.buffer.write(describe(dict(os.environ)))
