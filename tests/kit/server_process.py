"""`python -m server_stub` as a process of its own, spoken to over its socket."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0  # of a start on a busy machine


class ServerProcess:
    """A server with its state directory. `before`: a command that execs what follows it (unshare,
    prlimit); `python`: another interpreter than ours, which finds this project by its path."""

    def __init__(
        self,
        state_dir: Path,
        *flags: str,
        before: tuple[str, ...] = (),
        python: Path | None = None,
        **variables: str,
    ) -> None:
        self.state_dir = state_dir
        self._out = state_dir.with_name(f"{state_dir.name}.out")
        variables = {
            "CLIENT_LIB_SERVER_INSECURE_SHARED_UID": "1"
        } | variables  # for those with a users file
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("CLIENT_LIB_")
        }
        if python is not None:
            variables = {"PYTHONPATH": str(ROOT)} | variables
        with open(
            self._out, "ab"
        ) as output:  # no pipe: a server that logs much would stall on one that nobody reads
            self._begin = output.tell()
            self.process = subprocess.Popen(
                [
                    *before,
                    str(python or sys.executable),
                    "-m",
                    "server_stub",
                    "--state-dir",
                    str(state_dir),
                    *flags,
                ],
                env=clean | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """All that it has said so far."""
        return self._out.read_bytes()[self._begin :].decode()

    def facts(self) -> dict[str, Any]:
        """server.json of this very process, as soon as it listens."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output
            try:
                found: dict[str, Any] = json.loads(
                    (self.seen_from_here(self.state_dir) / "server.json").read_text()
                )
            except FileNotFoundError:
                found = {}
            if found.get("pid") == self.process.pid:
                return found
            time.sleep(0.01)
        raise AssertionError("no server.json")

    def seen_from_here(self, path: Path) -> Path:
        """A path of the server's, which may have mounts of its own."""
        return Path(f"/proc/{self.process.pid}/root{path}") if sys.platform == "linux" else path

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """With the local token."""
        url = self.facts()["url"]
        token = (self.seen_from_here(self.state_dir) / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
        return requests.request(
            method, url + path, headers=headers, **{"timeout": DEADLINE_S} | options
        )

    def get(self, path: str) -> requests.Response:
        return self.call("GET", path)

    def end(self, sig: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and output after the signal."""
        self.process.send_signal(sig)
        return self.process.wait(DEADLINE_S), self.output

    def refused(self) -> str:
        """The message of a server that could not start."""
        assert self.process.wait(DEADLINE_S) == 1, self.output
        assert "Traceback" not in self.output
        return self.output

    def kill(self) -> None:
        """Whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
