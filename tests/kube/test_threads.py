"""Waiting for the API server keeps nobody else waiting."""

import asyncio
import threading

import pytest

from server_stub.runtimes.kube.api import THREADS, ApiError, call_in_thread


def test_requests_without_an_answer_do_not_hold_up_what_is_written_to_disk() -> None:
    answer = threading.Event()

    async def a_thousand_jobs() -> list[bool]:
        requests = [
            asyncio.ensure_future(call_in_thread(answer.wait, 60)) for _ in range(4 * THREADS)
        ]
        await asyncio.wait_for(asyncio.to_thread(str), 30)
        assert not any(request.done() for request in requests)
        answer.set()
        return await asyncio.gather(*requests)

    assert all(asyncio.run(a_thousand_jobs()))


def test_what_a_request_raises_is_raised() -> None:
    def refuses(status: int) -> None:
        raise ApiError(status, "no")

    with pytest.raises(ApiError, match="no"):
        asyncio.run(call_in_thread(refuses, 403))
