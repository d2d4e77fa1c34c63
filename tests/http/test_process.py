"""The server as a process: how it starts, what it refuses in one sentence, and how it ends."""

import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib import __version__
from client_lib.errors import Conflict, InvalidRequest
from client_lib.spec import paths
from server_stub import server_files
from server_stub.http import users_file
from server_stub.runtimes.local.accounts import are_possible
from server_stub.serve import serve
from server_stub.settings import PREFIX, Settings
from tests.kit.server_process import DEADLINE_S, ServerProcess

pytestmark = pytest.mark.process

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server in `<tmp>/<name>`; whatever runs is killed at the end."""
    started: list[ServerProcess] = []

    def run(*flags: str, state: str = "state", **variables: Any) -> ServerProcess:
        started.append(ServerProcess(tmp_path / state, *flags, **variables))
        return started[-1]

    yield run
    for server in started:
        server.kill()


@pytest.mark.smoke
def test_it_tells_where_it_listens_answers_and_ends_in_order(start: Start, tmp_path: Path) -> None:
    server = start()
    facts = server.facts()
    assert facts.keys() == {
        "url",
        "pid",
        "version",
        "boot_id",
        "host",
        "started_at",
        "data_dir",
        "code",
    }
    assert (facts["version"], facts["host"]) == (__version__, socket.gethostname())
    assert facts["data_dir"] == str(tmp_path / "state" / "data")
    assert server.get(paths.INFO).json()["admin"]
    assert server.end() == (0, server_output_without_noise())
    assert not (tmp_path / "state" / "server.json").exists()


def server_output_without_noise() -> Any:
    class AnyJsonLines:
        def __eq__(self, other: object) -> bool:
            return all(json.loads(line) for line in str(other).splitlines())

    return AnyJsonLines()


def test_a_signal_that_comes_as_soon_as_it_is_seen_ends_it_in_order(tmp_path: Path) -> None:
    lines = """
        import os, signal, sys
        from server_stub import serve, server_files
        from server_stub.settings import Settings

        def write_and_end(*of_file):
            write(*of_file)
            os.kill(os.getpid(), signal.SIGTERM)

        write, server_files.write_server_json = server_files.write_server_json, write_and_end
        serve.serve(Settings(state_dir=sys.argv[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(lines), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "server.json").exists()


@pytest.mark.smoke
def test_everything_it_keeps_is_private(start: Start, tmp_path: Path) -> None:
    start().facts()
    state = tmp_path / "state"
    modes = {
        name: stat.S_IMODE((state / name).stat().st_mode)
        for name in (".", "data", "server.json", "token")
    }
    assert modes == {".": 0o700, "data": 0o700, "server.json": 0o600, "token": 0o600}
    database = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (state / "data").glob("client_lib.db*")
    }
    assert database == dict.fromkeys(
        ("client_lib.db", "client_lib.db-wal", "client_lib.db-shm"), 0o600
    )


def test_the_database_of_an_earlier_version_becomes_private(start: Start, tmp_path: Path) -> None:
    first = start()
    first.facts()
    first.end()
    database = tmp_path / "state" / "data" / "client_lib.db"
    database.chmod(0o644)
    start().facts()
    assert {
        stat.S_IMODE(path.stat().st_mode) for path in database.parent.glob("client_lib.db*")
    } == {0o600}


def test_a_second_server_on_one_of_its_directories_is_told_who_is_there(
    start: Start, tmp_path: Path
) -> None:
    facts = start().facts()
    data = facts["data_dir"]
    of_data = start("--data-dir", data, state="other").refused()
    assert f"pid {facts['pid']}, {facts['url']}" in of_data
    assert data in of_data
    of_state = start("--data-dir", str(tmp_path / "data2")).refused()
    assert f"pid {facts['pid']}" in of_state
    assert json.loads((tmp_path / "state" / "server.json").read_text()) == facts


def test_a_second_server_that_is_refused_leaves_the_token_as_it_is(tmp_path: Path) -> None:
    with server_files.locked([tmp_path], server_files.facts("1", tmp_path)):
        with pytest.raises(Conflict):  # before the first one has made its token, too
            serve(Settings(state_dir=tmp_path))
        assert not (tmp_path / "token").exists()


def test_what_a_killed_server_left_is_taken_over(start: Start) -> None:
    first = start()
    url = first.facts()["url"]
    token = (first.state_dir / "token").read_text()
    first.end(signal.SIGKILL)
    second = start()
    assert second.facts()["pid"] == second.process.pid
    assert second.get(paths.INFO).ok
    assert (second.state_dir / "token").read_text() == token
    assert url


def test_a_busy_port_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = start("--port", str(port)).refused()
    assert f"port {port} of 127.0.0.1" in said
    assert "--port 0" in said


def test_beyond_loopback_it_needs_users(start: Start, tmp_path: Path) -> None:
    assert "needs --users-file" in start("--host", "0.0.0.0").refused()
    assert not (tmp_path / "state" / "server.json").exists()


def test_beyond_loopback_with_users_it_knows_these_alone(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    made = subprocess.run(
        [sys.executable, "-m", "server_stub", "token", "ann", "--users-file", str(users)],
        capture_output=True,
        text=True,
        check=True,
    )
    server = start("--host", "0.0.0.0", "--users-file", str(users))
    url = server.facts()["url"]
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    assert (
        requests.get(url + paths.INFO, headers=headers, timeout=DEADLINE_S).json()["user"] == "ann"
    )
    assert not (tmp_path / "state" / "token").exists()


def test_users_who_share_an_account_need_a_flag(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    token = users_file.add(users, "no-account", admin=False)
    refused = {"CLIENT_LIB_SERVER_INSECURE_SHARED_UID": "0"}
    said = start("--users-file", str(users), **refused).refused()
    expected = (
        "no account for no-account" if are_possible() else "can read the others' files and secrets"
    )
    assert expected in said
    assert "--insecure-shared-uid" in said
    server = start("--users-file", str(users), "--insecure-shared-uid", **refused)
    headers = {"Authorization": f"Bearer {token}"}
    assert requests.get(server.facts()["url"] + paths.INFO, headers=headers, timeout=DEADLINE_S).ok


def test_without_root_users_cant_be_separated(
    seems_run_by: Callable[[int], None], tmp_path: Path
) -> None:
    seems_run_by(1000)
    users = tmp_path / "users.toml"
    users.write_text("")
    with pytest.raises(InvalidRequest, match="can read the others' files and secrets") as refused:
        serve(Settings(state_dir=tmp_path / "state", users_file=users, insecure_shared_uid=False))
    assert refused.value.hint
    assert all(
        way in refused.value.hint for way in ("as root", "--insecure-shared-uid", "Kubernetes")
    )


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("192.0.2.1", "of 192.0.2.1 can't be listened on"),
        ("no.such.invalid", "'no.such.invalid' is no address"),
        ("10.0.0..1", "'10.0.0..1' is no address"),
    ],
)
def test_an_address_of_another_machine_is_named(
    host: str, says: str, start: Start, tmp_path: Path
) -> None:
    users = tmp_path / "users.toml"
    users.write_text("")
    assert says in start("--host", host, "--users-file", str(users)).refused()


@pytest.mark.parametrize(
    ("flags", "variables", "says"),
    [
        (["--port", "70000"], {}, "port=70000"),
        ([], {"CLIENT_LIB_SERVER_MAX_SNAPSHOT_BYTES": "-1"}, "max_snapshot_bytes"),
        (["--users-file", "/nowhere/users.toml"], {}, "/nowhere/users.toml can't be read"),
        (["--data-dir", "/dev/null/data"], {}, "/dev/null/data can't be used: Not a directory"),
    ],
)
def test_what_can_not_be_is_one_sentence(
    flags: list[str], variables: dict[str, str], says: str, start: Start
) -> None:
    assert says in start(*flags, **variables).refused()


def test_a_variable_that_is_no_setting_any_more_is_named_and_ignored(start: Start) -> None:
    server = start(
        **{
            f"{PREFIX}SPOOL_BYTES": "1000",
            f"{PREFIX}OIDC_ISSUER": "https://lab.example",
            f"{PREFIX}JOB_KIND": "auto",
        }
    )
    server.facts()
    assert (
        server.output.count(f"{PREFIX}SPOOL_BYTES is no setting of this server; it is ignored") == 1
    )
    assert (
        f"{PREFIX}OIDC_ISSUER is no setting of this server; it is ignored: the table [oidc] of"
        in server.output
    )
    assert (
        f"{PREFIX}JOB_KIND is no setting of this server; it is ignored: the entry job_kind of"
        in server.output
    )


def test_a_read_only_data_directory_is_one_sentence(start: Start, tmp_path: Path) -> None:
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("a read-only mount, which holds for root too, needs unshare as root")
    (tmp_path / "data").mkdir()
    mount = f"mount -t tmpfs -o ro none {tmp_path}/data"
    serve = (
        f"{sys.executable} -m server_stub --state-dir {tmp_path}/state --data-dir {tmp_path}/data"
    )
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && exec {serve}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if "mount" in ended.stderr or "unshare" in ended.stderr:
        pytest.skip("this container may not mount")
    assert ended.returncode == 1
    assert f"{tmp_path}/data can't be used: Read-only file system" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_idle_it_ends_and_with_a_request_now_and_then_it_does_not(start: Start) -> None:
    server = start("--idle-exit-s", "3")
    server.facts()
    began = time.monotonic()
    while time.monotonic() < began + 4.5:
        assert server.get(paths.INFO).ok
        time.sleep(0.2)
    assert server.process.wait(DEADLINE_S) == 0, server.output
    assert "stopping: no job and no request" in server.output


def test_who_only_asks_whether_it_lives_does_not_keep_it_alive(start: Start) -> None:
    server = start("--idle-exit-s", "1")
    url = server.facts()["url"]
    deadline = time.monotonic() + DEADLINE_S
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            requests.get(url + paths.HEALTHZ, timeout=DEADLINE_S)
        except requests.ConnectionError:
            break
        time.sleep(0.05)
    assert server.process.wait(DEADLINE_S) == 0


def test_it_holds_no_descriptor_of_who_started_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "server_stub", "--state-dir", str(tmp_path / "state")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            start_new_session=True,
        )
    os.close(writer)
    try:
        # the end: nobody holds the other side, while the server starts or runs
        assert os.read(reader, 1) == b""
        assert process.poll() is None
    finally:
        os.close(reader)
        process.kill()
        process.wait()


def test_it_keeps_its_counters_apart_from_those_of_who_started_it(
    start: Start, tmp_path: Path
) -> None:
    server = start(PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "gone"))
    assert server.get(paths.INFO).ok
    assert f'route="{paths.INFO}",status="200"}} 1.0' in server.get(paths.METRICS).text
    assert "Traceback" not in server.output


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is set")
def test_without_files_to_open_it_answers_503_and_logs_one_line(start: Start) -> None:
    server = start()
    data = b"x" * 100
    path = paths.snapshot(hashlib.sha256(data).hexdigest())
    url = server.facts()["url"]
    with requests.Session() as session:
        session.headers["Authorization"] = (
            f"Bearer {(server.state_dir / 'token').read_text().strip()}"
        )
        assert session.get(url + paths.INFO, timeout=DEADLINE_S).ok  # its connection stays
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, 3))
        for _ in range(20):
            answer = session.put(url + path, data=data, timeout=DEADLINE_S)
            assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (
                503,
                "unavailable",
                "1",
            )
    assert server.output.count("Too many open files") == 1
    assert "Traceback" not in server.output


def test_two_interrupts_end_it_at_once(start: Start) -> None:
    server = start()
    server.facts()
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(DEADLINE_S) == 0


def test_version_and_help_load_no_server() -> None:
    for flag in ("--version", "--help"):
        code = (
            "import sys\nfrom server_stub.__main__ import main\ntry: main([sys.argv[1]])\nexcept "
            "SystemExit: pass\n"
        )
        code += (
            "print([m for m in ('fastapi', 'pydantic', 'sqlalchemy', 'uvicorn') if m in "
            "sys.modules])"
        )
        said = subprocess.run(
            [sys.executable, "-c", code, flag], capture_output=True, text=True, check=True
        ).stdout
        assert said.splitlines()[-1] == "[]"


def test_a_start_at_head_loads_no_migrations(start: Start) -> None:
    first = start()
    first.facts()
    first.end()
    again = start(PYTHONPROFILEIMPORTTIME="1")
    again.facts()
    _, output = again.end()
    loaded = {
        line.rsplit("|", 1)[-1].strip()
        for line in output.splitlines()
        if line.startswith("import time:")
    }
    assert "fastapi" in loaded
    assert not loaded & {"alembic", "kubernetes", "websockets", "torch", "requests"}


FREES = """
from pathlib import Path
from server_stub.serve import keep_large_blocks_apart

def resident_mib():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024

keep_large_blocks_apart()
size = 2**24
b"x" * size
before = resident_mib()
large, small = [], []
for number in range(8):
    large.append(b"x" * (size - number))
    small += [bytes(3000 + number) for _ in range(300)]
del large
print(resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_blocks_that_are_freed_leave_the_process() -> None:
    ran = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 16
