"""The place where conversations are recorded and replayed: a real server on a real socket, whose
clock stands still and whose jobs do what the conversation says.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from client_lib.cli import app
from client_lib.client import Client
from client_lib.launcher_protocol.output_store import DirectoryStore, SourceFile
from client_lib.spec import paths
from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure
from client_lib.version import commit
from server_stub.files import outputs
from server_stub.files.job_dirs import log_dir
from tests.compat.golden import StandIns
from tests.http.conftest import Running
from tests.kit.fakes import FakeClock, FakeRuntime
from tests.kit.waiting import until
from tests.logs.support import LogWriter

TRAIN = "import sys\n\nprint('training with', sys.argv[1:])\n"
WRITTEN_AT = 1_767_225_600
"""Time of the files that a job keeps, in seconds since 1970."""
PATIENCE_S = 20.0
"""Longest time in which a client sees what has happened."""
LAST_LINES = ["Traceback (most recent call last):", "ValueError: no such shard"]


class User(NamedTuple):
    """A user of the SDK and the command line, with a folder of scripts as working directory."""

    client: Client
    happens: Callable[..., None]
    """Let something happen to a job; see `Stage`."""
    folder: Path

    def command(self, *words: str) -> Any:
        """Run a command line; what it prints, read as JSON where it is JSON."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            code = app.run(list(words))
        text = printed.getvalue()
        try:
            return {"exit_code": code, "printed": json.loads(text)}
        except ValueError:
            return {"exit_code": code, "printed": text.splitlines()}


@contextmanager
def user_of(url: str, token: str, folder: Path, happens: Callable[..., None]) -> Iterator[User]:
    """A user without any configuration but the server."""
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    environment = {
        "HOME": str(folder),
        "PATH": os.defpath,
        "COLUMNS": "100",
        "CLIENT_LIB_CONFIG": str(folder / "config.toml"),
        "CLIENT_LIB_STATE_DIR": str(folder / "state"),
        "CLIENT_LIB_ENDPOINT": url,
        "CLIENT_LIB_TOKEN": token,
        "CLIENT_LIB_RETRY_S": "0",
        "HF_TOKEN": "a-secret",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        # the recording shows nothing of who records it
        patch.setattr(os, "environ", environment)
        patch.setattr(sys, "orig_argv", ["python", "submit.py"])
        with Client() as client:
            yield User(client, happens, project)


class Stage(Running):
    """A server for one conversation of the user ann. Each public method with a job's `name` as its
    first parameter makes something happen to that job.
    """

    def new_runtime(self) -> FakeRuntime:
        # another machine: neither the environment nor the interpreter of the caller travels
        return FakeRuntime(name="kubernetes", stops_at_once=False)

    def new_clock(self) -> FakeClock:
        self.clock = FakeClock()
        return self.clock

    @classmethod
    def in_folder(cls, folder: Path) -> Stage:
        """A server of a cluster, with its files in a folder."""
        return cls(folder / "server", runtime="kubernetes")

    def stand_ins(self, folder: Path, url: str) -> StandIns:
        """Stand-ins for what this server and its user have of their own. `folder`: the user's home
        directory; `url`: the server's, as the user knows it.
        """
        fixed = {
            str(self.settings.state_dir): "/srv/state",
            str(folder): "/home/ann",
            url: "http://server.example",
            self.tokens["ann"]: "token-of-ann",
            commit() or "no commit": "c" * 40,
        }
        return StandIns(fixed)

    def happens(self, what: str, *words: str) -> None:
        """Make `what` happen to a job, and return when a client can see it."""
        getattr(self, what)(*words)

    def starts(self, name: str) -> None:
        """The job is handed to the runtime."""
        self._until(lambda: self._id(name) in self.runtime.attempts, f"{name} is started")

    def waits(self, name: str) -> None:
        """The job waits for machines."""
        job_id = self._id(name)
        self.call(lambda: self.runtime.waits(job_id, "needs 2 GPUs, 1 is free"))
        self._until(lambda: self._job(name)["message"] != "", f"{name} has a message")

    def runs(self, name: str) -> None:
        """The job has started, some seconds after its submit."""
        self.starts(name)
        self.call(lambda: self.clock.pass_time(5))
        job_id = self._id(name)
        self.call(lambda: self.runtime.runs(job_id))
        self._until_state(name, "RUNNING")

    def prints(self, name: str) -> None:
        """Two ranks print steps and losses."""
        for worker in (0, 1):
            log = LogWriter(log_dir(self._folder(name), 1, worker))
            for step, loss in enumerate(("0.5", "0.25", "0.125"), start=1):
                log.write(f"step {step}/100 loss={loss}", at=step, rank=worker)

    def keeps(self, name: str) -> None:
        """The job keeps a file of text and one of bytes."""
        store = DirectoryStore(str(outputs.folder(self._folder(name), 1, 0)), 2**20)
        for path, content in (("out/notes.txt", b"fine\n"), ("model.pt", bytes(range(256)))):
            file = self._folder(name) / "written"
            file.write_bytes(content)
            os.utime(file, (WRITTEN_AT, WRITTEN_AT))
            with file.open("rb") as opened:
                store.keep(SourceFile(path, opened.fileno(), False, lambda: None))
        store.close()

    def succeeds(self, name: str) -> None:
        """The job has ended well, after a minute."""
        self._ends(name, Reason.COMPLETED, "", None)

    def fails(self, name: str) -> None:
        """Rank 1 has raised an exception, after a minute."""
        failing = Failure(
            worker=1,
            rank=1,
            exit_code=1,
            exception="ValueError: no such shard",
            last_lines=LAST_LINES,
        )
        self._ends(name, Reason.EXIT_CODE, "rank 1 on worker 1 raised ValueError", failing)

    def stops(self, name: str) -> None:
        """A cancelled job ends."""
        job_id = self._id(name)
        stopped = self.runtime.stopped
        self._until(lambda: job_id in {each for each, *_ in stopped}, f"{name} is stopped")
        self.call(lambda: self.runtime.end(job_id, Reason.CANCELLED, "stopped"))
        self._until_state(name, "CANCELLED")

    def goes(self, name: str) -> None:
        """A deleted job is gone."""
        path = paths.job(name)
        ann = self.as_user("ann")
        self._until(lambda: ann("GET", path).status_code == 404, f"{name} is gone")

    def _ends(self, name: str, reason: Reason, message: str, failing: Failure | None) -> None:
        job_id = self._id(name)
        self.call(lambda: self.clock.pass_time(60))
        self.call(lambda: self.runtime.end(job_id, reason, message, failing))
        self._until_state(name, "FAILED" if failing else "SUCCEEDED")

    def _until_state(self, name: str, state: str) -> None:
        self._until(lambda: self._job(name)["state"] == state, f"{name} is {state}")

    def _until(self, true: Callable[[], bool], what: str) -> None:
        until(true, what, PATIENCE_S)

    def _job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.as_user("ann")("GET", paths.job(name)).json()
        return found

    def _id(self, name: str) -> str:
        return str(self._job(name)["id"])

    def _folder(self, name: str) -> Path:
        return self.settings.data_dir / "jobs" / self._id(name)
