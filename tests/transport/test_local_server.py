"""The local server as real processes: started, found, shared, lost, and
never mistaken for another.
"""

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import client_lib
from client_lib.client import Client
from client_lib.errors import Conflict, ServerError
from client_lib.job import Job
from client_lib.spec.state_dir import SERVER_LOCK, state_dir
from client_lib.transport import local_server as local_servers
from client_lib.transport.local_server import Running, find, find_or_start, stop
from tests.kit.local_server import stop_server
from tests.kit.rights import file_modes_hold
from tests.kit.waiting import until

pytestmark = pytest.mark.process

ASK = "from client_lib.client import Client; print(Client().server_info().runtime)"


@pytest.fixture
def own_state(tmp_path: Path) -> Iterator[Path]:
    """The state directory that the environment of this test names; what starts
    there ends with the test.
    """
    path = tmp_path / "state"
    yield path
    stop_server(path)


@pytest.fixture
def described(client: Client, local_server: Path) -> Iterator[Path]:
    """The description of the shared server, which is restored."""
    file = local_server / "server.json"
    text = file.read_text()
    yield file
    file.write_text(text)
    file.chmod(0o600)


def python(code: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, **options
    )


@pytest.mark.smoke
def test_the_first_call_starts_it_the_next_process_finds_it_and_stop_ends_it(
    own_state: Path,
) -> None:
    assert find(own_state) is None
    with (own_state.parent / "held").open("w") as held:
        client = python(ASK, stderr=subprocess.STDOUT, pass_fds=[held.fileno()])
        assert client.stdout
        # returns only when nobody holds the pipe any more
        assert client.stdout.read().strip() == "local"
        assert client.wait(10) == 0
        running = find(own_state)
        assert running
        if Path("/proc/self/fd").exists():
            opened = {os.readlink(path) for path in Path(f"/proc/{running.pid}/fd").iterdir()}
            assert held.name not in opened
    assert Client().server_info().runtime == "local"
    assert find(own_state) == running
    stop(running)
    assert find(own_state) is None
    stop(running)


def test_ten_at_once_start_one(own_state: Path) -> None:
    with ThreadPoolExecutor(10) as pool:
        callers = list(pool.map(lambda _: python(ASK), range(10)))
    assert [caller.communicate(timeout=60)[0].strip() for caller in callers] == ["local"] * 10
    log = (own_state / "server.log").read_text()
    assert log.count("listening on") == 1


def test_it_is_a_session_of_its_own_and_its_state_is_private(local_server: Path) -> None:
    running = find_or_start(local_server)
    assert os.getsid(running.pid) == running.pid
    assert stat.S_IMODE(local_server.stat().st_mode) == 0o700
    for name in ("token", "server.json", "server.lock", "server.log"):
        assert stat.S_IMODE((local_server / name).stat().st_mode) == 0o600, name


def test_one_that_a_job_starts_outlives_the_job(
    client: Client, own_state: Path, folder: Path
) -> None:
    (folder / "start.py").write_text(
        "import pathlib, sys\nfrom client_lib.transport.local_server import find_or_start\n"
        "print(find_or_start(pathlib.Path(sys.argv[1])).pid)\n"
    )
    job = Job(script="start.py", args=[str(own_state)], client=client)
    job.submit()
    job.wait(timeout=60)
    running = find(own_state)
    assert running
    assert list(job.log_lines()) == [str(running.pid)]
    assert (
        Client(endpoint=running.url, token=running.endpoint.token).server_info().runtime == "local"
    )


@pytest.mark.smoke
def test_after_kill_9_the_same_client_goes_on_with_a_new_one_and_no_zombie_is_left(
    own_state: Path,
) -> None:
    client = Client()
    first = client.server_info() and find(own_state)
    assert first
    os.kill(first.pid, signal.SIGKILL)
    assert client.server_info().runtime == "local"
    second = find(own_state)
    assert second
    assert second.pid != first.pid
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)
    stop_server(own_state)
    assert (own_state / "server.json").exists(), "the files of a dead server are not believed"
    assert find(own_state) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}', "null"])
def test_half_a_state_file_is_none(own_state: Path, text: str) -> None:
    own_state.mkdir()
    (own_state / "server.json").write_text(text)
    assert find(own_state) is None


def test_a_file_of_an_older_server_is_not_believed_while_a_new_one_starts(
    local_server: Path, described: Path
) -> None:
    running, text = find_or_start(local_server), described.read_text()
    described.write_text(
        json.dumps(json.loads(text) | {"pid": running.pid + 1, "url": "http://127.0.0.1:9"})
    )
    assert find(local_server) is None
    described.write_text(text)
    assert find(local_server) == running


def test_the_state_of_another_host_is_never_adopted(described: Path) -> None:
    described.write_text(json.dumps(json.loads(described.read_text()) | {"host": "node-17"}))
    with pytest.raises(Conflict, match="a server on node-17") as caught:
        Client().server_info()
    assert "CLIENT_LIB_STATE_DIR" in (caught.value.hint or "")


def test_two_hosts_with_one_home_have_a_server_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLIENT_LIB_STATE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    directories = []
    for host in ("node-1", "node-2"):
        # patched: a second machine that mounts the same home can't be had here
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        directories.append(state_dir())
    assert directories[0] != directories[1]


def test_a_start_that_fails_shows_the_end_of_the_log(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_LIB_SERVER_PORT", "ninety")
    with pytest.raises(ServerError, match="ended with exit code") as caught:
        Client().server_info()
    assert "ninety" in caught.value.message
    assert str(own_state / "server.log") in caught.value.message
    assert f"`client-lib serve --state-dir {own_state}`" in (caught.value.hint or "")


def test_a_state_directory_that_can_t_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(ServerError, match="can't keep its state in"):
        Client().server_info()


def test_a_state_directory_that_can_t_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir(0o300)  # as of another user
    (state / "server.json").touch(0o200)
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(state))
    with (
        file_modes_hold(),
        pytest.raises(ServerError, match=r"can't keep its state in .*Permission denied"),
    ):
        Client(retry_s=0).server_info()


def test_one_that_ends_by_itself_meanwhile_is_stopped(own_state: Path) -> None:
    own_state.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    with (own_state / SERVER_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ending = threading.Timer(0.2, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        ending.start()
        stop(Running(own_state, "http://127.0.0.1:1", gone.pid, "0.1.0"))
        assert ending.finished.is_set()


def test_a_call_while_the_server_ends_is_answered(own_state: Path) -> None:
    client = Client()
    for _ in range(2):
        running = find_or_start(own_state)
        os.kill(running.pid, signal.SIGTERM)
        assert client.server_info().runtime == "local"
        until(lambda: find(own_state) != running)  # noqa: B023  # looked at within the round


def test_many_threads_of_one_process_share_it(own_state: Path) -> None:
    seen: list[Running] = []
    threads = [
        threading.Thread(target=lambda: seen.append(find_or_start(own_state))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert len(seen) == 8


def test_all_servers_of_this_user_are_found(own_state: Path, local_server: Path) -> None:
    running = {find_or_start(own_state), find_or_start(local_server)}
    assert {each for each in local_servers.find_all() if each in running} == running


def test_a_server_logs_who_asked_it_to_end(own_state: Path) -> None:
    log = own_state / "server.log"
    local_servers.stop(find_or_start(own_state))
    assert f"stopping: asked by pid {os.getpid()}, cwd {Path.cwd()}" in log.read_text()
    os.kill(find_or_start(own_state).pid, signal.SIGTERM)
    until(lambda: find(own_state) is None)
    assert log.read_text().count("stopping: asked by") == 1
    assert "stopping: signal SIGTERM" in log.read_text()


# --- versions


NEWER = "import client_lib; client_lib.__version__ = '99.0'; " + ASK
OLDER = "import client_lib; client_lib.__version__ = '0.0.9'; " + ASK


def test_a_newer_client_uses_a_server_with_jobs_with_a_warning_and_replaces_an_idle_one(
    own_state: Path,
) -> None:
    job = "from client_lib import Job; Job(script='sleep 60', type='binary').submit()"
    assert python(job).wait(60) == 0
    running = find(own_state)
    assert running
    out, said = python(NEWER, stderr=subprocess.PIPE).communicate(timeout=60)
    assert out.strip() == "local"
    assert "older than this client (99.0) and has jobs" in said
    assert find(own_state) == running
    for info in Client().list_jobs():
        Client().delete_job(info.name, force=True)
    until(lambda: not list(Client().list_jobs()))
    assert python(NEWER).communicate(timeout=60)[0].strip() == "local"
    now = find(own_state)
    assert now
    assert now.pid != running.pid


@pytest.mark.usefixtures("client")
def test_an_older_client_uses_the_newer_server_and_says_so(local_server: Path) -> None:
    running = find(local_server)
    out, said = python(OLDER, stderr=subprocess.PIPE).communicate(timeout=60)
    assert out.strip() == "local"
    assert "newer than this client (0.0.9)" in said
    assert find(local_server) == running


def test_a_version_before_its_release_is_older_than_the_release() -> None:
    versions = ["0.1.0", "0.2.0.dev0", "0.2.0", "0.2.1rc1", "0.2.1+local", "0.10", "1.0"]
    keys = [local_servers._ordered(version) for version in versions]
    assert keys == sorted(set(keys))


def test_a_server_of_the_same_version_with_other_code_is_used_with_a_warning(
    local_server: Path, described: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = find_or_start(local_server)
    root = Path(client_lib.__file__).parents[1]
    assert local_servers._other_code(running, root) is None
    other = tmp_path / "checkout"
    other.mkdir()
    for package in ("client_lib", "server_stub"):
        (other / package).symlink_to(root / package)
    environment = {**os.environ, "PYTHONPATH": str(other)}
    asks = python(ASK, stderr=subprocess.PIPE, env=environment, cwd=tmp_path)
    out, said = asks.communicate(timeout=60)
    assert (out.strip(), find(local_server)) == ("local", running)
    assert (
        f"runs the code in {root}, and this client that in {other}; `client-lib server restart`"
        in said
    )
    with monkeypatch.context() as patched:
        # removed since it was listed
        patched.setattr(os, "walk", lambda folder: iter([(str(folder), [], ["gone.py"])]))
        assert local_servers._other_code(running, root) is None
    os.utime(described, (0, 0))
    assert re.fullmatch(
        r"was started before \S+\.py was changed", local_servers._other_code(running, root) or ""
    )
    described.unlink()  # as a server that ends does
    assert local_servers._other_code(running, root) is None


def test_finding_it_takes_milliseconds(local_server: Path) -> None:
    begin = time.perf_counter()
    for _ in range(20):
        assert find(local_server)
    assert (time.perf_counter() - begin) / 20 < 0.005
