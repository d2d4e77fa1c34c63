"""Starts one process: forks, and runs what it is given in the new process. Standard library only, Python >= 3.8.

By hand, with fork and exec, and not by subprocess: between the two the child must ask for its own death when the
launcher dies (system.py), and a fork is cheap here, because the launcher is small and has one thread. Everything that
can go wrong before exec is told through a pipe, so that a start is known to have worked when this returns.
"""

import os
import signal
from typing import Callable, Dict, List, NamedTuple, NoReturn

from client_lib.worker.environment import Process

Run = Callable[[List[str], Dict[str, str]], NoReturn]
"""What a new process runs: argv and environment. `execute`, or the warm pool's twin (warm/rank.py)."""


class Started(NamedTuple):
    """A process that runs, leader of its own session and group. The launcher's ends of its pipes."""

    pid: int
    stdout: int
    stderr: int


def execute(argv: List[str], environment: Dict[str, str]) -> NoReturn:
    """Become the program, found as a shell finds it."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and that would be inherited
        signal.signal(signum, signal.SIG_DFL)
    os.execvpe(argv[0], argv, environment)


def start(
    process: Process,
    before_exec: Callable[[], None],
    run: Run = execute,
) -> Started:
    """Run it; where its stdin can't be opened (the terminal was closed), that is empty.

    Raises OSError naming the program or the folder.
    """
    told, tell = os.pipe()
    stdout, child_stdout = os.pipe()
    stderr, child_stderr = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(process, before_exec, run, child_stdout, child_stderr, tell)
    for fd in (tell, child_stdout, child_stderr):
        os.close(fd)
    with os.fdopen(told, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.close(stdout)
        os.close(stderr)
        os.waitpid(pid, 0)
        number, _, name = failure.decode("utf-8", "replace").partition(" ")
        raise OSError(int(number), os.strerror(int(number)), name)
    os.set_blocking(stdout, False)
    os.set_blocking(stderr, False)
    return Started(pid, stdout, stderr)


def _become(
    process: Process,
    before_exec: Callable[[], None],
    run: Run,
    stdout: int,
    stderr: int,
    tell: int,
) -> NoReturn:
    """The child, up to what it runs."""
    name = process.argv[0]
    try:
        signal.set_wakeup_fd(-1)  # a signal to this child is none to the launcher
        os.setsid()
        before_exec()
        os.dup2(_opened(process.stdin), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        name = process.working_dir
        os.chdir(process.working_dir)
        name = process.argv[0]
        run(process.argv, process.environment)
    except OSError as error:
        os.write(tell, b"%d %b" % (error.errno or 0, os.fsencode(name)))
    finally:
        os._exit(127)


def _opened(stdin: str) -> int:
    try:  # not blocking: a named pipe may have no writer; no terminal of the submitter becomes this session's own
        fd = os.open(stdin, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)
    os.set_blocking(fd, True)
    return fd
