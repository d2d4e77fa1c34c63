"""Processes of this machine as a launcher and a runtime identify them: by pid, start time and boot.

Most facts are read from /proc; a function says so if it finds nothing on other systems.
"""

import contextlib
import errno
import os
from typing import Iterator, List, Optional

_HAS_PROC = os.path.exists("/proc/self/stat")


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
    return [pid for pid in pids() if wanted in environment_of(pid)]


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


def ignores(pid: int, signum: int) -> bool:
    """True if the process ignores this signal (Linux)."""
    return bool(number("/proc/%d/status" % pid, b"SigIgn:", 16) & 1 << (signum - 1))


def program(pid: int) -> str:
    """Path of the program that the process runs (Linux); '': it is gone, or hidden."""
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return ""


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
    folder = "/proc/%d/fd" % pid
    names = []
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    for name in names:
        with contextlib.suppress(OSError):  # closed since the listing
            yield os.readlink(os.path.join(folder, name))


def files_in_use() -> Iterator[str]:
    """Files that the processes of this machine, or of this pod, have open, as far as this process
    may see them (Linux)."""
    for pid in pids():
        yield from open_files(pid)


def content(path: str) -> bytes:
    """Content of a file of the kernel; empty: the file is missing, or belongs to another user.
    Raises OSError: this process has too many open files. A file that exists must not look missing.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return b""


def environment_of(pid: int) -> List[bytes]:
    """Environment with which the process was started."""
    return content("/proc/%d/environ" % pid).split(b"\0")


def stat(path: str) -> List[str]:
    """Fields 3 and up (state, ppid, pgrp, ...) of the stat file of a process or thread, /proc/PID
    or below it; []: it has ended, or is another user's and hidden."""
    try:
        with open(path + "/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # any other error is not its end
        return []
