"""Servers of nothing but logs."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from server_stub.files.job_dirs import log_dir
from tests.kit.processes import free_port
from tests.kit.waiting import until
from tests.logs import log_server
from tests.logs.support import LogWriter, Server, ServerProcess


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    log_server.write_job(tmp_path)
    return LogWriter(log_dir(tmp_path, 1, 0))


@pytest.fixture
def logs_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """In a thread of this process, with inotify where there is one, or as
    `support.each_kind_of_events` says.
    """
    app = log_server.make_app(tmp_path, polling=getattr(request, "param", "") == "polling")
    port = free_port()
    config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=0)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    until(lambda: running.started)
    yield Server(f"http://127.0.0.1:{port}", app)
    running.should_exit = True
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    yield server
    server.kill()
