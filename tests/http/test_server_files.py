"""One server per directory; its files are private; a dead server's files are taken over."""

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from client_lib.errors import Conflict, ServerError
from server_stub import server_files
from server_stub.server_files import DirectoryLock, facts, local_token, locked, prepare
from tests.kit.small_disk import fill, small_disk

HOLD = """
import sys
from pathlib import Path
from server_stub.server_files import DirectoryLock, facts
DirectoryLock(Path(sys.argv[1])).take(facts("1", Path("/d"), "http://127.0.0.1:5"))
print("held", flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_second_server_is_refused_with_pid_and_url_of_the_first(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Conflict) as refused:
            DirectoryLock(tmp_path).take(facts("1", tmp_path))
        assert f"pid {first.pid}, http://127.0.0.1:5" in refused.value.message
        assert str(tmp_path) in refused.value.message
        first.kill()
        first.wait()
        # killed without a word: its lock died with it
        DirectoryLock(tmp_path).take(facts("1", tmp_path))


def test_a_client_that_looks_at_the_lock_does_not_keep_a_server_from_starting(
    tmp_path: Path,
) -> None:
    with (tmp_path / "server.lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with locked([tmp_path], facts("1", tmp_path)) as locks:
            assert len(locks) == 1


def test_one_directory_given_twice_is_locked_once(tmp_path: Path) -> None:
    with locked([tmp_path, tmp_path / "x" / ".."], facts("1", tmp_path)) as locks:
        assert len(locks) == 1


def test_a_second_lock_that_fails_gives_the_first_back(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with locked([two], facts("1", two)):
        with pytest.raises(Conflict), locked([one, two], facts("1", two)):
            pass
        with locked([one], facts("1", one)):
            pass


def test_garbage_in_a_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "server.lock").write_text("{garbage" * 100)
    with locked([tmp_path], facts("1", tmp_path)):
        assert json.loads((tmp_path / "server.lock").read_text())["pid"] == os.getpid()


def test_directories_are_private(tmp_path: Path) -> None:
    prepare(tmp_path / "state", tmp_path / "state" / "data")
    assert mode(tmp_path / "state") == mode(tmp_path / "state" / "data") == 0o700


def test_a_directory_that_can_not_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerError, match="file/data can't be used: Not a directory"):
        prepare(tmp_path / "state", tmp_path / "file" / "data")


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    token = local_token(tmp_path)
    assert len(token) > 40
    assert mode(tmp_path / "token") == 0o600
    (tmp_path / "token").chmod(0o644)
    assert local_token(tmp_path) == token
    assert mode(tmp_path / "token") == 0o600


def test_server_json_is_private_and_only_its_own_server_removes_it(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    server_files.write_server_json(tmp_path, facts("1", tmp_path, "http://127.0.0.1:5"))
    assert mode(path) == 0o600
    ours = path.read_text()
    path.write_text(json.dumps(json.loads(ours) | {"pid": 1}))
    server_files.remove_server_json(tmp_path)
    assert path.exists()
    path.write_text(ours)
    server_files.remove_server_json(tmp_path)
    server_files.remove_server_json(tmp_path)
    assert not path.exists()


def test_a_directory_without_room_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state", "size=1m") as folder:
        fill(folder)
        with pytest.raises(
            ServerError, match=f"{folder}/token can't be written: No space left on device"
        ):
            local_token(folder)
