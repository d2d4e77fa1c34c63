"""All the ways a worker ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_lib.durable import is_held, read_json
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import ALREADY_RAN, ALREADY_RUNS
from client_lib.worker.programs import launcher_command
from tests.kit.processes import alive
from tests.kit.waiting import until
from tests.worker.conftest import Worker

pytestmark = pytest.mark.process

Make = Callable[..., Worker]

# a grandchild in a session of its own, which SIGTERM to its parent's group does not reach
DAEMON = """
import os, subprocess, sys, time
sleeps = [sys.executable, "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(sleeps, start_new_session={session})
print("child", child.pid, flush=True)
{then}
"""


def child_of(worker: Worker) -> int:
    worker.waits_for("child ")
    return int(next(line for line in worker.lines() if line.startswith("child ")).split()[1])


@pytest.fixture(params=[False, True], ids=["linux", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.smoke
def test_every_rank_ends_with_0(worker: Make, portable: bool) -> None:
    report = worker("print('hello')", processes_per_worker=3, portable=portable).run()
    assert (report["exit_code"], report["reason"]) == (0, "Completed")
    assert [rank["exit_code"] for rank in report["ranks"]] == [0, 0, 0]


@pytest.mark.smoke
def test_the_report_names_the_first_failing_rank_and_the_others_are_stopped(
    worker: Make, portable: bool
) -> None:
    script = """
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(7)
        time.sleep(1000)
    """
    report = worker(script, processes_per_worker=3, portable=portable).run()
    assert (report["exit_code"], report["reason"], report["first_failing_rank"]) == (
        7,
        "ExitCode",
        1,
    )
    assert [rank["stopped_by_us"] for rank in report["ranks"]] == [True, False, True]
    assert [rank["signal"] for rank in report["ranks"]] == [15, None, 15]


def test_a_rank_that_died_of_another_is_not_the_first(worker: Make) -> None:
    script = """
        import os, time
        if os.environ["RANK"] == "1":
            open("pid.new", "w").write(str(os.getpid()))
            os.rename("pid.new", "pid")
            time.sleep(0.2)
            os.kill(os.getpid(), 11)
        while not os.path.exists("pid"):
            time.sleep(0.001)
        stat = "/proc/" + open("pid").read() + "/stat"
        while os.path.exists(stat) and " Z " not in open(stat).read():
            pass
        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:2999")
    """
    report = worker(script, processes_per_worker=2).run()
    assert (report["first_failing_rank"], report["reason"], report["exit_code"]) == (
        1,
        "Signal",
        139,
    )


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(
    worker: Make, portable: bool
) -> None:
    script = """
        import os, signal, sys, time
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open("deaf", "w").close()
            time.sleep(1000)
        while not os.path.exists("deaf"):
            time.sleep(0.01)
        sys.exit(3)
    """
    report = worker(script, processes_per_worker=2, grace_s=0.3, portable=portable).run()
    assert [rank["signal"] for rank in report["ranks"]] == [9, None]
    assert report["first_failing_rank"] == 1


def test_sigterm_reaches_the_grandchildren_in_the_group(worker: Make, portable: bool) -> None:
    one = (
        worker(DAEMON.format(session=False, then="time.sleep(1000)"), portable=portable)
        .start()
        .go()
    )
    child = child_of(one)
    assert one.process
    one.process.send_signal(signal.SIGTERM)
    report = one.report()
    assert report["reason"] == "Cancelled"
    assert not alive(child)


@pytest.mark.smoke
def test_stop_over_the_socket_takes_grandchildren_in_sessions_of_their_own(worker: Make) -> None:
    one = worker(DAEMON.format(session=True, then="time.sleep(1000)")).start().go()
    child = child_of(one)
    began = time.monotonic()
    one.stop(5.0)
    assert one.report()["reason"] == "Cancelled"
    assert time.monotonic() - began < 3
    assert not alive(child)


def test_stop_before_go_starts_nothing(worker: Make) -> None:
    one = worker("print('never')").start()
    one.stop(5.0)
    report = one.report()
    assert (report["reason"], report["ranks"], one.lines()) == ("Cancelled", [], [])


def test_a_second_stop_shortens_the_grace(worker: Make) -> None:
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); "
        "time.sleep(1000)"
    )
    one = worker(script).start().go()
    one.waits_for("deaf")
    one.stop(100.0)
    one.stop(0.1)
    assert one.report()["ranks"][0]["signal"] == 9


def test_a_rank_that_closes_its_stdout_goes_on(worker: Make) -> None:
    script = """
        import os, time
        os.close(1); os.close(2)
        time.sleep(0.5)
        open("alive", "w").close()
    """
    one = worker(script)
    assert one.run()["exit_code"] == 0
    assert (one.folder / "alive").exists()


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_worker(
    worker: Make, portable: bool
) -> None:
    one = worker(DAEMON.format(session=False, then=""), grace_s=0.2, portable=portable).start().go()
    assert one.report(15)["exit_code"] == 0
    assert not alive(child_of(one))


def test_a_daemon_in_a_session_of_its_own_is_gone_before_the_report(worker: Make) -> None:
    one = worker(DAEMON.format(session=True, then=""), grace_s=0.2).start().go()
    assert one.report(15)["exit_code"] == 0
    assert not alive(child_of(one))


def test_what_a_grandchild_says_after_its_rank_is_not_lost(worker: Make) -> None:
    script = """
        import subprocess, sys
        child = "import time; time.sleep(0.2); print('last words')"
        subprocess.Popen([sys.executable, "-c", child])
    """
    one = worker(script)
    one.run()
    assert one.lines() == ["last words"]


def test_a_killed_rank_is_a_signal(worker: Make) -> None:
    report = worker("import os; os.kill(os.getpid(), 9)").run()
    assert (report["reason"], report["exit_code"], report["ranks"][0]["signal"]) == (
        "Signal",
        137,
        9,
    )


def test_no_rank_outlives_a_killed_launcher(worker: Make, portable: bool) -> None:
    one = worker(
        "import time; print('up', flush=True); time.sleep(1000)",
        processes_per_worker=2,
        portable=portable,
    )
    one.start().go()
    one.waits_for("up")
    ranks = read_json(one.directory.processes)
    assert ranks
    assert one.process
    one.process.kill()
    until(lambda: not any(alive(rank["pid"]) for rank in ranks.values()), "the ranks are gone")
    until(lambda: not is_held(one.directory.lock), "the lock is free")


def test_a_killed_launchers_grandchildren_are_found_by_their_mark(worker: Make) -> None:
    one = worker(DAEMON.format(session=True, then="time.sleep(1000)")).start().go()
    child = child_of(one)
    assert one.process
    one.process.kill()
    one.process.wait()
    assert child in one.left_over()


def test_a_second_launcher_starts_nothing(worker: Make) -> None:
    one = worker("import time; print('up', flush=True); time.sleep(1000)").start().go()
    one.waits_for("up")
    second = subprocess.run(launcher_command(one.directory.path), capture_output=True, timeout=30)
    assert second.returncode == ALREADY_RUNS
    assert one.process
    one.process.kill()
    one.process.wait()
    third = subprocess.run(launcher_command(one.directory.path), capture_output=True, timeout=30)
    assert third.returncode == ALREADY_RAN
    assert one.lines() == ["up"]


def test_the_worker_goes_on_when_nobody_is_connected(worker: Make) -> None:
    one = worker("import time; time.sleep(0.3); print('done')").start().go()
    assert one.connection
    one.connection.close()
    one.connection = None
    assert one.report()["exit_code"] == 0
    assert one.lines() == ["done"]


def test_go_twice_starts_once(worker: Make) -> None:
    one = worker("import os; print(os.getpid())").start()
    assert one.connection
    assert one.event() == "ready"
    one.connection.send(b'not json\n[]\n{"do":"go"}\n{"do":"go"}\n{"do":"unknown"}\n')
    one.report()
    assert len(one.lines()) == 1


def test_the_control_socket_works_below_a_path_of_any_length(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) < 300:
        folder = folder / ("x" * 50)
    folder.mkdir(parents=True)
    one = Worker(folder, "print('deep')")
    try:
        assert one.run()["exit_code"] == 0
        assert [
            link for link in Path("/tmp").glob("cl-*/d") if link.resolve().is_relative_to(folder)
        ] == []
    finally:
        one.close()


def test_a_missing_interpreter_is_a_failed_start(worker: Make) -> None:
    one = worker(python="/nowhere/python3").start()
    assert one.connection
    one.event()
    one.connection.send(b'{"do":"go"}\n')
    report = one.report()
    assert report["reason"] == "StartFailed"
    assert "/nowhere/python3" in report["message"]


def test_if_one_rank_can_not_start_none_runs(worker: Make, tmp_path: Path) -> None:
    # the program is removed by the first rank that runs it
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nrm {program}\nsleep 1000\n")
    program.chmod(0o755)
    one = worker(
        python=None, command=[str(program)], type="binary", processes_per_worker=40
    ).start()
    assert one.connection
    one.event()
    one.connection.send(b'{"do":"go"}\n')
    report = one.report()
    assert report["reason"] == "StartFailed"
    assert one.left_over() == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": ["/nowhere/train.py"]}, "/nowhere/train.py does not exist"),
        ({"command": ["/tmp"]}, "is a directory"),
        ({"working_dir": "/nowhere"}, "working directory /nowhere does not exist"),
        ({"type": "horovod"}, "horovod"),
        ({"checkpoint_dir": "/dev/null/x"}, "/dev/null/x"),
    ],
)
def test_what_can_not_start_says_why(worker: Make, fields: dict[str, object], words: str) -> None:
    report = worker(**fields).start().report()
    assert report["reason"] == "StartFailed"
    assert words in report["message"]


def test_as_process_1_signals_work_and_orphans_are_reaped(worker: Make) -> None:
    if os.geteuid() != 0 or not Path("/usr/bin/unshare").exists():
        pytest.skip("needs root and unshare for a process namespace of its own")
    script = """
        import os, subprocess, sys, time
        subprocess.run(["sh", "-c", "sleep 0.1 &"])   # its orphan comes to process 1
        time.sleep(0.5)
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        states = [open(f"/proc/{pid}/stat").read().split()[2] for pid in pids]
        print("zombies", states.count("Z"), "parent", os.getppid(), flush=True)
        time.sleep(1000)
    """
    one = worker(script)
    unshare = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    probe = subprocess.run([*unshare, "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("this machine allows no process namespaces")
    one.process = subprocess.Popen([*unshare, *launcher_command(one.directory.path)])
    one.connection = until(one._connect, "the launcher listens")
    one.go()
    one.waits_for("zombies 0 parent 1")
    launcher = (read_json(one.directory.lock) or {})["pid"]
    assert launcher == 1
    inner = int(
        subprocess.run(["pgrep", "-P", str(one.process.pid)], capture_output=True).stdout.split()[0]
    )
    os.kill(inner, signal.SIGTERM)
    assert one.report()["reason"] == "Cancelled"


def test_a_launcher_whose_directory_was_removed_ends_with_its_ranks(
    worker: Make, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    script = (
        f"import os, time\nprint('up', flush=True)\nwhile not os.path.exists({str(go_on)!r}): "
        "time.sleep(0.01)\n"
    )
    started = worker(script).start().go()
    started.waits_for("up")
    shutil.rmtree(started.directory.path)
    go_on.touch()
    assert started.process
    assert started.process.wait(timeout=10) == 0


def test_ranks_that_would_run_for_ever_end_when_the_directory_was_removed(worker: Make) -> None:
    script = "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(1000)\n"
    started = worker(script).start().go()
    started.waits_for("pid ")
    rank = int(next(line for line in started.lines() if line.startswith("pid ")).split()[1])
    shutil.rmtree(started.directory.path)
    assert started.process
    assert started.process.wait(timeout=20) == 0
    assert not alive(rank)


def test_a_directory_that_is_away_for_some_seconds_ends_nothing(worker: Make) -> None:
    started = worker("import time\nprint('up', flush=True)\ntime.sleep(8)").start().go()
    started.waits_for("up")
    os.rename(started.directory.path, started.directory.path + ".away")
    time.sleep(4)
    os.rename(started.directory.path + ".away", started.directory.path)
    assert started.report()["reason"] == "Completed"


def test_a_launcher_whose_directory_was_removed_waits_no_longer_for_go(worker: Make) -> None:
    started = worker("print('hello')").start()
    assert started.event() == control.READY
    shutil.rmtree(started.directory.path)
    assert started.process
    assert started.process.wait(timeout=20) == 0


def test_each_process_gets_one_sigterm_however_often_its_worker_is_stopped(
    worker: Make, portable: bool
) -> None:
    script = """
        import os, signal, subprocess, sys, time
        child = (
            "import os, signal, time; "
            "signal.signal(15, lambda *_: os.write(1, b'child is asked\\\\n')); "
            "os.write(1, b'child is up\\\\n'); time.sleep(1000)"
        )
        subprocess.Popen([sys.executable, "-c", child])
        # One write, because both processes have one pipe.
        signal.signal(15, lambda *_: os.write(1, b"rank is asked\\n"))
        print("rank is up", flush=True)
        end = time.monotonic() + 3.0
        while time.monotonic() < end: time.sleep(0.1)
    """
    started = worker(script, portable=portable, grace_s=2.0).start().go()
    until(lambda: sum("is up" in line for line in started.lines()) == 2, "both are up")
    for grace_s in (100.0, 100.0, 50.0):
        started.stop(grace_s)
        time.sleep(0.2)
    started.report()
    asked = sorted(line for line in started.lines() if "asked" in line)
    assert asked == ["child is asked", "rank is asked"]


def test_a_process_that_is_left_over_gets_one_sigterm_before_it_is_killed(worker: Make) -> None:
    script = """
        import subprocess, sys, time
        says = "import signal, time; signal.signal(15, lambda *_: print('asked', flush=True)); "
        subprocess.Popen([sys.executable, "-c", says + "print('up', flush=True); time.sleep(1000)"])
        time.sleep(1.0)
    """
    ended = worker(script, grace_s=2.0)
    ended.run()
    assert ended.lines() == ["up", "asked"]


@pytest.fixture
def memory_limit() -> Iterator[tuple[str, ...]]:
    """A command that execs another one in a control group of 300 MB."""
    memory, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"  # version 1
    if not memory.is_dir():
        memory, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = memory / f"client-lib-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text("300000000")
    except OSError:
        pytest.skip("needs root and control groups of its own")
    yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
    group.rmdir()


def test_a_child_of_a_rank_that_is_killed_for_memory_is_named_in_the_message(
    worker: Make, memory_limit: tuple[str, ...]
) -> None:
    script = """
        import subprocess, sys
        eats = "open('/proc/self/oom_score_adj', 'w').write('1000'); x = b'x' * (1 << 30)"
        child = subprocess.run([sys.executable, "-c", eats])
        raise RuntimeError(f"the data loader ended with {child.returncode}")
    """
    report = worker(script).start(memory_limit).go().report()
    assert (report["reason"], report["message"]) == (
        "OutOfMemory",
        "rank 0 ended with exit code 1: RuntimeError: the data loader ended with -9; "
        "a process of its worker was killed because the memory limit was reached",
    )


def test_a_left_over_process_of_another_user_does_not_hold_the_report(worker: Make) -> None:
    """A script that calls `sudo` leaves such a process. The launcher is root that
    may not signal other users.
    """
    without_kill = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    if os.geteuid() != 0 or subprocess.run([*without_kill, "true"], capture_output=True).returncode:
        pytest.skip("needs root and setpriv")
    one = worker("import subprocess; subprocess.Popen(['sleep', '100'], user=65534)")
    report = one.start(without_kill).go().report()
    assert (report["reason"], len(one.left_over())) == ("Completed", 1)


HIDES = "{python} {script} 2>&1 | tee out.txt"
RAISES = "raise ValueError('no data')"


def shell(worker: Make, script: str, line: str) -> Worker:
    made = worker(script, type="binary", python=None)
    command = line.format(python=sys.executable, script=made.script)
    made.give(made.plan._replace(command=["bash", "-c", command]))
    return made


@pytest.mark.parametrize("line", [HIDES, "{python} {script}; echo done"], ids=["pipe", "sequence"])
def test_a_traceback_that_a_shell_hides_is_told(worker: Make, line: str) -> None:
    one = shell(worker, RAISES, line)
    report = one.run()
    assert report["reason"] == "Completed"
    (note,) = report["notes"]
    assert "rank 0 ended with exit code 0" in note
    assert "a traceback, of ValueError: no data" in note
    assert note in one.lines("launcher", rank=None)


def test_a_logged_exception_after_which_the_command_goes_on_is_not_told(worker: Make) -> None:
    script = """
        import logging
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("skipped")
        for step in range(10):
            logging.warning("step %d", step)
    """
    assert "notes" not in shell(worker, script, HIDES).run()


def test_a_traceback_of_a_command_that_fails_is_told_once(worker: Make) -> None:
    report = shell(worker, RAISES, "{python} {script}").run()
    assert report["ranks"][0]["exception"] == "ValueError: no data"
    assert "notes" not in report
