"""A MASTER_PORT that the user chose."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from client_lib.spec.states import Reason
from tests.runtimes.conftest import running

pytestmark = pytest.mark.anyio


async def test_a_port_that_another_job_has_is_named_with_that_job(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    chosen = {"type": "binary", "env_variables": {"MASTER_PORT": port}}
    async with running(tmp_path) as site:
        first = site.submit("first", "sleep 600", **chosen)
        await site.phase(first, "running")
        end = await site.ended(site.submit("second", "sleep 600", **chosen))
        assert end.reason is Reason.START_FAILED
        assert end.message.startswith(f"MASTER_PORT={port} is held by job first")
        of_another = replace(site.attempt("other", "sleep 600", **chosen), owner="bob")
        of_another.job_dir.mkdir()
        site.runtime.submit(of_another)
        assert (await site.ended(of_another)).message.startswith(f"MASTER_PORT={port} is held by another user's job:")
        site.runtime.stop(first.job_id, 1, 0)
        await site.ended(first)
        third = site.submit("third", "true", **chosen)
        assert (await site.ended(third)).reason is Reason.COMPLETED
