"""The Linux calls and their portable twins, in processes of their own: both
change who they are called in.
"""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.launcher_protocol import processes
from client_lib.worker import memory
from tests.kit.processes import alive
from tests.kit.waiting import until

ROOT = Path(__file__).parents[2]

# a launcher that starts one process that sleeps, says its pid, and is killed
LAUNCHER = """
import os, sys, time
sys.path.insert(0, {root!r})
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.worker import ranks, system
chosen = system.choose()
started = ranks.start(Process(0, 0, ["sleep", "1000"], dict(os.environ), "/"), chosen.before_exec)
print(type(chosen).__name__, started.pid, flush=True)
{then}
"""


def launch(portable: str, then: str) -> tuple[str, int, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(root=str(ROOT), then=then)],
        env=os.environ | {"CLIENT_LIB_PORTABLE": portable},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    name, pid = process.stdout.readline().split()
    return name, int(pid), process


@pytest.mark.parametrize(("portable", "name"), [("0", "Linux"), ("1", "Portable")])
def test_a_process_dies_with_its_launcher(portable: str, name: str) -> None:

    chosen, pid, process = launch(portable, "time.sleep(1000)")
    assert chosen == name
    assert alive(pid)
    process.kill()
    process.wait()
    until(lambda: not alive(pid), "the process is gone")


def test_a_watcher_that_was_told_the_end_kills_nothing() -> None:

    _, pid, process = launch("1", "chosen.close(); chosen.__dict__.clear(); os._exit(0)")
    process.wait()
    assert process.stdout
    process.stdout.read()  # the end of the watcher, which holds it till then
    assert alive(pid)
    os.kill(pid, 9)


def test_a_foreign_group_with_the_number_of_an_ended_rank_is_not_left_over() -> None:
    foreign = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    then = (
        f"one = ranks.Ranks(chosen, print); one._began_at = {{{foreign.pid}: 0.0}}; "
        "print(one.left_over())"
    )
    _, _, process = launch("0", f"os.kill(started.pid, 9); os.wait(); {then}")
    left_over = process.communicate()[0]
    foreign.kill()
    foreign.wait()
    assert left_over == "[]\n"


def test_a_start_time_names_a_process_for_ever() -> None:
    assert processes.start_time(os.getpid()) == processes.start_time(os.getpid())
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.start_time(process.pid) is None


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    # the way of another system, on this one
    monkeypatch.setattr(processes, "_HAS_PROC", False)


@pytest.mark.process
@pytest.mark.usefixtures("without_proc")
def test_the_portable_answers_are_stable_too() -> None:
    if not processes.start_time(os.getpid()):
        pytest.skip("there is no ps here")
    assert processes.start_time(os.getpid()) == processes.start_time(os.getpid())
    assert processes.boot_id()


@pytest.mark.usefixtures("without_proc")
def test_a_boot_of_macos_is_known_by_its_session_not_by_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kern.boottime follows the clock; a stand-in for sysctl answers as macOS does."""
    sysctl = tmp_path / "sysctl"
    sysctl.write_text(
        '#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo '
        "8D3C2F6E-0A53-4F0E-9C0B-5C3D9C1B7A11\n"
    )
    sysctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert processes.boot_id() == "8D3C2F6E-0A53-4F0E-9C0B-5C3D9C1B7A11"


def test_marked_processes_are_found_by_their_environment() -> None:
    process = subprocess.Popen(
        ["sleep", "1000"], env=os.environ | {"CLIENT_LIB_WORKER_DIR": "/of/this/test"}
    )
    try:
        assert processes.marked("CLIENT_LIB_WORKER_DIR", "/of/this/test") == [process.pid]
        assert processes.marked("CLIENT_LIB_WORKER_DIR", "/of/this") == []
    finally:
        process.kill()
        process.wait()


def test_kills_for_memory_are_counted() -> None:
    assert memory.out_of_memory_kills() >= 0


def test_a_file_that_can_not_be_opened_does_not_look_as_if_it_were_not_there() -> None:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            while True:
                os.dup(0)
        try:
            processes.content("/proc/self/status")
        except OSError as error:
            os._exit(0 if error.errno == errno.EMFILE else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert processes.content("/proc/0/status") == b""
