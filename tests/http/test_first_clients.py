"""Reasons that clients of version 0.1.0 do not know."""

import asyncio
import json
from typing import Any

import pytest

from client_lib.spec.states import Reason
from server_stub.http.api.answers import JsonText

FIRST_REASONS = {
    *(
        "Queued",
        "Unschedulable",
        "ImagePull",
        "CodeFetch",
        "Starting",
        "Running",
        "Stopping",
        "Completed",
        "Preempted",
    ),
    *(
        "NodeLost",
        "OutOfMemory",
        "ExitCode",
        "Signal",
        "LauncherLost",
        "StartFailed",
        "Timeout",
        "HungSilent",
    ),
    *("Cancelled", "DeletedExternally"),
}
"""The whole list of version 0.1.0."""


def answered(content: dict[str, Any], user_agent: str) -> dict[str, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    scope = {"type": "http", "headers": [(b"user-agent", user_agent.encode())]}
    body = json.dumps(content, separators=(",", ":")).encode()
    asyncio.run(JsonText(body)(scope, receive, send))
    length = dict(sent[0]["headers"])[b"content-length"]
    assert int(length) == len(sent[1]["body"])
    found: dict[str, Any] = json.loads(sent[1]["body"])
    return found


@pytest.mark.parametrize("reason", list(Reason))
def test_the_first_clients_get_a_reason_that_they_know(reason: Reason) -> None:
    job = {
        "name": "train",
        "reason": reason.value,
        "message": f'"reason":"{reason.value}" is in a text',
    }
    assert answered(job, "client-lib/0.2.0") == job
    older = answered(job, "client-lib")
    assert older["reason"] in FIRST_REASONS
    assert older == job | {"reason": older["reason"]}
    assert older["reason"] == reason.value or reason.value not in FIRST_REASONS
