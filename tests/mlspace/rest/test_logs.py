"""Logs as the platform writes them, from records as the launcher writes them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

from client_lib.spec.states import Reason, State
from server_stub.http.api.public_v2 import jobs
from server_stub.http.api.public_v2.jobs import PlatformText, line_by_line
from server_stub.logs.records import LoggedJob
from server_stub.logs.render import HELD_MAX

TIME = "2026-11-21T14:54:31.000001Z"
WORKER_0, WORKER_1 = (1, 0), (1, 1)


RUNNING = LoggedJob("x", Path(), 2, 1, 1, State.RUNNING, Reason.RUNNING, "")


def record(said: str, rank: object = 0, stream: str = "stdout", kind: str = "") -> bytes:
    return f"7 {TIME} {rank} {stream}{kind} {said}\n".encode()


def written(
    *records: bytes, verbose: bool = False, job_type: str = "pytorch2", job: LoggedJob = RUNNING
) -> str:
    renderer = PlatformText("train", job_type, verbose=verbose)
    out = b"".join(renderer.records(WORKER_0, 0, data) for data in records)
    return (out + renderer.end(job)).decode()


def test_each_line_has_its_rank_and_stream() -> None:
    assert (
        written(record("привет"), record("oh", 1, "stderr"))
        == "[1,0]<stdout>:привет\n[1,1]<stderr>:oh\n"
    )


def test_verbose_puts_the_time_before_it() -> None:
    assert written(record("hi"), verbose=True) == f"{TIME} [1,0]<stdout>:hi\n"
    assert written(record("starts", "-", "launcher"), verbose=True) == f"{TIME} starts\n"


def test_elastic_jobs_run_without_mpirun_which_tags() -> None:
    assert written(record("hi"), job_type="pytorch_elastic") == "hi\n"


def test_a_line_that_came_in_parts_is_one_line() -> None:
    assert (
        written(record("ab", kind="+"), record("x", 1), record("cd"))
        == "[1,1]<stdout>:x\n[1,0]<stdout>:abcd\n"
    )
    assert written(record("begun", kind="+")) == "[1,0]<stdout>:begun\n"


def test_parts_of_a_line_without_an_end_are_not_kept_for_ever() -> None:
    piece = record("x" * 2**18, kind="+")
    fit = HELD_MAX // 2**18
    assert len(written(*[piece] * fit).splitlines()) == 1
    assert len(written(*[piece] * (fit + 1)).splitlines()) == 1
    assert len(written(*[piece] * (fit + 2)).splitlines()) == 2


def test_of_a_run_of_progress_the_last_is_kept() -> None:
    bar = [record(f"{n}%", kind="~") for n in range(3)]
    assert written(*bar, record("done")) == "[1,0]<stdout>:2%\n[1,0]<stdout>:done\n"
    assert written(*bar) == "[1,0]<stdout>:2%\n"


def test_the_end_says_why_a_job_did_not_succeed() -> None:
    failed = replace(
        RUNNING,
        state=State.FAILED,
        reason=Reason.EXIT_CODE,
        message="rank 1 ended with exit code 3",
    )
    assert written(job=failed) == "Job train Failed: rank 1 ended with exit code 3\n"
    succeeded = replace(
        RUNNING, state=State.SUCCEEDED, reason=Reason.COMPLETED, message="every rank ended"
    )
    assert written(job=succeeded) == ""
    assert written(job=replace(RUNNING, message="runs")) == ""


def test_a_blank_line_keeps_a_silent_connection_alive(monkeypatch: object) -> None:
    renderer = PlatformText("train", "binary", verbose=False)
    assert renderer.ping() == b""
    renderer._sent_at -= jobs.SILENCE_S + 1
    assert (renderer.ping(), renderer.ping()) == (b"\n", b"")


def test_the_platform_s_own_clients_get_a_line_in_each_piece() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"a\nb\n"
        yield "é\n".encode()

    async def main() -> list[bytes]:
        return [piece async for piece in line_by_line(pieces())]

    assert asyncio.run(main()) == [b"a\n", b"b\n", "é\n".encode()]
