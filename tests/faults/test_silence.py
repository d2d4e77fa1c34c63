"""health_params and stop_timer on real processes, with a clock on which a minute takes a second."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, SharedFolderProof, SubmitRequest, Submitter
from client_lib.spec.wire import EventList, JobInfo
from server_stub.runtimes.local import LocalOptions
from server_stub.runtimes.local.runtime import LocalRuntime
from server_stub.runtimes.tasks import Clock, Timer
from server_stub.service import Service
from server_stub.settings import Settings
from server_stub.users import User
from tests.faults.conftest import PATIENCE_S

pytestmark = pytest.mark.process

ANN = User("ann")
TALKS = "import time\nfor n in range(40):\n    print(n, flush=True)\n    time.sleep(0.1)\n"
HANGS = "import time\nprint('once', flush=True)\ntime.sleep(600)\n"


class FastClock(Clock):
    """Sixty times as fast."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(delay_s / 60, callback)


async def submit(service: Service, folder: Path, name: str, script: str, **fields: Any) -> None:
    (folder / f"{name}.py").write_text(script)
    nonce = secrets.token_hex(16)
    (folder / ".proof").write_text(nonce)
    request = SubmitRequest(
        spec=JobSpec(
            script=str(folder / f"{name}.py"), name=name, log_file=None, grace_s=1, **fields
        ),
        code=CodeInPlace(proof=SharedFolderProof(path=str(folder / ".proof"), nonce=nonce)),
        submitter=Submitter(
            python=sys.executable, environment=dict(os.environ), working_dir=str(folder)
        ),
    )
    await service.submits.submit(ANN, request, None)


async def ended(service: Service, name: str) -> JobInfo:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        info = JobInfo.model_validate_json(await service.get(ANN, name))
        if info.state.final:
            return info
        assert time.monotonic() < deadline, info
        await service.lookup.wait(ANN, name, info.version, 1.0)


def in_service(folder: Path, run: Callable[[Service], Any]) -> None:
    async def main() -> None:
        settings = Settings(state_dir=folder / "state")
        options = LocalOptions(settings, nvidia_smi="no-such-nvidia-smi")
        settings.data_dir.mkdir(mode=0o700, parents=True)
        service = Service(settings, LocalRuntime(options), FastClock())
        await service.start()
        try:
            await run(service)
        finally:
            await service.close()

    asyncio.run(main())


@pytest.mark.smoke
def test_a_job_that_hangs_is_ended_and_one_that_talks_is_not(tmp_path: Path) -> None:
    async def run(service: Service) -> None:
        watched = {"log_period": 2, "action": "delete"}
        await submit(service, tmp_path, "talks", TALKS, health_params=watched)
        await submit(service, tmp_path, "hangs", HANGS, health_params=watched)
        hung = await ended(service, "hangs")
        assert (hung.state, hung.reason) == ("FAILED", "HungSilent")
        assert hung.message == "no line was logged for 2 min (health_params)"
        assert (await ended(service, "talks")).state == "SUCCEEDED"

    in_service(tmp_path, run)


def test_restart_gives_a_new_attempt_with_its_own_log(tmp_path: Path) -> None:
    script = "import os, time\nprint('attempt', os.environ['CLIENT_LIB_ATTEMPT'], flush=True)\n"
    script += "if os.environ['CLIENT_LIB_ATTEMPT'] == '1': time.sleep(600)\n"

    async def run(service: Service) -> None:
        watched = {"log_period": 1, "action": "restart"}
        await submit(service, tmp_path, "again", script, health_params=watched, max_retry=2)
        info = await ended(service, "again")
        assert (info.state, info.attempt) == ("SUCCEEDED", 2)
        logs = await service.lookup.find_logs(ANN, "again")
        for attempt in ("1", "2"):
            text = b"".join(
                p.read_bytes()
                for p in (logs.job_dir / "attempts" / attempt).glob("workers/0/log/*.log")
            )
            assert f"attempt {attempt}".encode() in text

    in_service(tmp_path, run)


def test_notify_says_it_once_and_lets_the_job_run(tmp_path: Path) -> None:
    script = "import time\nprint('x', flush=True)\ntime.sleep(3.5)\n"

    async def run(service: Service) -> None:
        await submit(
            service,
            tmp_path,
            "quiet",
            script,
            health_params={"log_period": 1, "sub_actions": ["notify"]},
        )
        assert (await ended(service, "quiet")).state == "SUCCEEDED"
        events = EventList.model_validate_json(await service.lookup.events(ANN, "quiet")).events
        assert [event.state for event in events if event.reason == "HungSilent"] == ["RUNNING"]

    in_service(tmp_path, run)


def test_stop_timer_ends_it(tmp_path: Path) -> None:
    async def run(service: Service) -> None:
        await submit(service, tmp_path, "long", HANGS, stop_timer=1, max_retry=3)
        info = await ended(service, "long")
        assert (info.state, info.reason, info.attempt) == ("FAILED", "Timeout", 1)

    in_service(tmp_path, run)
