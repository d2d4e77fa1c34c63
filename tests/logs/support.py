"""A log as a launcher writes it, and how tests reach a server of nothing but logs."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.errors import BY_CODE
from client_lib.launcher_protocol.log_segments import segment_name
from client_lib.log_reading.reader import Params
from client_lib.spec import paths
from client_lib.spec.paths import LOG_FRAMES
from tests.kit.processes import free_port
from tests.kit.waiting import until
from tests.logs.log_server import NAME

each_kind_of_events = pytest.mark.parametrize(
    "logs_server", ["inotify", pytest.param("polling", marks=pytest.mark.process)], indirect=True
)
"""Runs a test with either way in which a server learns that a log has grown."""
START = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)


def stamp(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LogWriter:
    """Appends records to one worker's log, as a launcher does."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.seq = 0
        self.offset = 0
        self._path = directory / segment_name(0)

    def write(
        self,
        text: str | bytes,
        *,
        at: float = 0.0,
        rank: int | str = 0,
        stream: str = "stdout",
        kind: str = "",
    ) -> bytes:
        return self.append([self.record(text, at=at, rank=rank, stream=stream, kind=kind)])

    def record(
        self,
        text: str | bytes,
        *,
        at: float = 0.0,
        rank: int | str = 0,
        stream: str = "stdout",
        kind: str = "",
    ) -> bytes:
        raw = text if isinstance(text, bytes) else text.encode()
        head = f"{self.seq} {stamp(at)} {rank} {stream}{kind} ".encode()
        self.seq += 1
        return head + raw + b"\n"

    def append(self, records: list[bytes]) -> bytes:
        data = b"".join(records)
        with self._path.open("ab", buffering=0) as file:
            file.write(data)
        self.offset += len(data)
        return data

    def new_segment(self) -> None:
        self._path = self.directory / segment_name(self.offset)

    @property
    def path(self) -> Path:
        """The segment that is written now."""
        return self._path


@dataclass
class Server:
    url: str
    app: object = None

    def get(self, accept: str = "text/plain", **params: Any) -> requests.Response:
        return requests.get(
            self.url + paths.job(NAME, "logs"),
            params=params,
            headers={"Accept": accept},
            timeout=30,
            stream=True,
        )

    def text(self, **params: Any) -> str:
        with self.get(**params) as response:
            assert response.status_code == 200, response.text
            return response.content.decode()

    def followers(self) -> int:
        return int(requests.get(self.url + "/followers", timeout=10).text)

    def open_stream(self, params: Params) -> Iterator[bytes]:
        return opener(self.url)(params)


def opener(url: str) -> Callable[[Params], Iterator[bytes]]:
    """An OpenStream over requests; a server that isn't there is asked again."""

    def open_stream(params: Params) -> Iterator[bytes]:
        path = url + paths.job(NAME, "logs")
        with requests.get(
            path, params=params, headers={"Accept": LOG_FRAMES}, timeout=30, stream=True
        ) as response:
            if response.status_code != 200:
                body = response.json()
                raise BY_CODE[body["code"]](body["message"], hint=body.get("hint"))
            yield from response.iter_content(None)

    return open_stream


class ServerProcess:
    """A server of its own process, to be killed and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        script = [
            sys.executable,
            str(Path(__file__).with_name("log_server.py")),
            str(self.folder),
            str(self.port),
        ]
        self.process = subprocess.Popen(script)
        until(self.answers)

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
