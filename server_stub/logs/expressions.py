"""Compiles the regular expressions of users in processes of their own: a short expression can take
minutes to compile, and `re` lets no other thread run meanwhile.

The process of a search loads this module, too: it imports nothing that takes long to load.
"""

import asyncio
import math
import os
import resource
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from client_lib.errors import InvalidRequest, Unavailable
from client_lib.spec import metric_expression
from server_stub.turns import Turns

COMPILE_CPU_S = 1
"""Seconds of CPU time after its start, rounded up, in which a process must have compiled its
expression. An expression of 1000 characters that is meant for lines takes some milliseconds."""
_PROCESS_CPU_S = 30
"""Seconds of CPU time of a process in all. The server kills it earlier, unless the server itself
was killed."""
_ANSWER_S = 20.0
"""Seconds until the server kills a process that checks an expression, if the machine gives it too
little CPU time."""
WRONG = 3
"""Exit code of a process whose expression is refused; the reason is on its stdout."""
_ACCEPTED_MAX = 1000
"""Expressions that are remembered."""


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
    spent = math.ceil(time.process_time())  # without compiled modules the start alone takes 0.6 s
    resource.setrlimit(resource.RLIMIT_CPU, (spent + COMPILE_CPU_S, _PROCESS_CPU_S))
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


class MetricChecks:
    """Checks the field `metrics` of jobs for one server: one process for each user at a time. Event
    loop only."""

    def __init__(self) -> None:
        self._turns = Turns("checks of `metrics`", at_once=2, of_user=1, waiting_of_user=1000)
        self._accepted: OrderedDict[str, None] = OrderedDict()
        """The expressions that were accepted last."""

    async def check(self, user: str, expression: str) -> None:
        """Raises InvalidRequest: the expression is no regular expression, names no metric, or takes
        too long to compile; Unavailable: the server is too busy to tell."""
        if expression in self._accepted:
            return
        async with self._turns.of(user):
            if expression not in self._accepted:  # by a check for which this one waited
                await _check(expression)
        self._accepted[expression] = None
        if len(self._accepted) > _ACCEPTED_MAX:
            self._accepted.popitem(last=False)


async def _check(expression: str) -> None:
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
    if process.returncode == WRONG:
        raise InvalidRequest(f"{what} {answer.decode()}")
    if process.returncode:
        raise Unavailable(f"{what} could not be checked", hint="the server's log has the error")


def main() -> None:
    """Answer `MetricChecks`."""
    expression = sys.stdin.buffer.read().decode()
    with bounds_of_compiling():
        try:
            metric_expression.check(expression)
        except ValueError as error:
            sys.stdout.buffer.write(str(error).encode(errors="backslashreplace"))
            sys.exit(WRONG)
