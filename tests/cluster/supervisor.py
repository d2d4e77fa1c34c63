"""PID 1 of a cluster: makes its namespaces and mounts, starts its programs, reaps what they leave.

Run as a script (`python -I -S supervisor.py PLAN`), standard library alone; node.py is the only one
who starts it and talks to it. Everything of a cluster descends from this process and lives in its
PID, mount, network, UTS and IPC namespaces. When it ends, however it ends, the kernel kills all of
that and takes links, rules, mounts along.

The protocol: one JSON object per connection and line. {"do": "start", name, argv, env, log} starts
a program that does not run; {"do": "signal", name, signal} sends it a signal; {"do": "list"} tells
of all.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

NAMESPACES = {
    "mount": 0x00020000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
"""CLONE_NEW… of linux/sched.h."""

SYSCTLS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""The kubelet writes these, and they are not of a namespace: it gets plain files
instead (setupKernelTunables).
"""

SCRATCH = "/run/node"
ANSWER_S = 5.0


def main() -> None:
    """Leaves PID 1 of new namespaces behind. It does nothing before it is on record,
    so `down` always finds it.
    """
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    _unshare()
    go_reader, go_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_writer)
        if os.read(go_reader, 1) == b"":
            os._exit(1)  # the parent died before the record was written
        os.setsid()
        Supervisor(plan).run()
    _write_record(plan["record"], pid)
    os.write(go_writer, b"g")


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(sum(NAMESPACES.values())) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _write_record(path: str, pid: int) -> None:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        start_time = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        boot_id = file.read().strip()
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"pid": pid, "start_time": start_time, "boot_id": boot_id}, file)
    os.rename(f"{path}.new", path)


class Supervisor:
    """The programs of one cluster. One thread, one request at a time."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.programs: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Serves until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        woken = _wake_on_child()
        _make_mounts(self.plan)
        socket.sethostname(self.plan["hostname"])
        listener = _listen(self.plan["run"])
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if woken in ready:
                    woken.recv(4096)
                self._reap()
                if listener in ready:
                    self._serve(listener.accept()[0])

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                for program in self.programs.values():
                    if program["pid"] == ended[0]:
                        program.update(
                            pid=None,
                            exit_code=os.waitstatus_to_exitcode(ended[1]),
                            ended_at=time.time(),
                        )

    def _serve(self, connection: socket.socket) -> None:
        """A peer that breaks off or talks nonsense is its own loss; PID 1 must not end by it."""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(ANSWER_S)
            with connection.makefile("rw", encoding="utf-8") as file:
                try:
                    answer = self._answer(json.loads(file.readline()))
                except (OSError, ValueError, KeyError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                file.write(json.dumps(answer) + "\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "start":
            self._start(request)
        elif request["do"] == "signal":
            self._signal(request["name"], request["signal"])
        return {"programs": self.programs}

    def _start(self, request: dict[str, Any]) -> None:
        name = request["name"]
        if name in self.programs and self.programs[name]["pid"] is not None:
            raise ValueError(f"{name} runs already")
        pid = os.posix_spawn(
            request["argv"][0],
            request["argv"],
            request["env"],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (
                    os.POSIX_SPAWN_OPEN,
                    1,
                    request["log"],
                    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                    0o644,
                ),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE],  # Python ignores it, and that would be inherited
        )
        self.programs[name] = {
            "argv": request["argv"],
            "env": request["env"],
            "pid": pid,
            "exit_code": None,
            "started_at": time.time(),
            "ended_at": None,
        }

    def _signal(self, name: str, number: int) -> None:
        pid = self.programs.get(name, {}).get("pid")
        if pid is not None:
            os.kill(pid, number)


def _wake_on_child() -> socket.socket:
    """A socket that becomes readable when a child ended."""
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
    return woken


def _listen(folder: str) -> socket.socket:
    """Through /proc/self/fd, because a socket's path may have 107 bytes only."""
    descriptor = os.open(folder, os.O_PATH)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"/proc/self/fd/{descriptor}/control.sock")
    listener.listen(16)
    return listener


def _make_mounts(plan: dict[str, Any]) -> None:
    """What the programs may write outside of our folder goes to places that end
    with this mount namespace.
    """
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    home, kept = plan["home"], f"{SCRATCH}/home"
    for folder in (kept, f"{SCRATCH}/var", f"{SCRATCH}/work", f"{SCRATCH}/sysctls", "/run/netns"):
        os.makedirs(folder)
    _mount("--rbind", home, kept)
    _mount(
        "-t",
        "overlay",
        "-o",
        f"lowerdir=/var,upperdir={SCRATCH}/var,workdir={SCRATCH}/work",
        "overlay",
        "/var",
    )
    os.makedirs(home, exist_ok=True)
    _mount("--rbind", kept, home)  # it may have been under /run or /var
    for name in SYSCTLS:
        _replace_sysctl(name)
    _mount("--make-rshared", "/")  # volumes may ask for mount propagation


def _replace_sysctl(name: str) -> None:
    path, copy = f"/proc/sys/{name}", f"{SCRATCH}/sysctls/{name.replace('/', '.')}"
    with contextlib.suppress(FileNotFoundError):  # not in every kernel
        with open(path, encoding="utf-8") as file, open(copy, "w", encoding="utf-8") as target:
            target.write(file.read())
        _mount("--bind", copy, path)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main()
