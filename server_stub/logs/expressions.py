"""Compiles the regular expressions of users in processes of their own: a short expression can take
minutes to compile, and `re` lets no other thread run meanwhile.

The process of a search loads this module, too: it imports nothing that takes long to load.
"""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from client_lib.errors import InvalidRequest, Unavailable
from client_lib.spec import metric_expression

COMPILE_CPU_S = 1
"""Seconds of CPU time that a process may spend until its expression is compiled. An expression of
1000 characters that is meant for lines of a log takes some milliseconds."""
_PROCESS_CPU_S = 30
"""Seconds of CPU time of a process in all. The server kills it earlier, unless the server itself
was killed."""
_ANSWER_S = 20.0
"""Seconds until the server kills a process that checks an expression, if the machine gives it too
little CPU time."""
_WRONG = 3
"""Exit code for an expression that was refused; the reason is on stdout."""


async def start(main: str) -> asyncio.subprocess.Process:
    """A process that runs the Python code `main`, with pipes."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", main),
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def answer_within(
    process: asyncio.subprocess.Process, question: bytes, limit: float
) -> bytes:
    """Return the answer of the process when the process has ended. Kill the process after `limit`
    seconds, or if the caller is cancelled. Raises asyncio.TimeoutError."""
    try:
        answer, _ = await asyncio.wait_for(process.communicate(question), limit)
        return answer
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextmanager
def bounds_of_compiling() -> Iterator[None]:
    """Let the kernel end this process if the body takes longer than COMPILE_CPU_S."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (COMPILE_CPU_S, _PROCESS_CPU_S))
    yield
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESS_CPU_S, _PROCESS_CPU_S))


def refuse_slow(what: str, exit_code: int | None) -> None:
    """Raises InvalidRequest: `bounds_of_compiling` has ended the process. `what`: the parameter
    and its value."""
    if exit_code == -signal.SIGXCPU:
        raise InvalidRequest(
            f"{what} takes longer than {COMPILE_CPU_S} s to compile",
            hint="write a simpler expression, without wide ranges of characters behind (?i)",
        )


async def check_metrics(expression: str) -> None:
    """Check the field `metrics` of a job. Raises InvalidRequest: it is no regular expression, names
    no metric, or takes too long to compile; Unavailable: the server is too busy to tell."""
    what = f"spec.metrics={expression[:80]!r}"
    process = await start(f"from {__name__} import main; main()")
    try:
        answer = await answer_within(process, expression.encode(), _ANSWER_S)
    except asyncio.TimeoutError:
        raise Unavailable(
            f"{what} could not be checked within {_ANSWER_S:g} s: the server is too busy",
            hint="submit the job again later",
        ) from None
    refuse_slow(what, process.returncode)
    if process.returncode == _WRONG:
        raise InvalidRequest(f"{what} {answer.decode()}")
    if process.returncode:
        raise Unavailable(f"{what} could not be checked", hint="the server's log has the error")


def main() -> None:
    """Answer `check_metrics`."""
    expression = sys.stdin.buffer.read().decode()
    with bounds_of_compiling():
        try:
            metric_expression.check(expression)
        except ValueError as error:
            sys.stdout.buffer.write(str(error).encode(errors="backslashreplace"))
            sys.exit(_WRONG)
