"""Stacks with the functions of C. py-spy takes them, in a session in the worker: it has to be installed there."""

from __future__ import annotations

from client_lib.cli.session import Session
from client_lib.errors import Conflict, NotSupported
from client_lib.transport.rest import Rest
from client_lib.worker import session_frames as link

COMMAND = (
    "sh",
    "-c",
    'PATH="$PATH:$(dirname "$(tr "\\0" "\\n" < /proc/$0/cmdline | head -n 1)")"; exec py-spy dump --native --pid "$0"',
)
"""Looks for py-spy in PATH and beside the interpreter of the process, whose id follows."""
_NOT_FOUND = 127


def take(rest: Rest, job: str, rank: int, pid: int) -> list[str]:
    """The stacks of a process of a rank as py-spy prints them.

    Raises:
        NotSupported: the worker has no py-spy, or not the right to trace; with the way out.
        Conflict: py-spy failed, or there is no session.
    """
    output, errors = bytearray(), bytearray()
    session = Session(rest, job, {"argv": [*COMMAND, str(pid)], "rank": rank})
    session.send(link.frame(link.DATA))  # its stdin is empty
    code = session.run(lambda kind, data: (errors if kind == link.ERRORS else output).extend(data))
    check(code, errors.decode(errors="replace"), f"process {pid} of rank {rank}")
    return output.decode(errors="replace").splitlines()


def check(code: int, errors: str, process: str) -> None:
    """Raise as `take`. `code` is the exit code of COMMAND, `errors` what it has written to stderr."""
    if code == _NOT_FOUND:
        raise NotSupported(
            f"there is no py-spy for {process}: --native needs it in the worker",
            hint="`pip install py-spy` in the job's environment or image; without --native nothing is needed",
        )
    if "permission denied" in errors.lower():
        raise NotSupported(
            f"py-spy may not trace {process}",
            hint="it needs the capability SYS_PTRACE in a pod, and kernel.yama.ptrace_scope=0 or root elsewhere; "
            "without --native no right is needed",
        )
    if code:
        raise Conflict(f"py-spy took no stacks of {process}: {(errors.strip() or f'exit code {code}').splitlines()[0]}")
