"""The looks at this machine: ports, processes, volumes, conda environments, and
where the runtime can't run.
"""

import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.directory import MARKER
from server_stub.runtimes.local import launcher, machine
from server_stub.runtimes.local.host import check_volumes, find_prefix
from server_stub.runtimes.local.ports import Ports, ephemeral_range, in_turn, is_free, outside
from tests.kit.waiting import until
from tests.runtimes.conftest import running


def test_this_machine_is_looked_at() -> None:
    here = machine.look()
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert here.boot_id == machine.look().boot_id
    assert here.loopback in [name for _, name in socket.if_nameindex()]


# --- ports


def test_ports_lie_outside_of_the_ephemeral_range() -> None:
    assert set(outside((32768, 60999))) == {*range(10000, 32768), *range(61000, 65536)}
    assert not set(outside((49152, 65535))) & set(range(49152, 65536))
    first, last = ephemeral_range()
    assert 0 < first < last < 65536


def test_where_all_ports_are_ephemeral_any_is_taken() -> None:
    assert len(outside((1024, 65535))) == 55536


def test_each_port_has_its_turn_once_from_a_place_that_depends_on_the_job() -> None:
    assert sorted(in_turn(range(100), "a")) == list(range(100))
    assert next(in_turn(range(10000), "a")) != next(in_turn(range(10000), "b"))


def test_no_two_holders_get_the_same_port() -> None:
    ports = Ports()
    ports._usable = [20001, 20002, 20003]
    taken = {ports.reserve(holder) for holder in ("a", "b", "c")}
    assert taken == {20001, 20002, 20003}
    ports.release("b")
    assert ports.reserve("d") in taken
    ports.close()


KEY = uuid.uuid4().hex
"""Id of a job, random: parallel runs of these tests begin their search at different ports."""


def test_two_servers_never_reserve_the_same_port() -> None:
    one, other = Ports(), Ports()
    port = one.reserve(KEY)
    assert other.reserve(KEY) != port
    other.release(KEY)
    one.close()
    assert other.reserve(KEY) == port
    other.close()


def test_a_port_that_a_user_chose_is_reserved_for_no_job_of_another_server() -> None:
    one, other = Ports(), Ports()
    chosen = other.reserve(KEY)
    other.release(KEY)
    one.hold("b", chosen)
    assert other.reserve(KEY) != chosen
    other.hold("c", chosen)  # the same choice on another server is not refused: a rank reports it
    one.close()
    other.close()


def test_the_port_of_a_killed_server_is_free_again() -> None:
    script = f"""
from server_stub.runtimes.local.ports import Ports
ports = Ports()
print(ports.reserve({KEY!r}), flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout
        port = int(server.stdout.readline())
        ours = Ports()
        assert ours.reserve(KEY) != port
        ours.release(KEY)
        server.kill()
    assert ours.reserve(KEY) == port
    ours.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_somebody_listens_on_is_not_chosen(family: socket.AddressFamily) -> None:
    with socket.socket(family) as listener:
        listener.bind(("localhost" if family == socket.AF_INET else "::1", 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1])


# --- processes


def test_marked_processes_are_found_and_killed_wherever_they_went(tmp_path: Path) -> None:
    mine = {**os.environ, MARKER: str(tmp_path)}
    other = {**os.environ, MARKER: f"{tmp_path}0"}
    child = subprocess.Popen(["sleep", "600"], env=mine, start_new_session=True)
    stranger = subprocess.Popen(["sleep", "600"], env=other)
    # /proc may show an environment only after the exec
    until(lambda: launcher.leftovers(tmp_path) == [child.pid])
    assert launcher.kill_leftovers(tmp_path) == [child.pid]
    assert child.wait(10) == -9
    assert launcher.leftovers(tmp_path) == []
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(10)


def test_a_recorded_pid_that_belongs_to_another_process_by_now_is_left_alone(
    tmp_path: Path,
) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    record = f'{{"0": {{"pid": {stranger.pid}, "pgid": {stranger.pid}, "start_time": "1"}}}}'
    (tmp_path / "processes.json").write_text(record)
    assert launcher.kill_leftovers(tmp_path) == []
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(10)


def test_on_macos_the_marker_is_found_in_the_answer_of_ps() -> None:
    answer = "  12 sleep 600 A=1 M=/a/b C=2\n  13 sleep M=/a/bc\n 140 python M=/a/b\n"
    assert launcher.find_in_ps(answer, "M=/a/b") == [12, 140]


# --- volumes, conda, Windows


def test_a_volume_must_be_a_folder_of_this_machine(tmp_path: Path) -> None:
    assert check_volumes([f"data:{tmp_path}"]) == []
    assert check_volumes([f"data:{tmp_path}:ro"]) == [
        f"volume 'data': {tmp_path} is this machine's own folder; `ro` is not enforced"
    ]
    with pytest.raises(InvalidRequest, match="this machine has no folder /no/such"):
        check_volumes(["data:/no/such"])


@pytest.mark.parametrize(
    "volume", ["data", "data:", ":/x", "data:x", "data:/x:rw", "data:/x:ro:ro", ""]
)
def test_a_volume_of_another_form_is_refused(volume: str) -> None:
    with pytest.raises(InvalidRequest, match="is not of the form"):
        check_volumes([volume])


def environment_at(prefix: Path) -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(sys.executable)
    return prefix


@pytest.mark.parametrize(
    "variables",
    [
        {"CONDA_EXE": "{}/bin/conda"},
        {"CONDA_PREFIX": "{}"},
        {"CONDA_PREFIX": "{}/envs/another"},
        {"MAMBA_ROOT_PREFIX": "{}"},
        {"CONDA_ENVS_PATH": "/none:{}/envs"},
    ],
)
def test_a_conda_environment_is_found_as_the_submitters_conda_would(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    prefix = environment_at(tmp_path / "envs" / "torch")
    assert (
        find_prefix("torch", {k: v.format(tmp_path) for k, v in variables.items()}, None) == prefix
    )


def test_a_conda_environment_is_found_by_its_path(tmp_path: Path) -> None:
    prefix = environment_at(tmp_path / "env")
    assert find_prefix(str(prefix), {}, None) == prefix
    assert find_prefix("./env", {}, str(tmp_path)) == prefix
    assert find_prefix("~/env", {"HOME": str(tmp_path)}, None) == prefix


def test_a_conda_environment_that_is_not_there_is_refused_with_where_it_was_looked_for(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidRequest, match=str(tmp_path / "envs" / "torch")):
        find_prefix("torch", {"CONDA_PREFIX": str(tmp_path)}, None)


@pytest.mark.anyio
async def test_a_job_runs_in_its_conda_environment(tmp_path: Path) -> None:
    prefix = environment_at(tmp_path / "envs" / "torch")
    (tmp_path / "t.py").write_text(
        "import os, shutil\nprint(shutil.which('python'), os.environ['CONDA_DEFAULT_ENV'])\n"
    )
    async with running(tmp_path) as site:
        job = site.submit("conda", "t.py", conda_env=str(prefix))
        await site.ended(job)
        assert site.lines(job)[-1] == f"{prefix}/bin/python torch"
