"""The MASTER_PORT of a job: chosen by the user, or by the runtime beside
other runtimes of the machine.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec.states import Reason
from tests.kit.processes import free_port
from tests.kit.waiting import eventually
from tests.runtimes.conftest import running

pytestmark = pytest.mark.anyio


async def test_a_port_that_another_job_has_is_named_with_that_job(tmp_path: Path) -> None:
    port = free_port()
    chosen: dict[str, Any] = {"type": "binary", "env_variables": {"MASTER_PORT": port}}
    async with running(tmp_path) as site:
        first = site.submit("first", "sleep 600", **chosen)
        await site.phase(first, "running")
        end = await site.ended(site.submit("second", "sleep 600", **chosen))
        assert end.reason is Reason.START_FAILED
        assert end.message.startswith(f"MASTER_PORT={port} is held by job first")
        of_another = replace(site.attempt("other", "sleep 600", **chosen), owner="bob")
        of_another.job_dir.mkdir()
        site.runtime.submit(of_another)
        assert (await site.ended(of_another)).message.startswith(
            f"MASTER_PORT={port} is held by another user's job:"
        )
        site.runtime.stop(first.job_id, 1, 0)
        await site.ended(first)
        third = site.submit("third", "true", **chosen)
        assert (await site.ended(third)).reason is Reason.COMPLETED


async def test_two_runtimes_give_jobs_of_one_name_different_ports(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    async with running(tmp_path / "one") as one, running(tmp_path / "other") as other:
        prints = "import os, time; print(os.environ['MASTER_PORT'], flush=True); time.sleep(600)"
        attempts = []
        for site in (one, other):
            (site.folder / "train.py").write_text(prints)
            attempts.append(site.submit("train", "train.py"))
            await site.phase(attempts[-1], "running")
        await eventually(lambda: one.lines(attempts[0]) and other.lines(attempts[1]))
        assert one.lines(attempts[0]) != other.lines(attempts[1])
        for site, attempt in zip((one, other), attempts, strict=True):
            site.runtime.stop(attempt.job_id, 1, 0)
            await site.ended(attempt)
